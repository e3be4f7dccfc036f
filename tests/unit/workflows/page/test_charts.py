import math
import re

import pytest

from rankline.workflows.page.charts import HEIGHT, WIDTH, Axis, Chart, Interval, forest, plain
from tests.factories.pages import ParsedPage


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.25, "0.25"), (0, "0"), (1200, "1.2k"), (48_000, "48k"), (1_500_000, "1.5M"), (-48_000, "-48k")],
)
def test_ticks_are_written_for_people(value: float, text: str) -> None:
    assert plain(value) == text


@pytest.mark.parametrize("values", [[0.48, 0.61], [0, 1], [-3, 250_000], [5, 5], [1e-9, 3e-9], [0, 0], [], [math.nan]])
def test_linear_axis_covers_its_values_with_few_round_ticks(values: list[float]) -> None:
    axis = Axis.linear(values)
    for value in values:
        assert math.isnan(value) or axis.low <= value <= axis.high
    assert 2 <= len(axis.ticks) <= 7
    assert len({axis.text(tick) for tick in axis.ticks}) == len(axis.ticks)


@pytest.mark.parametrize("values", [[0.4, 20], [1, 16_384], [2060, 797_000], [3, 3], [1e-3, 1e6], [0.42, 0.45]])
def test_log_axis_has_its_values_and_few_ticks(values: list[float]) -> None:
    axis = Axis.log(values)
    assert [axis.share(axis.low), axis.share(axis.high)] == [0, 1]
    assert len(axis.ticks) <= 6


def test_ticks_that_would_overlap_are_left_out() -> None:
    loads = [1, 2, 3, 4, 100, 101]
    assert Axis.log(loads).at(*loads).ticks == (1, 2, 4, 100)


def test_chart_stays_inside_its_box_and_has_a_label() -> None:
    chart = Chart(Axis.linear([0, 1], "x"), Axis.linear([0, 9]), "a <chart>")
    chart.line([(0, 0), (0.5, math.nan), (1, 9)])
    chart.area([(0, 1), (1, 2)], 1)
    chart.dots([(1, 9)], ["a & b"])
    chart.whiskers([(0.5, 4)], [(3, 5)])
    chart.bars([0, 0.5, 1], [0, 9])
    chart.cells([0, 1], [0, 9], [[1.0]])
    chart.mark(0.9, "kept")
    for place in (0, 0.5, 1):
        chart.label(place, 9, "high")
    svg = str(chart.svg())
    page = ParsedPage(svg)
    assert ("aria-label", "a <chart>") in page.attributes
    assert "a & b" in page.text
    numbers = [
        tuple(map(float, pair)) for _, path in page.attributes for pair in re.findall(r"([\d.]+) ([\d.]+)", path)
    ]
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in numbers[1:])
    assert "nan" not in svg


def test_forest_draws_every_interval_on_one_scale() -> None:
    intervals = [Interval(name=f"part {n}", value=n, low=n - 1.0, high=n + 2.0, text=str(n)) for n in range(4)]
    text = ParsedPage(str(forest(intervals, zero=1.5, label="parts", text=plain))).text
    assert [name for name in ("part 0", "part 3") if name in text] == ["part 0", "part 3"]
