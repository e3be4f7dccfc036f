"""The output of every dataset reader: interactions, a catalog, and counts of dropped rows."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankline.workflows.core.errors import DataError
from rankline.workflows.core.formatting import listed
from rankline.workflows.nvt.keys import sorted_distinct
from rankline.workflows.storage.artifacts import sha256_of

Batches = Callable[[], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Consecutive rows that any process can read from the files without reading the preceding rows."""

    num_rows: int
    batches: Batches  # opens the rows, see `StreamedRows`; picklable


@dataclass(frozen=True, kw_only=True)
class StreamedRows:
    """Rows in files that may exceed memory. They are read again on each use, from the oldest period to the newest.

    The batches have bounded size, and none spans two periods. Opening them raises DataError, with file and line number,
    if a line is not a row.
    """

    schema: pa.Schema  # schema of the batches
    periods: tuple[int, ...]  # number of rows in each period, such as a day, oldest first
    batches: Batches  # opens the rows
    shards: tuple[Shard, ...] = ()  # the same rows in independently readable shards, if the files allow it

    def __len__(self) -> int:
        return sum(self.periods)


@dataclass(frozen=True, kw_only=True)
class RawData:
    """A dataset as read from disk, before splitting and encoding."""

    rows: pa.Table | StreamedRows  # one row per interaction, in file order
    catalog: pa.Table | None = None  # one row per item; None if the rows have no item ids
    dropped: Mapping[str, int] = field(default_factory=dict)  # reason → number of rows excluded from `rows`
    noticed: Mapping[str, int] = field(default_factory=dict)  # remark → number of rows that it applies to
    fingerprint: str  # SHA-256 over the source files, see `fingerprint_of`

    def check_columns(self, names: Iterable[str], dataset: str, needed_by: str) -> None:
        """Raise `DataError` if the rows lack one of the columns that a part of the dataset needs."""
        found = self.rows.schema.names
        if missing := [repr(name) for name in names if name not in found]:
            columns = listed(list(map(repr, found)), 20) or "none"
            raise DataError(
                f"the rows of {dataset} have no column {listed(missing, 5)}, expected by its {needed_by}. Their "
                f"columns are {columns}. Rename columns in the files, or change the dataset."
            )


def fingerprint_of(paths: Iterable[Path]) -> str:
    """Return a SHA-256 hash of the names and contents of `paths`, in the given order, independent of directories."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.name} {sha256_of(path)}\n".encode())
    return digest.hexdigest()


def latest_of_each_pair(
    first: pa.ChunkedArray, second: pa.ChunkedArray, timestamps: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Return a mask that keeps one row for each pair of ids in `first` and `second`.

    The latest row of a pair is kept; among equal timestamps, the last row. The ids are int64 without nulls. Duplicates
    are found by sorting one int64 per row; only the rows of duplicate pairs are examined further.
    """
    # Codes are int32, so a product of two fits an int64 whatever the ids are.
    first_codes, _ = _codes(first)
    second_codes, num_second = _codes(second)
    pairs = first_codes * num_second + second_codes
    keep = np.ones(len(pairs), dtype=np.bool_)
    in_order = np.sort(pairs, kind="stable")  # fast on presorted runs, as in files sorted by user
    repeated = sorted_distinct(in_order[1:][in_order[1:] == in_order[:-1]])
    if len(repeated):
        rows = np.flatnonzero(pc.is_in(pa.array(pairs), value_set=pa.array(repeated)))
        rows = rows[np.lexsort((rows, timestamps[rows], pairs[rows]))]
        superseded = pairs[rows[:-1]] == pairs[rows[1:]]
        keep[rows[:-1][superseded]] = False
    return keep


def _codes(ids: pa.ChunkedArray) -> tuple[npt.NDArray[np.int64], int]:
    encoded = ids.combine_chunks().dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)
