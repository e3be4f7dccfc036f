"""Figures, lists and numbered names as people read them."""

import re
from collections.abc import Sequence

_LARGE = 100  # errors of a regression, of which nobody reads four decimals


def quality_figure(value: float, sign: str = "") -> str:
    """A metric of a model, such as 0.8123 or 95,258.1; `sign` is "+" for a change."""
    return f"{value:{sign}.4f}" if abs(value) < _LARGE else f"{value:{sign},.6g}"


def quality_interval(low: float, high: float) -> str:
    """Where the change of a metric lies, such as +0.0010 to +0.0030."""
    return f"{quality_figure(low, '+')} to {quality_figure(high, '+')}"


def listed(texts: Sequence[str], most: int, separator: str = ", ") -> str:
    """The first few of some texts, and how many there are besides."""
    return separator.join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def natural_order(name: str) -> tuple[list[str | int], str]:
    """Sort key that compares the numbers in names by value: part_2 comes before part_10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)], name
