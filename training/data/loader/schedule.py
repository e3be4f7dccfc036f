"""The order of an epoch's rows and their division into worker shares, shuffle blocks and batches, computed without
reading files.

An epoch consists of all row groups in an order derived from (seed, epoch). Each worker (rank) takes a share of the rows
and divides it into shuffle blocks, each with rows of several row groups. The rows of a group are shuffled within the
group, while they are in the CPU caches; then every batch takes a proportional number of rows from each group of its
block. This mixes rows as well as shuffling the whole block, which would access main memory for every row.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.validation import MAX_SEED, check_at_least, check_choice

_ROWS_AT_ONCE = 32_768  # small batches are gathered together up to this many rows


class GroupRows(NamedTuple):
    """The rows from `start` to `stop` within a row group.

    Attributes:
        group: number of the row group.
        start, stop: range of rows in the group.
        rows_at_once: 0 to read the rows in one go. Otherwise the row group is too large for that and is streamed this
            many rows at a time, one read for each `GroupRows`.
        is_last: whether these are the last rows of the stream.
    """

    group: int
    start: int
    stop: int
    rows_at_once: int = 0
    is_last: bool = True

    @property
    def num_rows(self) -> int:
        return self.stop - self.start


class ShuffleBlock(NamedTuple):
    """Rows of several row groups that are held in memory and shuffled together."""

    rows: tuple[GroupRows, ...]

    @property
    def num_rows(self) -> int:
        return sum(rows.num_rows for rows in self.rows)


class BlockRows(NamedTuple):
    block: int
    start: int
    stop: int


class BatchRun(NamedTuple):
    """Batches that are gathered together from one shuffle block, or from several blocks if a batch crosses them.

    Attributes:
        batch: number of the first batch.
        rows: their rows, by block.
        cuts: start of each batch in these rows, and the end.
    """

    batch: int
    rows: tuple[BlockRows, ...]
    cuts: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        return self.cuts[-1]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The order of rows for one worker."""

    group_rows: tuple[int, ...]
    group_bytes: tuple[int, ...]
    batch_size: int
    shuffle: bool
    seed: int
    parts_per_chunk: int
    block_bytes: int
    drop_last: bool
    global_rank: int
    global_size: int
    pad: bool

    def __post_init__(self) -> None:
        check_choice(self, "shuffle", isinstance(self.shuffle, bool | np.bool_), "True or False")
        check_at_least(self, 1, "batch_size", "parts_per_chunk", "global_size")
        check_at_least(self, 0, "seed", "global_rank", maximum=MAX_SEED)
        if self.global_rank >= self.global_size:
            raise ConfigError(
                f"global_rank is {self.global_rank}, expected at least 0 and less than global_size "
                f"({self.global_size})."
            )
        fewest = self.total_rows if self.pad else self.total_rows // self.global_size
        if self.total_rows and fewest < max(1, self.num_batches):
            raise ConfigError(
                f"{self.total_rows} rows cannot be split into the same number of batches per worker (batch_size is "
                f"{self.batch_size}, global_size is {self.global_size}). Set pad=True, or use fewer "
                "workers."
            )

    # Cached because they are used several times per batch, and total_rows sums over all row groups.
    @cached_property
    def total_rows(self) -> int:
        return sum(self.group_rows)

    @cached_property
    def num_batches(self) -> int:
        if not self.drop_last:
            return _ceil(_ceil(self.total_rows, self.global_size), self.batch_size)
        fewest = _ceil(self.total_rows, self.global_size) if self.pad else self.total_rows // self.global_size
        return fewest // self.batch_size

    @cached_property
    def num_rows(self) -> int:
        start, stop = self._share()
        return self.num_batches * self.batch_size if self.drop_last else stop - start

    def first_row(self, batch: int) -> int:
        """Return the index of a batch's first row in this worker's epoch, or `num_rows` after the last batch."""
        return min(batch * self.batch_size, self.num_rows - (self.num_batches - batch))

    def blocks(self, epoch: int) -> Iterator[ShuffleBlock]:
        order: Sequence[int] = range(len(self.group_rows))
        if self.shuffle:
            order = np.random.default_rng((self.seed, epoch)).permutation(len(order)).tolist()
        parts_per_chunk = self.parts_per_chunk if self.shuffle else 1  # mixing groups would change the order
        share = list(self._share_of_groups(order))
        for begin in range(0, len(share), parts_per_chunk):
            mixed = share[begin : begin + parts_per_chunk]
            largest = max(self.group_bytes[rows.group] * rows.num_rows / self.group_rows[rows.group] for rows in mixed)
            num_blocks = _ceil(int(largest) * parts_per_chunk, self.block_bytes)
            yield from _in_blocks([self._streamed(rows, parts_per_chunk) for rows in mixed], max(1, num_blocks))

    def _streamed(self, rows: GroupRows, parts_per_chunk: int) -> GroupRows:
        """Mark rows to be streamed if they are part of a row group that is too large to decode as a whole."""
        is_too_large = self.group_bytes[rows.group] * parts_per_chunk > self.block_bytes
        are_some = rows.num_rows < self.group_rows[rows.group]
        return rows._replace(rows_at_once=rows.num_rows) if are_some and is_too_large else rows

    def _share(self) -> tuple[int, int]:
        """Return this worker's range of rows in the epoch as (start, stop)."""
        if not self.pad:
            rank, size = self.global_rank, self.global_size
            return self.total_rows * rank // size, self.total_rows * (rank + 1) // size
        num_rows = _ceil(self.total_rows, self.global_size)
        start = min(self.global_rank * num_rows, self.total_rows - num_rows)
        return start, start + num_rows

    def _share_of_groups(self, order: Sequence[int]) -> Iterator[GroupRows]:
        begin = self._share()[0]
        end = begin + self.num_rows
        row = 0
        for group in order:
            start, stop = max(begin - row, 0), min(end - row, self.group_rows[group])
            if start < stop:
                yield GroupRows(group, start, stop)
            row += self.group_rows[group]


