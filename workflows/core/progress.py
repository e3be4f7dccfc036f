from collections.abc import Callable
from typing import Protocol


class Progress(Protocol):
    """Receives progress reports. The command line draws them; `SILENT` drops them."""

    def update(self, done: float, total: float, note: str = "") -> None:
        """Report that `done` of `total` units are finished."""


class Part(Progress):
    def __init__(self, whole: Progress, number: int, of: int, says: Callable[[str], str]) -> None:
        self._whole, self._number, self._of, self._says = whole, number, of, says

    def update(self, done: float, total: float, note: str = "") -> None:
        self._whole.update(self._number + done / total, self._of, self._says(note))


class _Silent:
    def update(self, done: float, total: float, note: str = "") -> None:
        pass


SILENT: Progress = _Silent()
