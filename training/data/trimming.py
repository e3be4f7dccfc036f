"""Removal of padding from histories."""

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
    """Remove the zeros at both ends of each history.

    Args:
        histories: list columns with the features of one history, which correspond item by item.
        negatives: list columns of items that were not chosen, as many as the history has or none.
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
    """A trimmed column: row i had `before[i]` values and keeps `lengths[i]`, starting at index `first[i]`."""

    name: str
    origin: tuple[Path, int]
    values: npt.NDArray[np.int64]
    before: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]

    @classmethod
    def of(cls, rows: Rows, name: str) -> "_Trimmed":
        column = from_arrow(rows.table[name])
        assert isinstance(column, Ragged)
        offsets = column.offsets.astype(np.int64)
        places = np.flatnonzero(column.values)
        bounds = np.searchsorted(places, offsets)  # row i has places[bounds[i] : bounds[i + 1]]
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
        """Raise if a row has another number of ids, or padding at another end, than in the other column."""
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
