"""How long-running work reports its progress, without knowing who listens."""

from collections.abc import Callable
from typing import Protocol


class Progress(Protocol):
    """What a stage reports to. The command line draws it; `SILENT` drops it."""

    def update(self, done: float, total: float, note: str = "") -> None:
        """Report that `done` of `total` units are finished.

        Args:
            done: units finished so far.
            total: units in all.
            note: a few words shown beside the bar, e.g. a rate or a loss.
        """


class Part(Progress):
    """One of several equal parts of a stage.

    Args:
        whole: what the stage reports to.
        number: of the part, from 0 on.
        of: how many parts there are.
        says: what is shown of a part's own note.
    """

    def __init__(self, whole: Progress, number: int, of: int, says: Callable[[str], str]) -> None:
        self._whole, self._number, self._of, self._says = whole, number, of, says

    def update(self, done: float, total: float, note: str = "") -> None:
        """Report within this part."""
        self._whole.update(self._number + done / total, self._of, self._says(note))


class _Silent:
    def update(self, done: float, total: float, note: str = "") -> None:
        """Drop the report."""


SILENT: Progress = _Silent()
