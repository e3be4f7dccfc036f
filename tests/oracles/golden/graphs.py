"""Every graph of the lowering tests, and what an NVTabular workflow of it makes of rows."""

import importlib
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import scipy.sparse

from rankline.workflows.nvt.compat import nvt, ops, quiet_nvtabular
from rankline.workflows.nvt.io.workflow import keep_vocabularies_in
from rankline.workflows.nvt.operators import GreaterThan
from tests.oracles.golden.tables import table_of

from merlin.dag.ops.subgraph import Subgraph  # isort: skip

TESTS = "tests.unit.workflows.compiler.operators"
_FAMILIES = {
    **{family: (family, "GRAPHS") for family in ("categorical", "continuous", "joins", "lists")},
    "lowering_item_attributes": ("own_operators", "ITEM_ATTRIBUTES"),
    "lowering_known_ids": ("own_operators", "KNOWN_IDS"),
}
"""Family, as the archive calls it → the file of the lowering tests, and its table."""
_NUM_RANDOM = 24
_NUM_PARTITIONS = 3
_IN_ONE_PARTITION = {"lists: ValueCount": 1}
"""NVTabular's `ValueCount` fails where there are several."""


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A graph, named as the lowering tests name it, and the rows that it is fitted to, a key of `Rows`."""

    name: str
    make: Callable[[], Any]
    rows: str = "lowerings"


def graphs() -> dict[str, Graph]:
    """Every graph of the lowering tests, some of their random ones, and what only `prepare` can hold."""
    found = []
    for family, (file, table) in _FAMILIES.items():
        for name, given in vars(importlib.import_module(f"{TESTS}.test_{file}"))[table].items():
            found.append(Graph(name=f"{family}: {name}", make=given[0] if isinstance(given, tuple) else given))
    for name, make in importlib.import_module(f"{TESTS}.test_chains").GRAPHS.items():
        found.append(Graph(name=f"stacking: {name}", make=make, rows="stacking"))
    for name, make in _PREPARE_ONLY.items():
        found.append(Graph(name=f"prepare only: {name}", make=make))
    for number in range(_NUM_RANDOM):
        found.append(Graph(name=f"random: {number}", make=lambda number=number: _random_graph(number)))
    return {graph.name: graph for graph in found}


def _similarity(metric: str) -> Any:
    left, right = (scipy.sparse.coo_matrix([[0.1, 0.7, 0], [1, 0.3, a], [0, 0, 7], [a, 0.1, 1]]) for a in (0.9, 3))
    return [["here", "there"]] >> ops.ColumnSimilarity(left, right, metric=metric, on_device=False)


_PREPARE_ONLY: dict[str, Callable[[], Any]] = {
    "Categorify(num_buckets)": lambda: ["key", "word"] >> ops.Categorify(num_buckets=3, freq_threshold=8),
    "Categorify(single_table)": lambda: ["key", "small"] >> ops.Categorify(single_table=True),
    "HashBucket": lambda: ["key", "word"] >> ops.HashBucket(7),
    "HashedCross": lambda: [["key", "word"]] >> ops.HashedCross(7),
    "TargetEncoding in folds": lambda: ["other", ["other", "small"]] >> ops.TargetEncoding("price", kfold=3),
    "DifferenceLag": lambda: ["price", "float32"] >> ops.DifferenceLag("small", shift=[1, -1]),
    "Groupby": lambda: (
        ["small", "price", "key", "narrow"]
        >> ops.Groupby(groupby_cols=["small"], sort_cols=["price"], aggs={"price": "mean", "key": "list"})
    ),
    "Dropna": lambda: ["float", "small"] >> ops.Dropna(),
    "Filter": lambda: ["price", "small"] >> ops.Filter(lambda frame: frame[frame["price"] > 0.25]),
    "LambdaOp": lambda: ["price"] >> ops.LambdaOp(lambda column: column * 3 + 0.1),
    "DropLowCardinality": lambda: ["small", "key"] >> ops.Categorify() >> ops.DropLowCardinality(min_cardinality=5),
    "GreaterThan": lambda: ["price", "float32", "small"] >> GreaterThan(0.5),
    "a graph in a graph": lambda: ["key"] >> Subgraph("inner", ["key"] >> ops.Categorify()),
    **{f"ColumnSimilarity by {m}": lambda m=m: _similarity(m) for m in ("tfidf", "cosine", "inner")},
}


def _random_graph(seed: int) -> Any:
    """As `test_random_graphs` draws them, by numbers that every Python draws alike."""
    given, rng = importlib.import_module(f"{TESTS}.test_random_graphs"), random.Random(seed)

    def one_of(choices: Any) -> Any:
        return choices[int(rng.random() * len(choices))]

    whole: Any = None
    for number, kind in enumerate(given.OPERATORS):
        steps, ends = given.OPERATORS[kind]
        joined = {"numbers": "size", "strings": "town", "lists": "sells"}[kind]
        if rng.random() < 0.3:
            node = (["other"] >> ops.JoinExternal(given.SHOPS, on="other"))[joined]
            node = node >> given.NullToEmptyList() if kind == "lists" else node
        else:
            node = [one_of(given.COLUMNS[kind])]
        drawn: list[Any] = []
        for _ in range(3):
            step = one_of(steps)
            if step not in drawn and not (step is given.to_unit_range and given.logarithm in drawn):
                drawn.append(step)
        for step in [*drawn, one_of(ends)]:
            node = node >> step()
        node = node >> ops.Rename(postfix=f"_{number}")
        whole = node if whole is None else whole + node
    return whole


def fit(graph: Graph, rows: pd.DataFrame, directory: Path) -> nvt.Workflow:
    """A graph, fitted to rows in several partitions; its vocabularies below `directory`."""
    with quiet_nvtabular(), np.errstate(all="ignore"):
        warnings.filterwarnings("ignore", category=RuntimeWarning)  # as below, in threads of Dask's
        workflow = nvt.Workflow(graph.make())
        keep_vocabularies_in(workflow, directory)
        return workflow.fit(nvt.Dataset(rows, npartitions=_IN_ONE_PARTITION.get(graph.name, _NUM_PARTITIONS)))


def transform(workflow: nvt.Workflow, rows: pd.DataFrame) -> pa.Table:
    """What a workflow makes of the columns that it takes."""
    with quiet_nvtabular(), np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # logarithms of negative numbers
        made = workflow.transform(rows[workflow.input_schema.column_names].copy())
    # What is written has the dtypes of the schema: pandas may hold numbers in float64 where one is missing or was
    # filled in, and an empty array in a list is one of floats.
    dtypes = {name: column.dtype.to_numpy for name, column in workflow.output_schema.column_schemas.items()}
    narrowed = {n: dtypes[n] for n in made if made[n].dtype == np.float64 and np.dtype(dtypes[n]).kind == "f"}
    return table_of(made.astype(narrowed), {name: dtypes[name] for name in made if made[name].dtype == object})


def schema_of(workflow: nvt.Workflow) -> dict[str, Any]:
    """Output column → its dtype, whether it holds lists, and how many ids it has."""
    return {
        name: [column.dtype.name, bool(column.is_list), column.properties.get("embedding_sizes")]
        for name, column in workflow.output_schema.column_schemas.items()
    }
