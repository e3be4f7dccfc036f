import pytest

from rankline.workflows.core.formatting import listed, quality_figure, quality_interval


@pytest.mark.parametrize(
    ("value", "sign", "text"),
    [(0.81234, "", "0.8123"), (-0.25, "+", "-0.2500"), (95258.1025, "", "95,258.1"), (120.5, "+", "+120.5")],
)
def test_a_metric_has_the_digits_that_are_read(value: float, sign: str, text: str) -> None:
    assert quality_figure(value, sign) == text


def test_where_a_change_lies_has_signs() -> None:
    assert quality_interval(-0.001, 0.003) == "-0.0010 to +0.0030"


def test_the_first_few_are_listed() -> None:
    assert listed(["a", "b"], 2) == "a, b"
    assert listed(["a", "b", "c", "d"], 2, "; ") == "a; b and 2 more"
