"""Makes `tests/golden/2023.tar.xz`, with the packages of 2023.

It was run in a checkout of the last commit for TensorFlow 2.15 and pandas 1.5, in an environment of that commit, with
this folder copied to its `tests/support`, as

    python -m tests.oracles.golden.make 2023.tar.xz

Nothing here may need what came later.
"""

import shutil
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from rankline.serving.export.config import ExportConfig
from rankline.serving.export.exporter import export_ensemble
from rankline.training.config.train import SessionConfig
from rankline.training.run.train import train
from rankline.training.tracking import TrackingConfig
from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.nvt.compat import quiet_nvtabular
from rankline.workflows.nvt.io.workflow import load_workflow, save_workflow
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.schema.model_artifact import TrainedModel
from rankline.workflows.storage.artifacts import versions
from tests.oracles.golden.files import MADE_WITH, write_json
from tests.oracles.golden.graphs import fit, graphs, schema_of, transform
from tests.oracles.golden.models import CHECKPOINT_EVERY, MODELS, Stopped, scores
from tests.oracles.golden.prepares import PREPARES, generate, prepare_raw
from tests.oracles.golden.tables import frame_of, read_table, table_of, write_table

# What NumPy of then made of ids that are equally frequent hung on the processor, see `workflows/nvt/compat.py`.
_sort_values = pd.DataFrame.sort_values
pd.DataFrame.sort_values = lambda self, by, **choices: _sort_values(self, by, **{"kind": "stable", **choices})

_PACKAGES = ("pandas", "dask", "distributed", "merlin-core", "scipy", "numba", "protobuf", "onnx", "onnxruntime")

# Column of `comparing.VALUES` → values that training did not have, or that are the last of their dtype.
_ODD: dict[str, list[Any]] = {
    "key": [2, 12, 0, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, -(2**63), 3],
    "small": [5, 0, 3, 4, 1, -1, 2],
    "here": [0, 3, 1, 2, 2, 0, 1],
    "there": [1, 1, 3, 2, 0],
    "narrow": [127, -128, 0, 3, -100],
    "flag": [True, False, True],
    "float": [1e300, -0.0, 0.0, float("nan"), 2.5, -1e300, 5e-324, float("inf"), 0.1, -3.25],
    "float32": [0.1, -0.0, float("nan"), 2.5, 1e-45, 3e38, -3.25],
    "whole": [3.0, 1.0, float("nan"), 2.0],
    "maybe": [0.0, 1.0, 2.0, -7.0, float("nan"), 5.0],
    "price": [0.0, 0.3, 99.5, 1e-9, 0.1],
    "word": ["a", "", None, "é", "日本", "a\0", "\0", "long " * 40, "new", "z"],
    "other": ["a", None, "b", "é", "", "new"],
    "code": ["68fd1e64", "0F", " 1", None, "0x1", "", "ffffffffffffffff", "no", "a"],
    "words": [["a", None], [], ["new", "é", "a\0", "b"], ["日本"], ["", "b", "b"]],
    "keys": [[1, 2**53 + 1, 7], [], [2], [-(2**63), 3, 3, 1], [2**63 - 1]],
    "floats": [[1.5, float("nan")], [], [-1.0, 0.1, 1e300, 2.0], [-0.0]],
}
_NUM_ODD = 24


def main(output: Path) -> None:
    """Make everything, and pack it."""
    with TemporaryDirectory(prefix="golden-") as scratch:
        made, work = Path(scratch, "2023"), Path(scratch, "work")
        write_json(versions() | {name: version(name) for name in _PACKAGES}, made / MADE_WITH)
        make_graphs(made, work)
        make_data(made)
        make_models(made, work)
        shutil.rmtree(work)
        with tarfile.open(output, "w:xz", preset=9) as archive:
            for path in sorted(made.rglob("*")):
                if path.is_file():
                    archive.add(path, path.relative_to(made), filter=_of_nobody)


