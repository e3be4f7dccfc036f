"""Operators put together at random, over columns drawn at random."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.workflows.nvt.compat import ops, quiet_nvtabular
from rankline.workflows.nvt.operators import HashedCategorify, NullToEmptyList, PaddedListSlice, StableHashBucket
from tests.oracles.lowering import EXAMPLES, assert_same, assert_zero_rows, fitted, requests, training_rows

Operators = list[Callable[[], Any]]


def logarithm() -> Any:
    return ops.LogOp()


def to_unit_range() -> Any:
    return ops.NormalizeMinMax()


SHOPS = pd.DataFrame(
    {"other": ["a", "b", "é"], "town": ["x", None, "y"], "size": [1.5, np.nan, 2.5], "sells": [["a"], [], ["b", "é"]]}
)
# What may come on the way, and what makes numbers of it in the end.
OPERATORS: dict[str, tuple[Operators, Operators]] = {
    "numbers": (
        [
            lambda: ops.FillMissing(2),
            lambda: ops.FillMedian(),
            lambda: ops.Clip(min_value=-5, max_value=1000),
            logarithm,
            lambda: ops.Normalize(),
            to_unit_range,
            lambda: ops.Rename(postfix="_n"),
            lambda: ops.AddTags(["number"]),
            lambda: ops.ReduceDtypeSize(),
        ],
        [lambda: ops.AddMetadata(), lambda: ops.Bucketize([-1, 0, 2]), lambda: ops.Categorify()],
    ),
    "strings": (
        [lambda: ops.FillMissing("é"), lambda: ops.Rename(postfix="_s"), lambda: ops.TagAsItemID()],
        [
            lambda: ops.Categorify(freq_threshold=4),
            lambda: HashedCategorify(num_buckets=3, max_size=6),
            lambda: StableHashBucket(5),
        ],
    ),
    "lists": (
        [lambda: ops.ListSlice(3), lambda: ops.ListSlice(-2), lambda: ops.Rename(postfix="_l")],
        [lambda: ops.Categorify(), lambda: HashedCategorify(num_buckets=3, max_size=6), lambda: StableHashBucket(5)],
    ),
}
COLUMNS = {"numbers": ["float", "float32", "small", "price"], "strings": ["word", "other"], "lists": ["words", "keys"]}


@st.composite
def chains(draw: st.DrawFn) -> list[list[Any]]:
    """Columns, then operators on them, several times; no column twice, since statistics are kept by column."""
    drawn = []
    for kind in draw(st.lists(st.sampled_from(["numbers", "strings", "lists", "shops"]), min_size=1, unique=True)):
        tail: Operators = []
        if kind == "shops":
            start, kind = draw(st.sampled_from([("size", "numbers"), ("town", "strings"), ("sells", "lists")]))
            names = (["other"] >> ops.JoinExternal(SHOPS, on="other"))[start]
            names = names >> NullToEmptyList() if kind == "lists" else names
        else:
            names = draw(st.lists(st.sampled_from(COLUMNS[kind]), min_size=1, unique=True))
            tail = [lambda: PaddedListSlice(2)] if kind == "lists" and draw(st.booleans()) else []
        steps, ends = OPERATORS[kind]
        middle = draw(st.lists(st.sampled_from(steps), max_size=3, unique=True))
        # NVTabular's NormalizeMinMax loses a column without a range, which is what a logarithm may make of ours.
        middle = [step for step in middle if step is not to_unit_range or logarithm not in middle]
        drawn.append([names, *(make() for make in [*middle, draw(st.sampled_from(ends)), *tail])])
    return drawn


@EXAMPLES
@given(st.data())
def test_random_graphs_equal_nvtabular(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    with quiet_nvtabular():
        drawn = data.draw(chains(), label="chains")

    def graph() -> Any:
        whole: Any = None
        for number, (node, *operators) in enumerate(drawn):
            for operator in operators:
                node = node >> operator
            node = node >> ops.Rename(postfix=f"_{number}")
            whole = node if whole is None else whole + node
        return whole

    workflow, plan = fitted(tmp_path_factory.mktemp("workflow"), training_rows(), graph)
    for _ in range(3):
        assert_same(workflow, plan, data.draw(requests(workflow)), widened=True)
    assert_zero_rows(plan)
