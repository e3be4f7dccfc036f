from typing import Any

import pytest

from rankline.workflows.core.errors import SpecError
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


def test_one_binary_head_keeps_the_name_of_its_output() -> None:
    assert output_names([Head("click")]) == (SCORE,)
    assert output_names([Head("price", REGRESSION)]) == ("price",)
    assert output_names([Head("click"), Head("price", REGRESSION)]) == ("click", "price")


def test_an_output_is_as_wide_as_there_are_classes() -> None:
    assert [Head("a").width, Head("b", REGRESSION).width, Head("c", MULTICLASS, ("x", "y", "z")).width] == [1, 1, 3]


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"task": "ranking"}, "task is 'ranking', expected one of binary, regression, multiclass"),
        ({"task": MULTICLASS}, r"classes is \(\), expected 2 to 65,536 names"),
        ({"task": MULTICLASS, "classes": ("a",)}, "expected 2 to 65,536 names"),
        ({"task": MULTICLASS, "classes": ("a", "b", "a")}, r"classes name \['a'\] more than once"),
        ({"task": BINARY, "classes": ("a", "b")}, "expected none, for binary"),
        ({"weight": 0.0}, "weight is 0.0, expected a finite number above 0"),
        ({"weight": float("nan")}, "weight is nan"),
        ({"mean": float("inf")}, "mean is inf"),
    ],
)
def test_choices_that_do_not_go_together_are_refused(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=f"head 'y': .*{message}"):
        Head("y", **choices)


@pytest.mark.parametrize("entry", [{"task": BINARY}, "y", {"column": "y", "kind": 1}, {"column": "y", "weight": "1"}])
def test_a_file_that_says_something_else_is_refused(entry: Any) -> None:
    with pytest.raises(SpecError, match="head"):
        Head.from_entry(entry)
