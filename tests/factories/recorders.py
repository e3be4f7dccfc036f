"""Recorders of progress and metrics, a clock that is set, and what is printed on a terminal."""

import io
from collections.abc import Callable, Mapping

from rich.console import Console


class ProgressRecord:
    """Remembers what was reported."""

    def __init__(self) -> None:
        self.reports: list[tuple[float, float, str]] = []

    def update(self, done: float, total: float, note: str = "") -> None:
        self.reports.append((done, total, note))


class MetricRecord:
    """Remembers what was logged."""

    def __init__(self) -> None:
        self.points: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        self.points.append((step, dict(metrics)))


class Clock:
    """Shows what it is set to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def printed(show: Callable[[Console], None], width: int = 80) -> str:
    file = io.StringIO()
    show(Console(file=file, width=width))
    return file.getvalue()