def make_graphs(made: Path, work: Path) -> None:
    """Rows, and for each graph: its workflow as it was saved, and what it makes of them."""
    every = graphs()  # first: it makes the files with the rows importable
    rows = {"lowerings": _lowering_rows(), "stacking": _stacking_rows()}
    for name, parts in rows.items():
        for part, frame in parts.items():
            write_table(table_of(frame), made / "rows" / name / part)
    given = {
        (name, part): frame_of(read_table(made / "rows" / name / part))
        for name, parts in rows.items()
        for part in parts
    }
    for number, graph in enumerate(every.values()):
        print(number, graph.name, flush=True)
        directory, fitted = made / "graphs" / f"{number:03}", work / f"{number:03}"
        workflow = fit(graph, given[graph.rows, "train"], fitted)
        for part in rows[graph.rows]:
            write_table(transform(workflow, given[graph.rows, part]), directory / part)
        write_json({"name": graph.name, "schema": schema_of(workflow)}, directory / "graph.json")
        with quiet_nvtabular():
            save_workflow(workflow, directory / "workflow")
        try:
            load_workflow(directory / "workflow")
        except ArtifactError as error:
            print("    not loaded:", error, flush=True)
            shutil.rmtree(directory / "workflow")


def _lowering_rows() -> dict[str, pd.DataFrame]:
    from comparing import DTYPES, training_rows, typed

    train = training_rows().assign(here=np.arange(60) * 7 % 4, there=np.arange(60) // 3 % 4)
    odd = {name: [values[row % len(values)] for row in range(_NUM_ODD)] for name, values in _ODD.items()}
    first = {name: train[name].iloc[0] for name in odd}  # NVTabular cannot encode a column that is missing whole
    return {
        "train": train,
        "odd": typed({n: [*v, first[n]] for n, v in odd.items()}, DTYPES | {"here": "int64", "there": "int64"}),
    }


def _stacking_rows() -> dict[str, pd.DataFrame]:
    import test_chains as given

    train = given.training_rows()
    numbers = [0, -3, 1000, 2**31, 2**53, -(2**40), None]
    floats, codes = [0.0, -0.0, 1.5, 1e30, -2.25], ["68fd1e64", "0f", "0F", None, "ffffffff", "no", "", "0000000a"]
    odd = {
        name: [values[(row + shift) % len(values)] for row in range(_NUM_ODD)]
        for values, names in ((numbers, given.NUMBERS), (floats, given.FLOATS), (codes, given.CODES))
        for shift, name in enumerate(names)
    }
    return {"train": train, "odd": given.typed(odd, given.DTYPES)}


def make_data(made: Path) -> None:
    """Raw files of each data set, and what `prepare` makes of them."""
    for name, choices in PREPARES.items():
        raw = made / "raw" / choices.dataset.name
        if not raw.exists():
            generate(name, raw)
        prepare_raw(name, raw, made / "prepared" / name)


def make_models(made: Path, work: Path) -> None:
    """What is trained on prepared data: a run that was stopped, and one that was not; its ensembles, and scores."""
    tracking = TrackingConfig(directory=work / "runs", experiment="golden")
    for name, model in MODELS.items():
        print(name, flush=True)
        prepared, output = PreparedData.load(made / "prepared" / model.data), made / "models" / name
        session, stopped = SessionConfig(checkpoint_every=CHECKPOINT_EVERY), Stopped()
        try:
            train(prepared, output, model.config, session=session, tracking=tracking, progress=stopped)
            raise AssertionError("the run was not stopped")
        except KeyboardInterrupt:
            train(prepared, output, model.config, tracking=tracking)
        trained = TrainedModel.load(output)
        write_table(scores(prepared, trained), made / "scores" / name)
        for engine in model.engines:
            ensemble = f"{name}_{engine}"
            config = ExportConfig(engine=engine)
            export_ensemble(prepared, trained, made / "ensembles" / ensemble, config, name=ensemble)


def _of_nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    return member


if __name__ == "__main__":
    main(Path(sys.argv[1]))
