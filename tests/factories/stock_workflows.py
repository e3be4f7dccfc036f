"""A program for a process of its own, without Rankline: stock NVTabular fits and saves a workflow for each operator.

    python stock_workflows.py DIRECTORY

Each goes to DIRECTORY/NAME/workflow, with the rows that it was fitted to as rows.parquet and what NVTabular makes of
them as made.pkl. NVTabular 23.8 was written for a Dask of 2023: the three settings at the top are all that it needs on
one of today.
"""

import sys
import warnings
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd

dask.config.set({"dataframe.query-planning": False, "dataframe.convert-string": False})
warnings.simplefilter("ignore")
import dask.dataframe.utils  # noqa: E402
from dask.dataframe.dispatch import hash_object_dispatch  # noqa: E402

vars(dask.dataframe.utils)["hash_object_dispatch"] = hash_object_dispatch
import nvtabular as nvt  # noqa: E402
from merlin.dag.ops.subgraph import Subgraph  # noqa: E402
from nvtabular import ops  # noqa: E402

NUM_ROWS = 240
RNG = np.random.default_rng(5)
ROWS = pd.DataFrame(
    {
        "user": RNG.integers(1, 30, NUM_ROWS),
        "item": RNG.integers(1, 12, NUM_ROWS),
        "city": RNG.choice(["Oslo", "Zürich", "東京"], NUM_ROWS),
        "price": RNG.normal(20, 8, NUM_ROWS).round(2),
        "age": np.where(RNG.random(NUM_ROWS) < 0.1, np.nan, RNG.integers(18, 80, NUM_ROWS)),
        "tags": [list(RNG.choice(["a", "b", "c"], n)) for n in RNG.integers(1, 4, NUM_ROWS)],
        "label": RNG.integers(0, 2, NUM_ROWS).astype("float32"),
    }
)
ITEMS = pd.DataFrame(
    {"item": np.arange(1, 12), "weight": np.linspace(0, 1, 11), "kinds": [["x", "y"][: 1 + i % 2] for i in range(11)]}
)
GRAPHS: dict[str, Any] = {
    "categorify": lambda: ["user", "city", "tags"] >> ops.Categorify(),
    "categorify_joint": lambda: [["user", "item"]] >> ops.Categorify(encode_type="joint"),
    "categorify_combo": lambda: [["item", "city"]] >> ops.Categorify(encode_type="combo"),
    "fill_missing": lambda: ["age"] >> ops.FillMissing(-1, add_binary_cols=True),
    "fill_median": lambda: ["age"] >> ops.FillMedian(),
    "normalize": lambda: ["age", "price"] >> ops.FillMissing(0) >> ops.Normalize(),
    "normalize_min_max": lambda: ["price"] >> ops.NormalizeMinMax(),
    "clip_log": lambda: ["price"] >> ops.Clip(0, 30) >> ops.LogOp(),
    "join_external": lambda: ["item"] >> ops.JoinExternal(ITEMS, on=["item"]) >> ops.Categorify(),
    "join_groupby": lambda: ["user"] >> ops.JoinGroupby(cont_cols=["price"], stats=["count", "mean", "std"]),
    "target_encoding": lambda: [["city", "item"]] >> ops.TargetEncoding("label", kfold=3, p_smooth=10),
    "list_slice": lambda: ["tags"] >> ops.Categorify() >> ops.ListSlice(0, 2),
    "value_count": lambda: ["tags"] >> ops.Categorify() >> ops.ValueCount(),
    "rename_tags": lambda: ["user"] >> ops.Categorify() >> ops.Rename(postfix="_id") >> ops.AddTags(["mine"]),
    "reduce_dtype_size": lambda: ["user", "price"] >> ops.ReduceDtypeSize(),
    "drop_low_cardinality": lambda: ["user", "item"] >> ops.Categorify() >> ops.DropLowCardinality(),
    "subgraph": lambda: ["user"] >> Subgraph("ids", ["user"] >> ops.Categorify()),
    "some_of_the_columns": lambda: (["user", "item"] >> ops.Categorify())["user"],
    "everything": lambda: (["user", "tags"] >> ops.Categorify()) + (["price"] >> ops.Normalize()) + ["label"],
    "bucketize": lambda: ["price"] >> ops.Bucketize({"price": [10, 20]}),
    "hash_bucket": lambda: ["user"] >> ops.HashBucket(8),
    "hashed_cross": lambda: [["user", "item"]] >> ops.HashedCross(8),
    "categorify_buckets": lambda: ["user"] >> ops.Categorify(freq_threshold=9, num_buckets=4),
    "lambda_on_a_feature": lambda: ["price"] >> ops.LambdaOp(lambda column: column * 2),
    "lambda_on_the_label": lambda: (["user"] >> ops.Categorify()) + (["label"] >> ops.LambdaOp(lambda c: c > 0)),
}


def main(directory: Path) -> None:
    """Save all."""
    for name, graph in GRAPHS.items():
        place = directory / name
        place.mkdir(parents=True)
        nodes = graph()
        for node in [nodes, *nodes.parents_with_dependencies]:
            if hasattr(node.op, "out_path"):
                node.op.out_path = str(place / "scratch")
        workflow = nvt.Workflow(nodes)
        made = workflow.fit_transform(nvt.Dataset(ROWS)).to_ddf().compute()
        workflow.save(str(place / "workflow"))
        made.to_pickle(place / "made.pkl")
    ROWS.drop(columns="label").to_parquet(directory / "rows.parquet")
    ours = {"rankline", "workflows", "serving", "training"} & sys.modules.keys()
    assert not ours, ours


if __name__ == "__main__":
    main(Path(sys.argv[1]))
