"""How long-running work reports its progress, without knowing who listens."""

from collections.abc import Callable
from typing import Protocol


class Progress(Protocol):
    """What a stage reports to. The command line draws it; `SILENT` drops it."""

    def update(self, done: float, total: float, note: str = "") -> None:
        """Report that `done` of `total` units are finished."""


class Part(Progress):
    """One of several equal parts of a stage."""

    def __init__(self, whole: Progress, number: int, of: int, says: Callable[[str], str]) -> None:
        self._whole, self._number, self._of, self._says = whole, number, of, says

    def update(self, done: float, total: float, note: str = "") -> None:
        self._whole.update(self._number + done / total, self._of, self._says(note))


class _Silent:
    def update(self, done: float, total: float, note: str = "") -> None:
        """Drop the report."""


SILENT: Progress = _Silent()
