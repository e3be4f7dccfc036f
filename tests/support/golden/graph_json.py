"""Workflows that NVTabular's main branch has saved as `graph.json`, and what it made of rows before it saved them.

`tests/golden/graph_json.tar.xz` was made once by

    python -m tests.support.golden.graph_json CHECKOUT

where CHECKOUT holds the package `nvtabular` of NVTabular's main branch (commit 08e06339f, after pull request 1896). All
of `nvtabular` was that of the checkout; merlin-core and the C++ extension were those of 23.8. Whoever only reads the
archive needs no checkout.
"""

import json
import os
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tests.support.golden import functions
from tests.support.golden.files import ROOT, read_json

ARCHIVE = ROOT / "tests" / "golden" / "graph_json.tar.xz"
NO_PLAN = {
    "rows dropped": "drops rows",
    "hash buckets": "hashes the row's position",
    "a function": "LambdaOp .* is a Python function",
    "a filter": "Filter .* drops rows",
    "names by a function": "Rename on .* calls tests.support.golden.functions:with_suffix",
    "a loop": "loops until a function says so",
}
"""Workflows that have no compiled form, and why."""
CALLS = {"a function", "a filter", "names by a function", "a loop"}
"""Workflows that call functions of `tests.support.golden.functions`."""
FOLDED = {"targets in folds"}
"""Whose statistics are those of the row's fold offline, and of all rows where they are served."""


