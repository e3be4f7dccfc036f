"""Columns that go through the same steps run together, and give what each alone gives."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from comparing import EXAMPLES, assert_same, assert_zero_rows, fitted, served, typed
from hypothesis import given
from hypothesis import strategies as st

from serving.compile import compile_workflow
from serving.plan import Column, StackedColumn, TransformPlan
from workflows.errors import RequestError
from workflows.operators import Categorify, Finite, HashedCategorify, HashShare, HexToInt
from workflows.upstream import nvt, ops

NUMBERS = [f"I{number}" for number in range(5)]
FLOATS = [f"F{number}" for number in range(4)]
CODES = [f"C{number}" for number in range(6)]
HEX = st.sampled_from(["68fd1e64", "0f", "0F", "a", "ffffffff", "no", "", None]) | st.from_regex(
    r"[0-9a-f]{8}", fullmatch=True
)
VALUES: dict[str, Any] = {
    **dict.fromkeys(NUMBERS, st.integers(-3, 1000) | st.sampled_from([2**31, 2**53, -(2**40)]) | st.none()),
    **dict.fromkeys(FLOATS, st.floats(width=32) | st.sampled_from([0.0, -0.0, 1.5])),
    **dict.fromkeys(CODES, HEX),
}
DTYPES = {**dict.fromkeys(NUMBERS, "float64"), **dict.fromkeys(FLOATS, "float32")}
NORMALIZED = [ops.FillMissing, lambda: ops.Clip(min_value=0), ops.LogOp, ops.Normalize, Finite]


def training_rows(num_rows: int = 200) -> pd.DataFrame:
    """Integers with nothing missing, so that a plan takes integers; codes whose vocabularies differ in size."""
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {name: rng.lognormal(2, 2, num_rows).astype(np.int64) for name in NUMBERS}
    columns |= {name: rng.normal(0, 3, num_rows).astype(np.float32) for name in FLOATS}
    for size, name in zip((3, 10, 30, 60, 100, 150), CODES, strict=True):
        codes = ["68fd1e64", "0f", None, *(f"{code:08x}" for code in rng.integers(0, 2**32, size))]
        columns[name] = [codes[i] for i in rng.integers(0, len(codes), num_rows)]
    return typed(columns, {**DTYPES, **dict.fromkeys(NUMBERS, "int64")})


def normalized(names: list[str]) -> Any:
    node: Any = names
    for make in NORMALIZED:
        node = node >> make()
    return node


GRAPHS: dict[str, Any] = {
    "criteo": lambda: normalized(NUMBERS) + (CODES >> HexToInt() >> Categorify()),
    "thresholds and buckets": lambda: (
        normalized(FLOATS) + (CODES >> HexToInt() >> HashedCategorify(num_buckets=3, freq_threshold=5))
    ),
    "hashed": lambda: (NUMBERS >> ops.FillMissing(7) >> ops.LogOp()) + (CODES >> HexToInt() >> HashShare(50)),
    "hex alone": lambda: CODES >> HexToInt(),
    "integers": lambda: NUMBERS >> ops.FillMissing(-1) >> ops.Clip(max_value=100),
}
NUM_STACKS = {"criteo": 2, "thresholds and buckets": 2, "hashed": 2, "hex alone": 1, "integers": 1}


@pytest.fixture(scope="module", params=GRAPHS)
def case(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[nvt.Workflow, TransformPlan, str]:
    workflow, plan = fitted(tmp_path_factory.mktemp("workflow"), training_rows(), GRAPHS[request.param])
    return workflow, plan, request.param


def test_all_columns_run_in_stacks(case: tuple[nvt.Workflow, TransformPlan, str]) -> None:
    _, plan, name = case
    assert (len(plan.stacks), plan.indexes, plan.steps) == (NUM_STACKS[name], (), ())
    assert {type(column) for column in plan.columns} == {StackedColumn}
    assert_zero_rows(plan)


@EXAMPLES
@given(st.data())
def test_stacks_equal_nvtabular(case: tuple[nvt.Workflow, TransformPlan, str], data: st.DataObject) -> None:
    workflow, plan, _ = case
    names = workflow.input_schema.column_names
    rows = data.draw(st.lists(st.tuples(*(VALUES[name] for name in names)), min_size=1, max_size=8))
    request = typed({name: [row[i] for row in rows] for i, name in enumerate(names)}, DTYPES)
    assert_same(workflow, plan, request, widened=True)


def test_rows_of_training_get_their_ids_however_many(case: tuple[nvt.Workflow, TransformPlan, str]) -> None:
    workflow, plan, _ = case
    assert_same(workflow, plan, training_rows()[workflow.input_schema.column_names])


def test_a_column_whose_steps_differ_runs_alone(tmp_path: Any) -> None:
    workflow, plan = fitted(
        tmp_path, training_rows(), lambda: normalized(NUMBERS) + (CODES[:4] >> Categorify()) + (["F0"] >> ops.LogOp())
    )
    assert [len(stack.inputs) for stack in plan.stacks] == [len(NUMBERS)]
    kinds = {column.name: type(column).__name__ for column in plan.columns}
    assert kinds == {**dict.fromkeys(NUMBERS, "StackedColumn"), **dict.fromkeys(CODES[:4], "Column"), "F0": "Computed"}
    assert Column in {type(column) for column in plan.columns}
    assert_same(workflow, plan, training_rows()[workflow.input_schema.column_names])


def test_large_integers_keep_their_last_bits_where_another_column_lacks_a_value(tmp_path: Any) -> None:
    """All of a stack are float64 then, so casts of integers that may be missing are not stacked."""
    _workflow, plan = fitted(tmp_path, training_rows(), lambda: NUMBERS >> ops.LogOp())
    assert plan.stacks == ()
    request = {name: np.array([2**53 + 1]) for name in NUMBERS}
    first = plan.run(request)["I0"]
    assert plan.run(request, {"I1": np.array([False])})["I0"] == first


def test_what_is_missing_is_named(tmp_path: Any) -> None:
    _workflow, plan = fitted(tmp_path, training_rows(), lambda: NUMBERS >> ops.Clip(min_value=0))
    request = {name: np.array([1, 2]) for name in NUMBERS}
    assert plan.run(request, {"I3": np.array([True, True])})["I3"].tolist() == [1, 2]
    with pytest.raises(RequestError, match="column 'I3' is missing, first in row 1"):
        plan.run(request, {"I3": np.array([True, False])})


def test_what_is_no_string_is_named(tmp_path: Any) -> None:
    _, plan = fitted(tmp_path, training_rows(), lambda: CODES >> HexToInt())
    request = {name: np.array([b"0f"], dtype=object) for name in CODES}
    assert {name: column.tolist() for name, column in plan.run(request).items()} == {key: [15.0] for key in CODES}
    with pytest.raises(RequestError, match="input 'C4' contains a non-string value"):
        plan.run(request | {"C4": np.array([3], dtype=object)})


def test_stacks_survive_saving(tmp_path: Any, case: tuple[nvt.Workflow, TransformPlan, str]) -> None:
    workflow, plan, _ = case
    compile_workflow(workflow).save(tmp_path / "again")
    again = TransformPlan.load(tmp_path / "again")
    rows = training_rows()[workflow.input_schema.column_names]
    np.testing.assert_equal(served(again, rows), served(plan, rows))
