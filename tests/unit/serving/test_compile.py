"""The compiled plan against NVTabular itself, on graphs fitted to random data."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.compile import compile_workflow
from serving.plan import Padded, TransformPlan
from workflows.errors import LoweringError
from workflows.operators import GreaterThan, HashedCategorify, NullToEmptyList
from workflows.upstream import nvt, ops, quiet_nvtabular
from workflows.workflow_store import keep_vocabularies_in

KEYS = st.integers(-5, 30) | st.sampled_from([2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, -(2**63)])
WORDS = st.text(st.characters(blacklist_categories=("Cs",)), max_size=3)


def fitted(workflow: nvt.Workflow, rows: pd.DataFrame, directory: Path) -> nvt.Workflow:
    with quiet_nvtabular():
        keep_vocabularies_in(workflow, directory)
        return workflow.fit(nvt.Dataset(rows))


def as_lists(column: Any) -> list[Any]:
    if isinstance(column, Padded):
        values, offsets = column.ragged()
        return [values[a:b].tolist() for a, b in pairwise(offsets)]
    return [value.tolist() if isinstance(value, np.ndarray) else value for value in column]


def assert_same(workflow: nvt.Workflow, plan: TransformPlan, request: pd.DataFrame) -> None:
    with quiet_nvtabular():
        expected = workflow.transform(request.copy())
    actual = plan.run({name: request[name].to_numpy() for name in request})
    assert list(actual) == list(expected.columns)
    for name, column in actual.items():
        assert as_lists(column) == as_lists(expected[name]), name
        if not isinstance(column, Padded):
            assert column.dtype == expected[name].dtype


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_a_plan_equals_nvtabular_on_joins_lists_thresholds_and_buckets(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    items = data.draw(st.lists(KEYS, min_size=1, max_size=8, unique=True), label="items")
    tags = data.draw(st.lists(st.lists(WORDS, max_size=4), min_size=len(items), max_size=len(items)), label="tags")
    tags[0] = [*tags[0], "x"]  # NVTabular cannot fit a vocabulary of nothing
    catalog = pd.DataFrame({"item": np.array(items, dtype=np.int64), "tags": tags})
    pairs = data.draw(st.lists(st.tuples(KEYS, KEYS | st.sampled_from(items)), min_size=1, max_size=30), label="rows")
    rows = pd.DataFrame([*pairs, (0, items[0])], columns=["user", "item"], dtype=np.int64)
    threshold = data.draw(st.integers(0, 3), label="threshold")
    buckets = data.draw(st.sampled_from([0, 2, 5]), label="buckets")
    with quiet_nvtabular():
        encode = (
            HashedCategorify(freq_threshold=threshold, num_buckets=buckets)
            if buckets
            else ops.Categorify(freq_threshold=threshold)
        )
        joined = ["item"] >> ops.JoinExternal(catalog, on=["item"])
        lists = joined["tags"] >> NullToEmptyList() >> ops.Categorify()
        workflow = fitted(nvt.Workflow((["user", "item"] >> encode) + lists), rows, tmp_path_factory.mktemp("workflow"))
    plan = compile_workflow(workflow)
    for _ in range(3):
        asked = data.draw(st.lists(st.tuples(KEYS, KEYS | st.sampled_from(items)), min_size=1, max_size=10))
        assert_same(workflow, plan, pd.DataFrame(asked, columns=["user", "item"], dtype=np.int64))
    assert_same(workflow, plan, rows)


ROWS = pd.DataFrame({"a": [1, 2, 2], "b": [1, 5, 5], "x": [0.5, 1.5, 2.5]})


def test_a_scalar_column_that_was_joined_is_encoded_with_null_for_unknown_keys(tmp_path: Path) -> None:
    catalog = pd.DataFrame({"a": [1, 2], "brand": ["p", "q"]})
    with quiet_nvtabular():
        joined = ["a"] >> ops.JoinExternal(catalog, on=["a"])
        workflow = fitted(nvt.Workflow(joined["brand"] >> ops.Categorify()), ROWS, tmp_path)
    assert_same(workflow, compile_workflow(workflow), pd.DataFrame({"a": [1, 2, 9]}))


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (
            lambda: ["x"] >> GreaterThan(1.0),
            r"operator GreaterThan \(columns \['x'\]\) has no compiled form. Available:",
        ),
        (lambda: ["a"] >> ops.Categorify(num_buckets=3), "row's position.*Use workflows.operators.HashedCategorify"),
        (lambda: [["a", "b"]] >> ops.Categorify(encode_type="joint"), "groups of columns"),
        (lambda: ["x"] >> ops.Categorify(), "'x' .*expected integer keys"),
        (lambda: ["a"] >> ops.JoinExternal(ROWS[["a", "x"]], on=["a"]), "keys are not unique"),
        (lambda: ["a", "b"] >> ops.JoinExternal(ROWS[:2], on=["a", "b"]), "left join on one column"),
        (lambda: ["a"] >> ops.JoinExternal(ROWS[:2][["a", "x"]], on=["a"]), "reaches the model unchanged"),
    ],
)
def test_what_cannot_be_compiled_is_refused_by_name(tmp_path: Path, graph: Any, message: str) -> None:
    with quiet_nvtabular():
        workflow = fitted(nvt.Workflow(graph()), ROWS, tmp_path)
    with pytest.raises(LoweringError, match=message):
        compile_workflow(workflow)
