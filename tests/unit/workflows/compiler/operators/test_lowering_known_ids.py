from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.workflows.core.errors import LoweringError
from rankline.workflows.nvt.compat import nvt, ops
from rankline.workflows.nvt.operators import KnownIds, NullToEmptyList, SameLengths
from rankline.workflows.plan import TransformPlan
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

GRAPHS = {
    "single ids": lambda: ["key", "small", "narrow"] >> KnownIds({"key": 5, "small": 1, "narrow": 2**40}),
    "ids that may be missing": lambda: ["maybe"] >> KnownIds({"maybe": 3}),
    "features of one history": lambda: (
        (["keys"] >> NullToEmptyList() >> ops.ListSlice(-3)) + (["floats"] >> NullToEmptyList()) >> SameLengths("keys")
    ),
    "the latest ids": lambda: ["keys"] >> NullToEmptyList() >> ops.ListSlice(-2) >> KnownIds({"keys": 4}),
}


@pytest.fixture(scope="module", params=GRAPHS)
def case(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[nvt.Workflow, TransformPlan]:
    return fitted(tmp_path_factory.mktemp("workflow"), training_rows(), GRAPHS[request.param])


@EXAMPLES
@given(st.data())
def test_known_ids_equal_nvtabular(case: tuple[nvt.Workflow, TransformPlan], data: st.DataObject) -> None:
    workflow, plan = case
    assert_same(workflow, plan, data.draw(requests(workflow)))


def test_zero_rows(case: tuple[nvt.Workflow, TransformPlan]) -> None:
    assert_zero_rows(case[1])


def test_ids_out_of_range_become_padding(tmp_path: Any) -> None:
    _, plan = fitted(tmp_path, training_rows(), GRAPHS["the latest ids"])
    request = pd.DataFrame({"keys": pd.Series([[1, 2, 3], [4, -1], [0], None], dtype=object)})
    assert [row.tolist() for row in served(plan, request)["keys"]] == [[2, 3], [0, 0], [0], []]


def test_all_features_of_a_history_are_as_long_as_the_first(tmp_path: Any) -> None:
    _, plan = fitted(tmp_path, training_rows(), GRAPHS["features of one history"])
    keys = [[1, 2, 3, 4], [5], [], [6, 7], None, [8]]
    floats = [[0.5, 1.5, 2.5, 3.5], [4.5, 5.5], [6.5], [7.5], [8.5], None]
    request = pd.DataFrame({"keys": pd.Series(keys, dtype=object), "floats": pd.Series(floats, dtype=object)})
    answer = {name: [row.tolist() for row in rows] for name, rows in served(plan, request).items()}
    assert answer["keys"] == [[2, 3, 4], [5], [], [6, 7], [], [8]]
    assert answer["floats"] == [[1.5, 2.5, 3.5], [5.5], [], [0.0, 7.5], [], [0.0]]
    alike = pd.DataFrame({"keys": pd.Series([[1], []], dtype=object), "floats": pd.Series([[2.0], []], dtype=object)})
    assert [row.tolist() for row in served(plan, alike)["floats"]] == [[2.0], []]


def test_missing_id_is_padding_whatever_stands_for_it() -> None:
    frame = pd.DataFrame({"a": [1.0, np.nan, 9.0], "b": pd.Series([2, None, 3], dtype=object)})
    made = KnownIds({"a": 5, "b": 3}).transform(nvt.ColumnSelector(["a", "b"]), frame)
    assert made.to_dict("list") == {"a": [1, 0, 0], "b": [2, 0, 0]}
    assert {dtype.name for dtype in made.dtypes} == {"int64"}


def test_lists_to_go_by_must_be_selected() -> None:
    with pytest.raises(LoweringError, match=r"SameLengths on \['floats'\]: 'keys' is not among them"):
        schema_only(lambda: ["floats"] >> SameLengths("keys"))


def test_strings_are_no_ids() -> None:
    with pytest.raises(LoweringError, match="KnownIds on 'word': it holds strings, expected numbers"):
        schema_only(lambda: ["word"] >> KnownIds({"word": 2}))
