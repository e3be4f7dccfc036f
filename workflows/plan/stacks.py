"""Support for plans with stacks, which are groups of columns with the same steps and shared arrays.

Only earlier releases wrote such plans. A stack becomes a chain of steps for each column; the arrays stay memory-mapped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankline.workflows.nvt.keys import bucket_of, hash_ids
from rankline.workflows.plan.columns import Vector, is_missing
from rankline.workflows.plan.key_index import as_words, positions_of
from rankline.workflows.plan.steps import Arithmetic, Bucket, Step


@dataclass(frozen=True, kw_only=True)
class StackedArithmetic:
    """A step that applies a binary NumPy function to each column and its operand in `operands`, [num_columns, 1]."""

    function: str
    operands: NDArray[Any]

    def of_column(self, number: int) -> Step:
        return Arithmetic(function=self.function, operand=self.operands[number, 0].item())


@dataclass(frozen=True, kw_only=True)
class StackedBucket:
    """A step that hashes each value to a bucket. `num_buckets` has the shape [num_columns, 1]."""

    num_buckets: NDArray[np.uint64]

    def of_column(self, number: int) -> Step:
        return Bucket(num_buckets=int(self.num_buckets[number, 0]))


@dataclass(frozen=True, kw_only=True)
class StackedLookup:
    """A step that looks up numbers in a hash table. Its arrays are concatenated over all columns."""

    hashes: NDArray[np.uint64]  # see `KeyIndex`; positions restart at 0 in each column
    values: NDArray[Any]  # table value for each hash
    starts: NDArray[np.int32]
    shifts: NDArray[np.uint64]  # unused; implied by `starts`
    first_starts: NDArray[np.int64]  # [num_columns, 1], offsets of the columns in `starts`, and in `hashes`
    first_hashes: NDArray[np.int64]
    unknown: NDArray[Any]  # table values for unknown keys
    num_unknown: NDArray[np.uint64]  # uint64 [num_columns], number of values in `unknown` for each column
    first_unknown: NDArray[np.int64]  # int64 [num_columns], offset of each column in `unknown`
    missing: NDArray[Any]  # [num_columns, 1], table values for missing keys

    def of_column(self, number: int) -> Step:
        hashes, starts = (
            slice(*np.append(firsts.reshape(-1), end)[number : number + 2])
            for firsts, end in ((self.first_hashes, len(self.hashes)), (self.first_starts, len(self.starts)))
        )
        return HashLookup(
            hashes=self.hashes[hashes],
            values=self.values[hashes],
            starts=self.starts[starts],
            unknown=self.unknown[self.first_unknown[number] :][: int(self.num_unknown[number])],
            missing=self.missing[number, 0],
        )


@dataclass(frozen=True, kw_only=True)
class HashLookup(Step):
    hashes: NDArray[np.uint64]
    values: NDArray[Any]
    starts: NDArray[np.int32]
    unknown: NDArray[Any]
    missing: Any

    def _compute(self, keys: Vector) -> Vector:
        unknown = self.unknown.take(bucket_of(keys.values, len(self.unknown)))
        position = self._positions(keys)
        found = np.where(position < len(self.hashes) - 1, self.values.take(position), unknown)
        return Vector(np.where(is_missing(keys), self.missing, found))

    def is_unknown(self, keys: Vector) -> NDArray[np.bool_]:
        unknown: NDArray[np.bool_] = self._positions(keys) == len(self.hashes) - 1
        return unknown

    def _positions(self, keys: Vector) -> NDArray[np.intp]:
        return positions_of(hash_ids(as_words(keys.values)), self.hashes, self.starts)


@dataclass(frozen=True, kw_only=True)
class Stack:
    inputs: tuple[str, ...]
    steps: tuple[Step | StackedArithmetic | StackedBucket | StackedLookup, ...]

    def of_column(self, number: int) -> Sequence[Step]:
        return [step if isinstance(step, Step) else step.of_column(number) for step in self.steps]


@dataclass(frozen=True, kw_only=True)
class StackedColumn:
    name: str
    stack: int
    row: int
    dtype: str
