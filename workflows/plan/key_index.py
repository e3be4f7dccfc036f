"""An index that maps keys to table rows, by position for dense integers and by hash for other keys. Its arrays can be
loaded without rebuilding.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rankline.workflows.nvt.keys import Values, bucket_of, hash_ids, hash_strings, sorted_distinct
from rankline.workflows.plan.columns import AnyColumn, Lists, Mask, Vector, mask_of

# Maximum slots per key in a dense index; sparser keys are hashed.
_DENSE_SLOTS_PER_KEY = 16
_DENSE_SLOTS_FREE = 1 << 20  # 8 MiB of slots, allowed for any number of keys
_MAX_SEEDS = 1 << 15


@dataclass(frozen=True, kw_only=True)
class KeyIndex:
    """An index that maps keys to table rows.

    Keys are integers, floats or strings. If integers are dense, a key is a position in `rows`. Otherwise the sorted
    hashes of the keys are divided into parts by their leading bits, with about one hash per part, and a key is compared
    with the hashes of its part. No two known keys share a hash: numbers are hashed by a bijection, strings with the
    first seed that avoids collisions. A string with a matching hash is also compared with the key itself. Row 0, the
    last of `rows` and in a dense index the first, is for unknown keys.
    """

    elementwise: ClassVar[bool] = True

    input: str | int  # raw column of the keys, or number of the earlier result that contains them
    num_unknown: int  # number of rows for unknown keys, which are distributed by hash; at least 1
    rows: NDArray[Any]  # row of each slot `key - origin`, or of each sorted hash
    missing_row: int = 0  # row of missing keys
    origin: int = 0  # key of the first slot of a dense index, one below the smallest known key
    hashes: NDArray[np.uint64] | None = None  # of the known keys, sorted, plus one sentinel; None if dense
    starts: NDArray[np.int32] | None = None  # position in `hashes` at which each part begins, and the end
    strings: pa.LargeBinaryArray | None = None  # known keys from row `num_unknown` on, if keys are strings
    seed: int = 0  # seed of the string hash

    @property
    def row_bounds(self) -> tuple[int, int]:
        """The first and last rows that keys may map to."""
        rows = [*((self.rows.min(), self.rows.max()) if self.rows.size else ()), self.missing_row, self.num_unknown - 1]
        return int(min(rows)), int(max(rows))

    @classmethod
    def build(cls, input_name: str | int, keys: Values, num_unknown: int = 1, missing_row: int = 0) -> "KeyIndex":
        """Build an index of distinct, non-missing keys, in which the i-th key maps to row `num_unknown + i`."""
        index = partial(cls, input=input_name, num_unknown=num_unknown, missing_row=missing_row)
        if isinstance(keys, pa.Array):
            seed, hashes = _hashes_apart(keys)
            return index(strings=keys, seed=seed, **_hashed(hashes, num_unknown))
        words = as_words(keys)
        first, last = (int(words.min()), int(words.max())) if len(words) else (0, -1)
        num_slots = last - first + 3
        if num_slots > len(words) * _DENSE_SLOTS_PER_KEY + _DENSE_SLOTS_FREE:
            return index(**_hashed(hash_ids(words), num_unknown))
        rows = np.zeros(num_slots, dtype=np.int64)
        rows[words - first + 1] = np.arange(num_unknown, num_unknown + len(words))
        origin = first - 1 if first > np.iinfo(np.int64).min else np.iinfo(np.int64).max  # wraps like differences
        return index(origin=origin, rows=rows)

    @property
    def inputs(self) -> tuple[str | int]:
        return (self.input,)

    def run(self, column: AnyColumn) -> AnyColumn:
        if isinstance(column, Lists):
            return column._replace(elements=Vector(self.rows_of(*column.elements)))
        return Vector(self.rows_of(*column))

    def rows_of(self, keys: Values, valid: Mask = None) -> NDArray[np.int64]:
        """Return the table row of each key as an int64 array of shape [num_rows]."""
        if isinstance(keys, pa.Array):
            rows = self._rows_of_strings(keys)
        else:
            if keys.dtype.kind == "f":
                valid = mask_of(~np.isnan(keys))
            words = as_words(keys)
            if self.hashes is None:
                # Keys outside the slots, including differences that wrap around, map to the first or last slot.
                rows = self.rows.take(words - np.int64(self.origin), mode="clip")
            else:
                rows = self._rows_of_hashes(hash_ids(words))
        if self.num_unknown > 1:
            unknown = np.flatnonzero(rows == 0)
            asked = keys.take(pa.array(unknown) if isinstance(keys, pa.Array) else unknown)
            rows[unknown] = bucket_of(asked, self.num_unknown)
        if valid is not None:
            rows[~valid] = self.missing_row
        return rows

    def _rows_of_hashes(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        assert self.hashes is not None
        assert self.starts is not None
        return self.rows.take(positions_of(hashes, self.hashes, self.starts)).astype(np.int64)

    def _rows_of_strings(self, strings: pa.LargeBinaryArray) -> NDArray[np.int64]:
        if self.strings is None or not len(self.strings):
            return np.zeros(len(strings), dtype=np.int64)
        rows = self._rows_of_hashes(hash_strings(strings, self.seed))
        known = self.strings.take(pa.array(np.maximum(rows - self.num_unknown, 0)))
        rows[~pc.equal(strings, known).to_numpy(zero_copy_only=False)] = 0
        return rows


def positions_of(asked: NDArray[np.uint64], hashes: NDArray[np.uint64], starts: NDArray[np.int32]) -> NDArray[np.intp]:
    """Return the position of each `asked` hash in `hashes`, or the last position for unknown hashes."""
    part = (asked >> np.uint64(65 - (len(starts) - 1).bit_length())).view(np.int64)
    position = starts.take(part)
    # A hash cannot match outside of its own part, except by chance the sentinel.
    found = hashes.take(position) == asked
    positions = np.where(found, position, len(hashes) - 1)
    position += 1
    left = np.flatnonzero(~found & (position < starts.take(part + 1)))
    while len(left):
        here = position[left]
        found = hashes.take(here) == asked[left]
        positions[left[found]] = here[found]
        position[left] += 1
        left = left[~found & (here + 1 < starts.take(part[left] + 1))]
    return positions


def as_words(keys: NDArray[Any]) -> NDArray[np.int64]:
    """Convert numeric keys of any shape to 64-bit words, one distinct word per key. 0.0 and -0.0 share a word."""
    if keys.dtype.kind == "f":
        return (keys.astype(np.float64) + 0.0).view(np.int64)
    return keys.astype(np.int64, copy=False)


def _hashed(hashes: NDArray[np.uint64], num_unknown: int) -> dict[str, Any]:
    """Return the `hashes`, `rows` and `starts` fields of a hashed `KeyIndex`."""
    order = np.argsort(hashes)
    bits = max(len(hashes) - 1, 1).bit_length()
    parts = hashes[order] >> np.uint64(64 - bits)
    starts = np.searchsorted(parts, np.arange((1 << bits) + 1, dtype=np.uint64)).astype(np.int32)
    rows = np.append(order + num_unknown, 0).astype(np.int32)
    return {"hashes": np.append(hashes[order], np.uint64(0)), "starts": starts, "rows": rows}


def _hashes_apart(keys: pa.LargeBinaryArray) -> tuple[int, NDArray[np.uint64]]:
    """Return the first seed that hashes the keys without collisions, and the hashes."""
    for seed in range(_MAX_SEEDS):
        hashes = hash_strings(keys, seed)
        if len(sorted_distinct(hashes)) == len(keys):
            return seed, hashes
    raise ValueError("string keys are not distinct")
