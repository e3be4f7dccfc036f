"""What the compiled form of each operator owes: the bits that NVTabular gives for any request, or why there is none."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.workflows.core.errors import LoweringError
from rankline.workflows.nvt.compat import nvt
from rankline.workflows.plan import TransformPlan
from tests.oracles.lowering import EXAMPLES, assert_same, assert_zero_rows, fitted, requests, schema_only, training_rows
from tests.unit.workflows.compiler.operators import (
    test_categorical,
    test_continuous,
    test_joins,
    test_lists,
    test_own_operators,
)

FAMILIES = (test_categorical, test_continuous, test_joins, test_lists, test_own_operators)
# Where True, pandas may hold the same numbers in float64.
GRAPHS: dict[str, tuple[Any, bool]] = {
    f"{family.__name__.rpartition('test_')[2]}: {name}": given if isinstance(given, tuple) else (given, False)
    for family in FAMILIES
    for name, given in family.GRAPHS.items()
}
REFUSED = [refusal for family in FAMILIES for refusal in family.REFUSED]


@pytest.fixture(scope="module", params=GRAPHS)
def case(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[nvt.Workflow, TransformPlan, bool]:
    graph, widened = GRAPHS[request.param]
    return *fitted(tmp_path_factory.mktemp("workflow"), training_rows(), graph), widened


@EXAMPLES
@given(st.data())
def test_lowering_equals_nvtabular_bit_by_bit(
    case: tuple[nvt.Workflow, TransformPlan, bool], data: st.DataObject
) -> None:
    workflow, plan, widened = case
    request = data.draw(requests(workflow))
    if "maybe" in request and "maybe" in workflow.output_schema.column_names:
        assert_same(workflow, plan, request.assign(maybe=request["maybe"].fillna(1).astype("int64")), widened=widened)
    assert_same(workflow, plan, request, widened=widened)


def test_lowering_gives_rows_of_training_what_nvtabular_does(case: tuple[nvt.Workflow, TransformPlan, bool]) -> None:
    workflow, plan, widened = case
    assert_same(workflow, plan, training_rows()[workflow.input_schema.column_names], widened=widened)


def test_lowering_makes_zero_rows_of_zero_rows(case: tuple[nvt.Workflow, TransformPlan, bool]) -> None:
    assert_zero_rows(case[1])


@pytest.mark.parametrize(("graph", "message"), REFUSED)
def test_lowering_is_refused_by_name(graph: Any, message: str) -> None:
    with pytest.raises(LoweringError, match=message):
        schema_only(graph)