class Epoch:
    def __init__(self, schedule: Schedule, number: int) -> None:
        self._schedule, self._number = schedule, number
        self.blocks = list(schedule.blocks(number))
        self._ends = list(accumulate(block.num_rows for block in self.blocks))
        self._first_group = [0, *accumulate(len(block.rows) for block in self.blocks)]
        self._batches_at_once = max(1, _ROWS_AT_ONCE // schedule.batch_size)

    def runs(self, start: int) -> Iterator[BatchRun]:
        """Yield the runs from batch `start` on. The first run may also contain batches before `start`."""
        first_row, num_batches = self._schedule.first_row, self._schedule.num_batches
        batch = start // self._batches_at_once * self._batches_at_once
        while batch < num_batches:
            row, stop = first_row(batch), batch + 1
            at = bisect_right(self._ends, row)
            limit = min(num_batches, (batch // self._batches_at_once + 1) * self._batches_at_once)
            while stop < limit and first_row(stop + 1) <= self._ends[at]:
                stop += 1
            if stop > start:
                cuts = tuple(first_row(number) - row for number in range(batch, stop + 1))
                yield BatchRun(batch, self._rows_of(row, first_row(stop)), cuts)
            batch = stop

    def group_order(self, block: int, number: int) -> npt.NDArray[np.intp] | None:
        """Return the order in which a block's rows from one row group are shuffled, or None to keep the file's
        order.
        """
        return self._order(self._first_group[block] + number, self.blocks[block].rows[number].num_rows)

    def run_order(self, run: BatchRun) -> npt.NDArray[np.intp] | None:
        """Return the shuffled order of the rows in a run of several batches, or None to keep the order of the row
        groups.
        """
        if len(run.cuts) == 2:
            return None
        return self._order(self._first_group[-1] + run.batch, run.num_rows)

    def bucketed(
        self, run: BatchRun, order: npt.NDArray[np.intp], lengths: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.intp]:
        """Rearrange `order` so that each batch in a run contains rows of similar lengths.

        The order of the batches, and of rows of equal length, stays random. `lengths` has the length of each row of the
        run, in the order of the block.
        """
        by_length = order[np.argsort(lengths[order], kind="stable")]
        places, sizes = np.arange(len(run.cuts) - 1), np.diff(run.cuts)
        alike = sizes == sizes[0]  # a batch of another size, the last of an epoch, keeps its place
        rng = np.random.default_rng((*self._seed, self._first_group[-1] + run.batch))
        places[alike] = rng.permutation(places[alike])
        batches = np.split(by_length, run.cuts[1:-1])
        return np.concatenate([batches[place] for place in places])

    def _rows_of(self, row: int, end: int) -> tuple[BlockRows, ...]:
        blocks = range(bisect_right(self._ends, row), bisect_left(self._ends, end) + 1)
        begins = [self._ends[block] - self.blocks[block].num_rows for block in blocks]
        return tuple(
            BlockRows(block, max(row - begin, 0), min(end, self._ends[block]) - begin)
            for block, begin in zip(blocks, begins, strict=True)
        )

    def _order(self, number: int, num_rows: int) -> npt.NDArray[np.intp] | None:
        """Return a random order of `num_rows` rows, or None if shuffling is disabled.

        Drawing a permutation costs a fifth as much as decoding the rows. Therefore one is drawn per epoch and rotated
        by a random offset each time.
        """
        if not self._schedule.shuffle:
            return None
        shift = int(np.random.default_rng((*self._seed, number)).integers(max(num_rows, 1)))
        largest = self._largest_order
        if num_rows == len(largest) // 2:
            return largest[shift : shift + num_rows]
        order = largest[: len(largest) // 2]
        return np.roll(order[order < num_rows], shift)

    @property
    def _seed(self) -> tuple[int, ...]:
        return self._schedule.seed, self._number, 1 + self._schedule.global_rank

    @cached_property
    def _largest_order(self) -> npt.NDArray[np.intp]:
        """A random permutation long enough for the most rows shuffled at once, repeated twice. Each half-length slice
        is also a permutation.
        """
        sizes = [rows.num_rows for block in self.blocks for rows in block.rows]
        several = self._batches_at_once * self._schedule.batch_size if self._batches_at_once > 1 else 0
        return np.tile(np.random.default_rng(self._seed).permutation(max(several, *sizes, 0)), 2)


def rows_from_each_group(sizes: Sequence[int], num_rows: int) -> list[int]:
    """Return how many of the first `num_rows` rows of a block come from each row group if the groups are interleaved
    evenly.

    Row i of a group with n rows is at position (i + 1/2) / n of the block, so each additional row of the block is one
    additional row of one group.
    """
    total = sum(sizes)
    counts = [(2 * num_rows * size + total) // (2 * total) for size in sizes]  # rows positioned before the cut
    while (missing := num_rows - sum(counts)) != 0:
        step = 1 if missing > 0 else -1
        # Position of each group's next row or, for a step back, of its last one.
        pairs = enumerate(zip(counts, sizes, strict=True))
        places = [(Fraction(2 * count + step, size), group) for group, (count, size) in pairs]
        counts[(min(places) if missing > 0 else max(places))[1]] += step
    return counts


def _in_blocks(mixed: Sequence[GroupRows], num_blocks: int) -> Iterator[ShuffleBlock]:
    """Divide the rows of several row groups into blocks, spreading each group's rows evenly over the blocks."""
    if num_blocks == 1:
        yield ShuffleBlock(tuple(mixed))
        return
    sizes = [_ceil(rows.num_rows, num_blocks) for rows in mixed]
    for number in range(num_blocks):
        of_block = [
            GroupRows(rows.group, start, min(start + size, rows.stop), size, is_last=start + size >= rows.stop)
            for rows, size in zip(mixed, sizes, strict=True)
            if (start := rows.start + number * size) < rows.stop
        ]
        if of_block:
            yield ShuffleBlock(tuple(of_block))


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)
