"""Labels: their heads, and what rows say of them."""

from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.workflows.core.errors import DataError, SpecError
from rankline.workflows.schema.label_stats import Labels
from rankline.workflows.schema.targets import BINARY, MULTICLASS, REGRESSION, Head, output_names
from rankline.workflows.schema.tensor_names import SCORE


@pytest.mark.parametrize(
    "head",
    [
        Head("click"),
        Head("price", REGRESSION, weight=0.25, mean=-1.5, deviation=3.0),
        Head("kind of thing?", MULTICLASS, classes=("a", "b c", "é")),
    ],
)
def test_plain_values_say_the_same(head: Head) -> None:
    assert Head.from_entry(head.entry()) == head


def test_single_binary_head_keeps_its_output_name() -> None:
    assert output_names([Head("click")]) == (SCORE,)
    assert output_names([Head("price", REGRESSION)]) == ("price",)
    assert output_names([Head("click"), Head("price", REGRESSION)]) == ("click", "price")


def test_output_is_as_wide_as_there_are_classes() -> None:
    assert [Head("a").width, Head("b", REGRESSION).width, Head("c", MULTICLASS, ("x", "y", "z")).width] == [1, 1, 3]


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"task": "ranking"}, "task is 'ranking', expected one of binary, regression, multiclass"),
        ({"task": MULTICLASS}, r"classes is \(\), expected 2 to 65,536 names"),
        ({"task": MULTICLASS, "classes": ("a", "b", "a")}, r"classes contains \['a'\] more than once"),
        ({"task": BINARY, "classes": ("a", "b")}, "expected none for binary"),
        ({"weight": float("nan")}, "weight is nan"),
    ],
)
def test_choices_that_do_not_go_together_are_refused(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=f"head 'y': .*{message}"):
        Head("y", **choices)


@pytest.mark.parametrize("entry", [{"task": BINARY}, "y", {"column": "y", "kind": 1}, {"column": "y", "weight": "1"}])
def test_file_that_says_something_else_is_refused(entry: Any) -> None:
    with pytest.raises(SpecError, match="head"):
        Head.from_entry(entry)


PRICE, KIND = Head("price", REGRESSION), Head("kind", MULTICLASS, classes=("a", "b", "c"))
PARTS = st.lists(st.lists(st.floats(-1e6, 1e6) | st.just(float("nan")), max_size=20), min_size=1, max_size=5)


@given(PARTS)
def test_parts_together_are_the_whole(parts: list[list[float]]) -> None:
    whole = Labels.of(PRICE, np.concatenate(list(map(np.asarray, parts))), may_lack=True)
    added = reduce(add, (Labels.of(PRICE, np.asarray(part, float), may_lack=True) for part in parts), Labels())
    assert added.num_rows == whole.num_rows
    assert added.mean == pytest.approx(whole.mean, rel=1e-9, abs=1e-6)
    assert added.squares == pytest.approx(whole.squares, rel=1e-9, abs=1e-3)


def test_regression_head_gets_mean_and_deviation() -> None:
    head = Labels.of(PRICE, np.array([1.0, 3.0, np.nan]), may_lack=True).fitted(PRICE)
    assert (head.mean, head.deviation) == (2.0, 1.0)
    assert Labels.of(KIND, np.array([0, 2]), may_lack=False).fitted(KIND) == KIND


@pytest.mark.parametrize(
    ("head", "labels", "message"),
    [
        (Head("y"), [0, 3, 4, 5, 6, 7], r"'y' is 3.0, 4.0, 5.0, … in some rows"),
        (Head("y"), [0, 1, np.nan], "'y' is missing in some rows, expected 0 or 1"),
        (KIND, [0, 1, 3], r"'kind' is 3.0 in some rows, expected 0 to 2. List all classes \(3 are listed\)"),
        (KIND, [-1, 0.5], r"'kind' is -1.0, 0.5 in some rows"),
        (PRICE, [1.0, np.inf], "'price' is inf in some rows, expected finite numbers"),
    ],
)
def test_label_of_another_task_is_refused(head: Head, labels: list[float], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Labels.of(head, np.asarray(labels, float), may_lack=False)


def test_label_may_be_missing_where_there_are_others() -> None:
    assert Labels.of(Head("y"), np.array([0, np.nan, 1]), may_lack=True).num_rows == 2


@pytest.mark.parametrize(
    ("head", "labels", "message"),
    [
        (Head("y"), [1, 1], r"every label in the valid split is 1\.0, but a model needs both classes"),
        (PRICE, [2.5, 2.5], r"label 'price' is 2\.5 in the whole"),
        (PRICE, [np.nan], "the valid split has a value for label 'price'"),
    ],
)
def test_split_that_shows_nothing_is_refused(head: Head, labels: list[float], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Labels.of(head, np.asarray(labels, float), may_lack=True).check_split(head, "valid")
