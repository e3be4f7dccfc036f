"""Parts of times, and ids in the order of numbers: NVTabular against the plan, also where they are missing."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.workflows.nvt.compat import nvt, ops
from rankline.workflows.nvt.dates import PARTS
from rankline.workflows.nvt.operators import DateParts, OrderedCategorify
from rankline.workflows.plan import TransformPlan
from tests.oracles.lowering import EXAMPLES, assert_same, assert_zero_rows, fitted, requests, training_rows

GRAPHS: dict[str, Any] = {
    "parts": lambda: ["key", "maybe"] >> DateParts({"key": list(PARTS), "maybe": ["hour", "year"]}),
    "categories": lambda: (
        ["key", "maybe"] >> DateParts({"key": ["month"], "maybe": ["weekday"]}) >> OrderedCategorify()
    ),
    "numbers": lambda: ["key", "float", "flag", "word"] >> OrderedCategorify(freq_threshold=8),
    "scaled": lambda: ["key"] >> DateParts({"key": ["day_of_year"]}) >> ops.Normalize("float32") >> ops.FillMissing(0),
}


@pytest.fixture(scope="module", params=GRAPHS)
def case(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[nvt.Workflow, TransformPlan]:
    return fitted(tmp_path_factory.mktemp("workflow"), training_rows(), GRAPHS[request.param])


@EXAMPLES
@given(data=st.data())
def test_dates_and_ordered_ids_equal_nvtabular(case: tuple[nvt.Workflow, TransformPlan], data: st.DataObject) -> None:
    workflow, plan = case
    assert_same(workflow, plan, data.draw(requests(workflow)))


def test_no_rows_have_none(case: tuple[nvt.Workflow, TransformPlan]) -> None:
    assert_zero_rows(case[1])
