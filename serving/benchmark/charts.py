"""Small line charts as SVG, and shares as bars. Colours are CSS classes s0 to s7, so the page says what they are."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from serving.benchmark.markup import Markup, tag

NUM_COLOURS = 8
_WIDTH, _HEIGHT = 420, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 24, 10, 44
_MOST_TICKS = 7
_CHARACTER_WIDTH = 7


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a chart.

    Attributes:
        name: for the legend.
        points: (x, y), x above 0. Where y is None or 0 the line has a gap.
        is_marked: each point has a mark of its own, which says its values when pointed at.
    """

    name: str
    points: Sequence[tuple[float, float | None]]
    is_marked: bool = True


def line_chart(title: str, lines: Sequence[Line], *, x_label: str, x_ticks: Mapping[float, str]) -> Markup:
    """Lines over two logarithmic scales, with a legend where there are several.

    Args:
        title: above it; ends with the unit of y.
        lines: at least one point of them has a y.
        x_label: of the axis.
        x_ticks: value → text, ascending; one that would cover the one before is left out.
    """
    xs = [x for line in lines for x, y in line.points if y] + list(x_ticks)
    ys = [y for line in lines for _, y in line.points if y]
    y_ticks = _ticks(min(ys), max(ys))
    x_at = _scale(min(xs), max(xs), _LEFT, _WIDTH - _RIGHT)
    y_at = _scale(y_ticks[0], y_ticks[-1], _HEIGHT - _BOTTOM, _TOP)
    grid = [
        part
        for value in _fewer(y_ticks)
        for part in (
            _line(_LEFT, y_at(value), _WIDTH - _RIGHT, y_at(value)),
            _text(_short(value), _LEFT - 6, y_at(value) + 4, "end"),
        )
    ]
    grid += [
        part
        for x, text in _apart((x_at(value), text) for value, text in x_ticks.items())
        for part in (
            _line(x, _TOP, x, _HEIGHT - _BOTTOM),
            _text(text, x, _HEIGHT - _BOTTOM + 16, "middle"),
        )
    ]
    drawn = [
        part
        for number, line in enumerate(lines)
        for part in _drawn(line, [(x_at(x), y_at(y) if y else None) for x, y in line.points], number % NUM_COLOURS)
    ]
    label = _text(x_label, (_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, "middle")
    names = [line.name for line in lines]
    picture = tag("svg", *grid, *drawn, label, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=title)
    return tag("figure", tag("figcaption", title), picture, legend(names) if len(lines) > 1 else Markup())


def share_bar(shares: Mapping[str, float]) -> Markup:
    """A bar cut in proportion to some figures; what is not above 0 has no part of it."""
    return tag(
        "div",
        *(
            tag("span", class_=f"s{number % NUM_COLOURS}", style=f"flex-grow:{value:.4f}", title=f"{name}: {value:.3f}")
            for number, (name, value) in enumerate(shares.items())
            if value > 0
        ),
        class_="bar",
    )


def legend(names: Sequence[str]) -> Markup:
    """Which colour is which."""
    return tag(
        "ul",
        *(tag("li", name, class_=f"s{number % NUM_COLOURS}") for number, name in enumerate(names)),
        class_="legend",
    )


def _drawn(line: Line, points: Sequence[tuple[float, float | None]], colour: int) -> list[Markup]:
    path, is_down = "", False
    for x, y in points:
        if y is not None:
            path += f"{'L' if is_down else 'M'}{x:.1f} {y:.1f}"
        is_down = y is not None
    marks = [
        tag("circle", tag("title", f"{line.name} {load:,.6g}: {value:,.6g}".strip()), cx=f"{x:.1f}", cy=f"{y:.1f}", r=3)
        for (load, value), (x, y) in zip(line.points, points, strict=True)
        if line.is_marked and y is not None
    ]
    return [tag("g", tag("path", d=path), *marks, class_=f"s{colour}")] if path else []


def _scale(low: float, high: float, begin: float, end: float) -> Callable[[float], float]:
    if low == high:
        low, high = low / 2, high * 2
    span = math.log(high / low)
    return lambda value: begin + (end - begin) * math.log(value / low) / span


def _ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, …: from the last that is not above `low` to the first that is above `high`."""
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    steps = [float(f"{digit}e{decade}") for decade in decades for digit in (1, 2, 5)]
    first = max(number for number, step in enumerate(steps) if step <= low)
    last = min(number for number, step in enumerate(steps) if step > high)
    return steps[first : last + 1]


def _fewer(ticks: Sequence[float]) -> Sequence[float]:
    return ticks if len(ticks) <= _MOST_TICKS else ticks[:: -(-len(ticks) // _MOST_TICKS)]


def _short(value: float) -> str:
    """2, 500, 20k, 5M."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _apart(ticks: Iterable[tuple[float, str]]) -> Iterator[tuple[float, str]]:
    """Those that do not cover the one before."""
    free = 0.0
    for x, text in ticks:
        half = _CHARACTER_WIDTH * (len(text) + 1) / 2
        if x - half >= free:
            yield x, text
            free = x + half


def _line(x1: float, y1: float, x2: float, y2: float) -> Markup:
    return tag("line", x1=f"{x1:.1f}", y1=f"{y1:.1f}", x2=f"{x2:.1f}", y2=f"{y2:.1f}")


def _text(text: str, x: float, y: float, anchor: str) -> Markup:
    return tag("text", text, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)
