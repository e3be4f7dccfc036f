"""Charts as inline SVG. Colors and fonts are classes in page.html, so charts follow the page's dark mode.

A chart is built from `Axis` objects and layers: `line`, `band`, `dots`, `bars`, `cells` and labels.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup, escape

WIDTH, HEIGHT = 520, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 36, 16, 42
_MAX_TICKS = 6
_NUM_COLORS = 6  # colors of page.html, used in turn
Points = Sequence[tuple[float, float]]


def plain(value: float) -> str:
    """Format with three significant digits, and a suffix for thousands and millions: 0.25, 120, 1.2k, 48k or 1.5M."""
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.3g}M"
    return f"{value / 1e3:.3g}k" if size >= 1e3 else f"{value:.3g}"


def percent(value: float) -> str:
    return f"{value:.0%}"


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A linear or logarithmic scale with ticks."""

    low: float
    high: float
    ticks: tuple[float, ...]
    title: str = ""
    is_log: bool = False
    text: Callable[[float], str] = plain

    @classmethod
    def linear(cls, values: Iterable[float], title: str = "", text: Callable[[float], str] = plain) -> "Axis":
        low, high = _ends(values)
        step = _nice((high - low) / (_MAX_TICKS - 2) or abs(high) or 1.0)
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
        high = max(high, low + step)
        ticks = tuple(low + number * step for number in range(round((high - low) / step) + 1))
        return cls(low=low, high=high, ticks=ticks, title=title, text=text)

    @classmethod
    def log(cls, values: Iterable[float], title: str = "", text: Callable[[float], str] = plain) -> "Axis":
        """Build an axis over the positive values, with ticks at 1, 2 and 5 times powers of ten, thinned out."""
        low, high = _ends(value for value in values if value > 0)
        low, high = (low / 2, high * 2) if low == high else (low, high)
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for factors in ((1, 2, 5), (1, 3), (1,)):
            ticks = [factor * 10.0**power for power in powers for factor in factors]
            shown = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
            if len(shown) <= _MAX_TICKS:
                break
        step = -(-len(shown) // _MAX_TICKS) or 1
        return cls(low=low, high=high, ticks=tuple(shown[::step]), title=title, is_log=True, text=text)

    def at(self, *ticks: float) -> "Axis":
        """Return the axis with ticks at these values, thinned out so that their labels do not overlap."""
        shown: list[float] = []
        for tick in sorted(ticks):
            if not shown or self.share(tick) - self.share(shown[-1]) >= 0.98 / (_MAX_TICKS + 1):
                shown.append(tick)
        return replace(self, ticks=tuple(shown))

    def share(self, value: float) -> float:
        """Return the position of a value along the axis, 0 to 1."""
        if self.is_log:
            return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def _ends(values: Iterable[float]) -> tuple[float, float]:
    finite = [value for value in values if math.isfinite(value)]
    return (min(finite), max(finite)) if finite else (0.0, 1.0)


def _nice(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next((factor * power for factor in (1, 2, 2.5, 5) if factor * power >= step * 0.999), 10 * power)


class Chart:
    """An SVG drawing with two axes, to which layers are added in drawing order."""

    def __init__(self, x: Axis, y: Axis, label: str, *, height: int = HEIGHT, left: int = _LEFT) -> None:
        self._x, self._y, self._label, self._height, self._left = x, y, label, height, left
        self._parts: list[str] = []
        bottom = height - _BOTTOM
        for tick in y.ticks:
            row = self.row(tick)
            self._parts.append(f'<path class="g" d="M{left} {row:.1f}H{WIDTH - _RIGHT}"/>')
            self._text(left - 8, row + 4, y.text(tick), "t", "end")
        for tick in x.ticks:
            self._text(self.column(tick), bottom + 18, x.text(tick), "t", "middle")
        self._text((left + WIDTH - _RIGHT) / 2, height - 4, x.title, "t", "middle")

    def column(self, value: float) -> float:
        return self._left + self._x.share(value) * (WIDTH - _RIGHT - self._left)

    def row(self, value: float) -> float:
        return self._height - _BOTTOM - self._y.share(value) * (self._height - _BOTTOM - _TOP)

    def line(self, points: Points, color: int = 0, *, kind: str = "") -> None:
        """Draw a line through the finite points. `kind` is a CSS class: "thin" or "dashed"."""
        self._parts.append(f'<path class="l c{color % _NUM_COLORS} {kind}" d="{self._path(points)}"/>')

    def band(self, lower: Points, upper: Points, color: int = 0) -> None:
        outline = self._path([*lower, *reversed(upper)])
        self._parts.append(f'<path class="a c{color % _NUM_COLORS}" d="{outline}Z"/>')

    def area(self, points: Points, color: int = 0) -> None:
        self.band([(x, self._y.low) for x, _ in points], points, color)

    def dots(self, points: Points, titles: Iterable[str], color: int = 0) -> None:
        """Draw points with titles, which browsers show on hover."""
        for (x, y), title in zip(points, titles, strict=True):
            if math.isfinite(y):
                at = f'cx="{self.column(x):.1f}" cy="{self.row(y):.1f}"'
                self._parts.append(
                    f'<circle class="d c{color % _NUM_COLORS}" {at} r="4"><title>{escape(title)}</title></circle>'
                )

    def whiskers(self, points: Points, bounds: Iterable[tuple[float, float]], color: int = 0) -> None:
        """Draw vertical confidence intervals."""
        lines = "".join(
            f"M{self.column(x):.1f} {self.row(low):.1f}V{self.row(high):.1f}"
            for (x, _), (low, high) in zip(points, bounds, strict=True)
            if math.isfinite(low + high)
        )
        self._parts.append(f'<path class="l thin c{color % _NUM_COLORS}" d="{lines}"/>')

    def bars(self, edges: Sequence[float], heights: Sequence[float], color: int = 0) -> None:
        """Draw a histogram: one bar between each pair of consecutive edges."""
        floor = self.row(self._y.low)
        path = "".join(
            f"M{self.column(low):.1f} {floor:.1f}V{self.row(height):.1f}H{self.column(high) - 0.8:.1f}V{floor:.1f}z"
            for low, high, height in zip(edges, edges[1:], heights, strict=False)
            if height > 0
        )
        self._parts.append(f'<path class="bar c{color % _NUM_COLORS}" d="{path}"/>')

    def cells(self, x_edges: Sequence[float], y_edges: Sequence[float], shares: Sequence[Sequence[float]]) -> None:
        """Draw a heat map. `shares` has one row per y interval, with values from 0 to 1."""
        for level in range(1, 6):
            path = "".join(
                f"M{self.column(x_edges[i]):.1f} {self.row(y_edges[j]):.1f}"
                f"H{self.column(x_edges[i + 1]):.1f}V{self.row(y_edges[j + 1]):.1f}H{self.column(x_edges[i]):.1f}z"
                for j, row in enumerate(shares)
                for i, share in enumerate(row)
                if math.ceil(share * 5) == level
            )
            if path:
                self._parts.append(f'<path class="f0 h{level}" d="{path}"/>')

    def mark(self, value: float, text: str, level: int = 0) -> None:
        """Draw a dashed vertical line with a label at the top. `level` moves the label down by a line each."""
        column = self.column(value)
        self._parts.append(f'<path class="m" d="M{column:.1f} {_TOP}V{self._height - _BOTTOM}"/>')
        is_right = column > WIDTH * 0.6
        self._text(column + (-6 if is_right else 6), _TOP + 12 + 18 * level, text, "b", "end" if is_right else "start")

    def number(self, x: float, y: float, text: str, *, is_light: bool) -> None:
        """Write a number onto a point. On a dark cell it has to be light."""
        self._text(self.column(x), self.row(y) + 4, text, "w" if is_light else "b", "middle")

    def label(self, x: float, y: float, text: str, color: int = 0, *, is_above: bool = True) -> None:
        """Write a direct label next to a point, kept inside the drawing."""
        column, row = self.column(x), self.row(y) + (-10 if is_above else 20)
        share = (column - self._left) / (WIDTH - self._left)
        anchor = "start" if share < 0.15 else "end" if share > 0.85 else "middle"
        self._text(
            column, min(max(row, _TOP + 10), self._height - _BOTTOM - 6), text, f"b f{color % _NUM_COLORS}", anchor
        )

    def figure(self, text: str, below: str) -> None:
        """Write a large figure into the lower right part of the drawing."""
        self._text(WIDTH - 40, self._height - 100, text, "big f0", "end")
        self._text(WIDTH - 40, self._height - 80, below, "t", "end")

    def svg(self) -> Markup:
        box = f'viewBox="0 0 {WIDTH} {self._height}" role="img" aria-label="{escape(self._label)}"'
        return Markup(f"<svg {box}>{''.join(self._parts)}</svg>")

    def _text(self, x: float, y: float, text: str, kind: str, anchor: str) -> None:
        if text:
            at = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
            self._parts.append(f'<text class="{kind}" {at}>{escape(text)}</text>')

    def _path(self, points: Points) -> str:
        shown = [f"{self.column(x):.1f} {self.row(y):.1f}" for x, y in points if math.isfinite(y)]
        return f"M{'L'.join(shown)}" if shown else ""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """One line of a forest plot: a value with its confidence interval. `color` is 0 unless better or worse."""

    name: str
    value: float
    low: float
    high: float
    text: str
    color: int = 0


def forest(intervals: Sequence[Interval], *, zero: float | None, label: str, text: Callable[[float], str]) -> Markup:
    """Draw intervals below each other on one scale, with a line at `zero`."""
    ends = [end for one in intervals for end in (one.low, one.high, one.value)]
    axis = Axis.linear([*ends, *([] if zero is None else [zero])], text=text)
    heights = range(len(intervals), 0, -1)
    rows = Axis(low=0.3, high=len(intervals) + 0.7, ticks=())
    chart = Chart(axis, rows, label, height=_TOP + _BOTTOM + 46 * len(intervals), left=_RIGHT)
    if zero is not None:
        chart.mark(zero, "")
    for row, one in zip(heights, intervals, strict=True):
        chart.line([(one.low, row), (one.high, row)], one.color)
        chart.dots([(one.value, row)], [f"{one.name}: {one.text}"], one.color)
        chart.label((axis.low + axis.high) / 2, row, f"{one.name}  {one.text}", one.color)
    return chart.svg()
