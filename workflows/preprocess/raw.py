"""What every dataset reader hands on: interactions, a catalogue, and an account of what was left out."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankline.workflows.nvt.kernels.distinct import sorted_distinct
from rankline.workflows.storage.artifacts import sha256_of

Batches = Callable[[], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Consecutive rows that can be read without those before, by any process that sees the files.

    Attributes:
        num_rows: how many.
        batches: opens them, see `StreamedRows`; can be pickled.
    """

    num_rows: int
    batches: Batches


@dataclass(frozen=True, kw_only=True)
class StreamedRows:
    """Rows of files that may be larger than memory, read whenever they are asked for.

    Attributes:
        schema: of the batches.
        periods: rows of each stretch of time, such as a day, oldest first.
        batches: opens the rows, from the oldest period to the latest, in batches of bounded size; a batch is of one
            period. Raises DataError, with file and line, where a line is not a row.
        shards: the same rows, where they can be read shard by shard, else nothing.
    """

    schema: pa.Schema
    periods: tuple[int, ...]
    batches: Batches
    shards: tuple[Shard, ...] = ()

    def __len__(self) -> int:
        return sum(self.periods)


@dataclass(frozen=True, kw_only=True)
class RawData:
    """A dataset as it was found on disk.

    Attributes:
        rows: one row per interaction, in file order.
        catalog: one row per item; None where the rows name no items.
        dropped: reason → number of rows left out of `rows`.
        noticed: remark → number of rows that it is true of; they are kept.
        fingerprint: SHA-256 over the source files, see `fingerprint_of`.
    """

    rows: pa.Table | StreamedRows
    catalog: pa.Table | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)
    noticed: Mapping[str, int] = field(default_factory=dict)
    fingerprint: str


def fingerprint_of(paths: Iterable[Path]) -> str:
    """SHA-256 over names and bytes of `paths`, in their order; the directory they lie in does not count."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.name} {sha256_of(path)}\n".encode())
    return digest.hexdigest()


def latest_of_each_pair(
    first: pa.ChunkedArray, second: pa.ChunkedArray, timestamps: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Mark the rows to keep so that each pair (first, second) occurs once.

    The latest row of a pair stays; at equal timestamps the last one. The search for duplicates is one sort of one
    int64 per row; only the rows of pairs that do occur twice are looked at again.

    Args:
        first: int64 ids without nulls, shape (num_rows,).
        second: int64 ids without nulls, shape (num_rows,).
        timestamps: shape (num_rows,).

    Returns:
        Mask of shape (num_rows,).
    """
    # Codes are int32, so the product of their numbers fits an int64 whatever the ids are.
    first_codes, _ = _codes(first)
    second_codes, num_second = _codes(second)
    pairs = first_codes * num_second + second_codes
    keep = np.ones(len(pairs), dtype=np.bool_)
    in_order = np.sort(pairs, kind="stable")  # quick on the runs that files sorted by user hold
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
