"""Columns that go through the same steps, as the rows of one array.

A NumPy call takes about a microsecond however little it computes, and a request of one row has little to compute. So
columns whose steps differ in their constants only share the calls: 39 raw columns then cost hardly more than two.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from serving.plan.columns import Vector, is_missing, is_string, vector_of
from serving.plan.index import KeyIndex, as_words
from serving.plan.steps import FUNCTIONS, Step, check_function, numbers_of
from workflows.hashing import hash_ids, hash_values

_CELLS_AT_ONCE = 1 << 14  # of which arrays fit into a core's cache


@dataclass(frozen=True, kw_only=True)
class StackedArithmetic(Step):
    """A NumPy function of each column and its own number.

    Attributes:
        function: as in `Arithmetic`.
        operands: [num_columns, 1], of the columns' dtype.
    """

    function: str
    operands: NDArray[Any]

    def __post_init__(self) -> None:
        check_function(self.function)

    def _compute(self, columns: Vector) -> Vector:
        return Vector(FUNCTIONS[self.function](numbers_of(columns), self.operands))


@dataclass(frozen=True, kw_only=True)
class StackedBucket(Step):
    """Bucket of each value by its hash, int32; what is missing hashes to 0.

    Attributes:
        num_buckets: uint64 [num_columns, 1].
    """

    num_buckets: NDArray[np.uint64]

    def _compute(self, columns: Vector) -> Vector:
        hashes = np.where(is_missing(columns), np.uint64(0), hash_values(columns.values))
        return Vector((hashes % self.num_buckets).astype(np.int32))


@dataclass(frozen=True, kw_only=True)
class StackedLookup(Step):
    """What tables hold at keys: a hashed `KeyIndex` of numbers and the table behind it, for each column.

    The arrays of all columns lie one after the other.

    Attributes:
        hashes: see `KeyIndex`.
        values: what the table holds at the row of each hash.
        starts: see `KeyIndex`; positions are counted anew in each column.
        shifts: uint64 [num_columns, 1], bits of a hash behind those that name its part.
        first_starts: int64 [num_columns, 1], where a column begins in `starts`.
        first_hashes: int64 [num_columns, 1], where it begins in `hashes` and `values`.
        unknown: what the tables hold for unknown keys.
        num_unknown: uint64 [num_columns], how many of them are a column's.
        first_unknown: int64 [num_columns], where it begins in `unknown`.
        missing: [num_columns, 1], what the tables hold for missing keys.
    """

    hashes: NDArray[np.uint64]
    values: NDArray[Any]
    starts: NDArray[np.int32]
    shifts: NDArray[np.uint64]
    first_starts: NDArray[np.int64]
    first_hashes: NDArray[np.int64]
    unknown: NDArray[Any]
    num_unknown: NDArray[np.uint64]
    first_unknown: NDArray[np.int64]
    missing: NDArray[Any]

    @classmethod
    def build(cls, indexes: Sequence[KeyIndex], tables: Sequence[NDArray[Any]]) -> "StackedLookup":
        """Join hashed indexes of numbers with their tables."""
        hashes, starts = _present([index.hashes for index in indexes]), _present([index.starts for index in indexes])
        pairs = list(zip(indexes, tables, strict=True))
        unknown = [table[: index.num_unknown] for index, table in pairs]
        return cls(
            hashes=np.concatenate(hashes),
            values=np.concatenate([table.take(index.rows) for index, table in pairs]),
            starts=np.concatenate(starts),
            shifts=np.array([[64 - ((len(part) - 1).bit_length() - 1)] for part in starts], dtype=np.uint64),
            first_starts=_firsts(starts).reshape(-1, 1),
            first_hashes=_firsts(hashes).reshape(-1, 1),
            unknown=np.concatenate(unknown),
            num_unknown=np.array([len(part) for part in unknown], dtype=np.uint64),
            first_unknown=_firsts(unknown),
            missing=np.array([[table[index.missing_row]] for index, table in pairs]),
        )

    def _compute(self, columns: Vector) -> Vector:
        keys: Any = columns.values
        hashes = hash_ids(as_words(keys))
        part = (hashes >> self.shifts).view(np.int64)
        part += self.first_starts
        position = self.starts.take(part) + self.first_hashes
        # A hash equals none beyond its own part, except by chance the one at the end, whose row is 0.
        found = self.hashes.take(position) == hashes
        made = self.values.take(position)
        missing = is_missing(columns)
        left = np.flatnonzero(~(found | missing))
        if len(left):
            column = left // keys.shape[1]
            ends = self.starts.take(part.reshape(-1)[left] + 1) + self.first_hashes.reshape(-1)[column]
            made.reshape(-1)[left] = self._further(
                keys.reshape(-1)[left], hashes.reshape(-1)[left], position.reshape(-1)[left] + 1, ends, column
            )
        return Vector(np.where(missing, self.missing, made))

    def _further(
        self,
        keys: NDArray[Any],
        hashes: NDArray[np.uint64],
        position: NDArray[np.int64],
        ends: NDArray[np.int64],
        column: NDArray[np.int64],
    ) -> NDArray[Any]:
        """What keys get whose hash is not the first one of its part: of a later one, or set aside for unknown keys."""
        bucket = (hash_values(keys) % self.num_unknown.take(column)).astype(np.int64)
        made = self.unknown.take(self.first_unknown.take(column) + bucket)
        left = np.flatnonzero(position < ends)
        while len(left):
            here = position[left]
            equal = self.hashes.take(here) == hashes[left]
            made[left[equal]] = self.values.take(here[equal])
            position[left] += 1
            left = left[~equal & (here + 1 < ends[left])]
        return made


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Raw columns of one dtype, and the steps that all of them go through.

    Attributes:
        inputs: the columns.
        steps: from the raw columns on; of strings, the first makes numbers.
    """

    inputs: tuple[str, ...]
    steps: tuple[Step, ...]

    def run(self, inputs: Mapping[str, NDArray[Any]], valid: Mapping[str, NDArray[np.bool_]]) -> Vector:
        """Compute [num_columns, num_rows].

        Args:
            inputs: checked arrays of raw columns, [num_rows].
            valid: masks of those in which something is missing.
        """
        arrays = [inputs[name] for name in self.inputs]
        masks = [valid.get(name) for name in self.inputs] if any(name in valid for name in self.inputs) else None
        num_rows = len(arrays[0])
        step = max(1, _CELLS_AT_ONCE // len(arrays))
        if num_rows <= step:
            return self._run(arrays, masks)
        parts = [
            self._run(
                [array[begin : begin + step] for array in arrays],
                masks and [mask if mask is None else mask[begin : begin + step] for mask in masks],
            )
            for begin in range(0, num_rows, step)
        ]
        masked = any(part.valid is not None for part in parts)
        return Vector(
            np.concatenate([part.values for part in parts], axis=1),
            np.concatenate([~is_missing(part) for part in parts], axis=1) if masked else None,
        )

    def _run(self, arrays: Sequence[NDArray[Any]], masks: Sequence[NDArray[np.bool_] | None] | None) -> Vector:
        shape = len(arrays), len(arrays[0])
        valid = (
            None
            if masks is None
            else np.concatenate([np.ones(shape[1], dtype=np.bool_) if mask is None else mask for mask in masks])
        )
        column: Any = vector_of(_joined(arrays), valid)
        steps = self.steps
        if is_string(column):
            column, steps = steps[0].run(column), steps[1:]
        column = Vector(column.values.reshape(shape), None if column.valid is None else column.valid.reshape(shape))
        for step in steps:
            column = step.run(column)
        return Vector(*column)


STACKED_STEPS: tuple[type[Step], ...] = (StackedArithmetic, StackedBucket, StackedLookup)


def _present(arrays: Sequence[NDArray[Any] | None]) -> list[NDArray[Any]]:
    present = [array for array in arrays if array is not None]
    if len(present) < len(arrays):
        raise ValueError("indexes by position cannot be stacked")
    return present


def _firsts(arrays: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    """Where each array begins in all of them."""
    return np.cumsum([0, *(len(array) for array in arrays[:-1])]).astype(np.int64)


def _joined(arrays: Sequence[Any]) -> Any:
    """Columns one after another: of numbers, or of strings, some of which may be Arrow's."""
    if not any(isinstance(array, pa.Array) for array in arrays):
        return np.concatenate(arrays)
    as_arrow = (a if isinstance(a, pa.Array) else pa.array(a, pa.large_binary(), from_pandas=True) for a in arrays)
    return pa.concat_arrays(as_arrow)
