"""How long-running work reports its progress, without knowing who listens."""

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


class _Silent:
    def update(self, done: float, total: float, note: str = "") -> None:
        """Drop the report."""


SILENT: Progress = _Silent()
