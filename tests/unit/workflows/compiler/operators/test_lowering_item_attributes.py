from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.workflows.core.errors import LoweringError
from rankline.workflows.nvt.compat import nvt, ops
from rankline.workflows.nvt.operators import ItemAttributes, NullToEmptyList, SharedCategorify
from rankline.workflows.plan import Column, TransformPlan
from tests.oracles.lowering import (
    EXAMPLES,
    assert_same,
    assert_zero_rows,
    fitted,
    requests,
    schema_only,
    served,
    training_rows,
)

NUMBERED = pd.DataFrame(
    {
        "key": [1, 2, 3, 2**53 + 1, -(2**63), 0],
        "brand": ["p", None, "é", "p", "a\0", ""],
        "size": [5, 6, 7, 8, 9, 10],
        "cost": [1.5, np.nan, 2.5, -0.0, 1e300, 0.1],
    }
)
NAMED = NUMBERED.assign(key=["a", "é", "", "a\0", "long " * 40, "日本"]).rename(columns={"key": "word"})
SMALL = NUMBERED.iloc[:3].rename(columns={"key": "maybe"})


def named(**fill: Any) -> Any:
    return ["word", "words"] >> ItemAttributes(NAMED, "word", fill)


def numbered(**fill: Any) -> Any:
    return ["key", "keys"] >> ItemAttributes(NUMBERED, "key", fill)


GRAPHS = {
    "numbers": lambda: numbered(size=-1, cost=0.5),
    "strings, then ids": lambda: numbered(brand="none") >> SharedCategorify({"brands": "brand"}),
    "items are strings": lambda: named(brand="none") >> SharedCategorify({"brands": "brand"}),
    "numbers of strings": lambda: named(size=0),
    "numbers, then ids": lambda: named(size=0) >> SharedCategorify({"sizes": "size"}, freq_threshold=3, num_buckets=2),
    "an item that may be missing": lambda: ["maybe"] >> ItemAttributes(SMALL, "maybe", {"size": 0, "cost": 1}),
    "the latest only": lambda: (
        ["keys"] >> ops.ListSlice(-2) >> ItemAttributes(NUMBERED, "key", {"brand": "?"}) >> SharedCategorify({})
    ),
    "one vocabulary": lambda: ["key", "keys"] >> SharedCategorify({"keys": "key"}),
    "one vocabulary of strings": lambda: ["word", "words"] >> SharedCategorify({"words": "word"}),
    "one vocabulary, hashed": lambda: (
        ["word", "words"] >> SharedCategorify({"words": "word"}, freq_threshold=9, num_buckets=3)
    ),
}


@pytest.fixture(scope="module", params=GRAPHS)
def case(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[nvt.Workflow, TransformPlan]:
    return fitted(tmp_path_factory.mktemp("workflow"), training_rows(), GRAPHS[request.param])


@EXAMPLES
@given(st.data())
def test_attributes_and_shared_vocabularies_equal_nvtabular(
    case: tuple[nvt.Workflow, TransformPlan], data: st.DataObject
) -> None:
    workflow, plan = case
    assert_same(workflow, plan, data.draw(requests(workflow)))


def test_zero_rows(case: tuple[nvt.Workflow, TransformPlan]) -> None:
    assert_zero_rows(case[1])


def test_all_attributes_of_an_item_cost_one_lookup_with_their_ids_in_the_tables(tmp_path: Any) -> None:
    def graph() -> Any:
        ids = numbered(brand="none", size=0) >> SharedCategorify({"brands": "brand", "sizes": "size"})
        return ids + (numbered(cost=0.0) >> ops.Rename(postfix="_plain"))

    _, plan = fitted(tmp_path, training_rows(), graph)
    assert [column.name for column in plan.columns if isinstance(column, Column)] == [
        "brand", "size", "brands", "sizes", "cost_plain", "costs_plain",
    ]  # fmt: skip
    assert [index.input for index in plan.indexes].count("key") <= 2  # one for each operator
    assert plan.steps == ()


def test_missing_history_has_no_attributes(tmp_path: Any) -> None:
    request = pd.DataFrame({"keys": pd.Series([[1, 77], None], dtype=object)})
    _, plan = fitted(
        tmp_path,
        training_rows(),
        lambda: ["keys"] >> NullToEmptyList() >> ItemAttributes(NUMBERED, "key", {"size": -1}),
    )
    assert [row.tolist() for row in served(plan, request)["sizes"]] == [[5, -1], []]


def test_items_of_another_type_are_refused() -> None:
    with pytest.raises(LoweringError, match="ItemAttributes on 'word': column is object, known keys are int64"):
        schema_only(lambda: ["word"] >> ItemAttributes(NUMBERED.rename(columns={"key": "word"}), "word", {"size": 0}))