def unpack(directory: Path) -> dict[str, Path]:
    """The saved workflows, by name, below `directory`."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(directory, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return {read_json(path)["name"]: path.parent for path in sorted(directory.glob("*/made.json"))}


def rows() -> pd.DataFrame:
    """What the workflows were fitted to and transform."""
    number = np.arange(24)
    return pd.DataFrame(
        {
            "user": number * 7 % 5,
            "item": number * 5 % 7 + 10,
            "word": [["a", "b", "é", None][i * 3 % 4] for i in number],
            "price": np.where(number % 6 == 5, np.nan, number * 0.37 - 1),
            "small": (number * 1.3 % 4).astype(np.float32),
            "label": (number % 3 == 0).astype(np.float64),
            "words": [[*"abc"[: i % 4], "d"] for i in number],
            "keys": [list(range(i % 5 + 1)) for i in number],
        }
    )


def graphs(ops: Any, selector: Any, subgraph: Any) -> dict[str, Any]:
    """Graphs of every operator that the format has.

    Args:
        ops: `nvtabular.ops`.
        selector: `nvtabular.ColumnSelector`.
        subgraph: merlin-core's `Subgraph`.
    """
    filled = ["price"] >> ops.FillMissing(2.5)
    users = ["user"] >> ops.Categorify()
    label = ["label"] >> ops.FillMissing(0)
    inner = (["user"] >> ops.Categorify(freq_threshold=2)) + (["price"] >> ops.FillMedian() >> ops.Normalize())
    return {
        "numbers": (filled >> ops.Clip(min_value=0) >> ops.LogOp() >> ops.Normalize(out_dtype=np.float32))
        + (["price"] >> ops.FillMedian(add_binary_cols=True) >> ops.Rename(postfix="_median"))
        + (["small"] >> ops.NormalizeMinMax(out_dtype="float32"))
        + (["small"] >> ops.Normalize() >> ops.Rename(name="scaled"))
        + (["label"] >> ops.FillMissing(0, add_binary_cols=True)),
        "integers between extremes": ["user", "item"] >> ops.NormalizeMinMax(),
        "bins": (["price"] >> ops.FillMissing() >> ops.Bucketize([0, 1.5, 3]) >> ops.Rename(postfix="_bin"))
        + (["small", "label"] >> ops.Bucketize({"small": [1, 2], "label": [0.5]})),
        "ids": ["user", "word"] >> ops.Categorify(freq_threshold={"user": 2, "word": 7}, dtype=np.int32),
        "ids of one table": [["user", "item"], "word"] >> ops.Categorify(encode_type="joint"),
        "ids of combinations": ["user", ["user", "word"]] >> ops.Categorify(encode_type="combo", name_sep="-"),
        "ids up to a size": ["user", "item"] >> ops.Categorify(max_size={"user": 4, "item": 5}),
        "lists": (["words"] >> ops.Categorify()) + (["keys"] >> ops.ListSlice(2)),
        "lists from the end": ["keys"] >> ops.ListSlice(-3, -1),
        "statistics": (["item"] >> ops.JoinGroupby(cont_cols=["small"], stats=["count", "mean", "std", "max"]))
        + ([["user", "word"]] >> ops.JoinGroupby(cont_cols=filled, stats=["count", "sum"])),
        "targets": ["user", ["user", "word"]] >> ops.TargetEncoding("label", kfold=1, p_smooth=3, out_dtype=np.float64),
        "targets of a node": ["item"] >> ops.TargetEncoding(label, kfold=1),
        "targets in folds": ["user", ["user", "item"]] >> ops.TargetEncoding(["label"], kfold=3, fold_seed=7),
        "two ways": users + (users >> ops.Rename(postfix="_log") >> ops.LogOp()) + ["item"],
        "a graph in a graph": (["user", "price"] >> subgraph("inner", inner)) + (["item"] >> ops.Categorify()),
        "graphs in a graph in a graph": ["user"] >> subgraph("outer", ["user"] >> subgraph("inner", users)),
        "tags": (["user"] >> ops.TagAsUserID())
        + (["item"] >> ops.AddMetadata(tags=["mine", "my.USER"], properties={"shown": [1, "é"]}))
        + (["small"] >> ops.AddProperties({"unit": "EUR"})),
        "all columns": selector("*") >> ops.Rename(postfix="_raw"),
        "rows dropped": ["price", "user"] >> ops.Dropna(),
        "hash buckets": (["user"] >> ops.HashBucket(3)) + (["item"] >> ops.HashBucket({"item": 5})),
        "a function": users + (["label"] >> ops.LambdaOp(functions.is_liked)),
        "a filter": ["price", "user"] >> ops.Filter(functions.is_dear),
        "names by a function": ["user"] >> ops.Categorify() >> ops.Rename(functions.with_suffix),
        "a loop": ["price"] >> subgraph("loop", ["price"] >> ops.FillMissing(), loop_until=functions.is_done),
    }


def values_of(frame: pd.DataFrame) -> dict[str, Any]:
    """Columns as JSON has them: dtype and values."""
    return {
        name: {
            "dtype": str(frame[name].dtype),
            "values": [getattr(value, "tolist", lambda v=value: v)() for value in frame[name]],
        }
        for name in frame
    }


def main(checkout: str) -> None:
    """Make the archive."""
    sys.path.insert(0, checkout)
    from workflows.upstream import nvt, ops, quiet_nvtabular  # first, so that what it imports is imported quietly

    from merlin.dag.ops.subgraph import Subgraph  # isort: skip

    assert Path(nvt.__file__).is_relative_to(checkout), nvt.__file__
    with tempfile.TemporaryDirectory() as work, quiet_nvtabular():
        made, fits = Path(work) / "made", Path(work) / "fits"
        for number, (name, graph) in enumerate(graphs(ops, nvt.ColumnSelector, Subgraph).items()):
            (fits / str(number)).mkdir(parents=True)
            os.chdir(fits / str(number))  # where NVTabular writes statistics to
            frame = rows() if name != "all columns" else rows()[["user", "small"]]
            workflow = nvt.Workflow(graph)
            workflow.fit(nvt.Dataset(frame))
            values = values_of(workflow.transform(frame.copy()))
            directory = made / f"{number:02}"
            workflow.save(str(directory))
            document = {"name": name, "columns": list(frame), "values": values}
            (directory / "made.json").write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
            graph_file = directory / "graph.json"  # a third of the size
            graph_file.write_text(json.dumps(json.loads(graph_file.read_text())), encoding="utf-8")
        with tarfile.open(ARCHIVE, "w:xz") as archive:
            archive.add(made, arcname=".")


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).resolve()))
