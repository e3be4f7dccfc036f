"""Padded histories as lists of their ids alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankline.training.data.loader.columns import from_arrow
from rankline.training.data.spec_files import Rows
from rankline.workflows.core.errors import DataError
from rankline.workflows.schema.ragged import Ragged, arrow_lists, offsets_of


def trimmed(rows: Rows, histories: Sequence[str], negatives: Sequence[str]) -> dict[str, pa.ListArray]:
    """Cut the zeros off both ends of each history.

    Args:
        rows: the rows.
        histories: list columns of the features of one history, which go together item by item.
        negatives: those of items that were not chosen; of as many as the history has, or of none.
    """
    made: dict[str, _Trimmed] = {}
    for names in (histories, negatives):
        for name in names:
            made[name] = _Trimmed.of(rows, name)
            made[name].check_like(made[names[0]])
    if histories and negatives:
        made[negatives[0]].check_like(made[histories[0]], or_empty=True)
    return {name: column.lists for name, column in made.items()}


@dataclass(frozen=True, kw_only=True)
class _Trimmed:
    """One column: row i had `before[i]` values, of which `lengths[i]` are left, beginning with number `first[i]`."""

    name: str
    origin: tuple[Path, int]
    values: npt.NDArray[np.int64]
    before: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]

    @classmethod
    def of(cls, rows: Rows, name: str) -> "_Trimmed":
        """The ids of a column that are not padding."""
        column = from_arrow(rows.table[name])
        assert isinstance(column, Ragged)
        offsets = column.offsets.astype(np.int64)
        places = np.flatnonzero(column.values)
        bounds = np.searchsorted(places, offsets)  # row i has the places from bounds[i] up to bounds[i + 1]
        lengths = np.diff(bounds)
        first, last = np.zeros_like(lengths), np.full_like(lengths, -1)
        full = lengths > 0
        first[full] = places[bounds[:-1][full]] - offsets[:-1][full]
        last[full] = places[bounds[1:][full] - 1] - offsets[:-1][full]
        made = cls(
            name=name,
            origin=rows.origins[name],
            values=column.values[places].astype(np.int64, copy=False),
            before=np.diff(offsets),
            first=first,
            lengths=lengths,
        )
        made._refuse(last - first + 1 != lengths, lambda _: "has a 0 between ids, and 0 is padding")
        return made

    @property
    def lists(self) -> pa.ListArray:
        return arrow_lists(self.values, offsets_of(self.lengths))

    def check_like(self, other: "_Trimmed", *, or_empty: bool = False) -> None:
        """Refuse a row that has other items than another column has there."""
        differ = self.lengths != other.lengths
        if or_empty:
            differ &= self.lengths > 0
        self._refuse(
            differ,
            lambda row: (
                f"has {self.lengths[row]} ids and {other.name!r} has {other.lengths[row]}, expected as many in both"
            ),
        )
        shifted = (self.before == other.before) & (self.first != other.first) & (self.lengths > 0)
        self._refuse(shifted, lambda _: f"and {other.name!r} have their padding at different ends")

    def _refuse(self, wrong: npt.NDArray[np.bool_], reason: Callable[[int], str]) -> None:
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            path, start = self.origin
            raise DataError(f"{path}: row {start + row + 1}: {self.name!r} {reason(row)}. Correct the row, or drop it.")
