"""Which rows come when: the order of an epoch, cut into shares, shuffle blocks and batches. Pure arithmetic, no files.

An epoch is all rows, row group after row group, in an order that follows from (seed, epoch). A rank takes one share of
it, and cuts it into shuffle blocks, each of rows of several row groups. The rows of a group are shuffled by themselves,
while the caches hold them; then every batch gets its share of each group of its block. That mixes as much as shuffling
the block as a whole, which would wait for main memory at every row.
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
from rankline.workflows.core.validation import MOST_SEED, check_at_least

_ROWS_AT_ONCE = 32_768  # small batches are gathered together


class GroupRows(NamedTuple):
    """Rows from `start` up to `stop` of a row group.

    Attributes:
        group: number of the row group.
        start, stop: rows in it.
        rows_at_once: 0 if the rows may be read in one go; else the row group is larger than that, and is read as a
            stream, so many rows at a time, of which these are some.
        is_last: whether no other rows of the stream follow.
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
    """Rows of different row groups that are in memory, and mixed, together."""

    rows: tuple[GroupRows, ...]

    @property
    def num_rows(self) -> int:
        return sum(rows.num_rows for rows in self.rows)


class BlockRows(NamedTuple):
    """Rows from `start` up to `stop` of a shuffle block."""

    block: int
    start: int
    stop: int


class BatchRun(NamedTuple):
    """Batches that are gathered together: rows of one block or, for a batch that goes on in the next one, of several.

    Attributes:
        batch: number of the first one.
        rows: of which blocks.
        cuts: where each batch begins in them, and the end.
    """

    batch: int
    rows: tuple[BlockRows, ...]
    cuts: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        return self.cuts[-1]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The order of rows for one worker.

    Attributes:
        group_rows: rows of each row group.
        group_bytes: memory that each row group takes.
        batch_size: rows per batch; only the last batch of an epoch is smaller. Where another worker has one row more
            and so one more batch, the last full batch gives up a row.
        shuffle: take the row groups, and the rows of a block, in random order.
        seed: start of the random order.
        parts_per_chunk: row groups whose rows are mixed in one block; the name is Merlin's.
        block_bytes: memory that a block may take. Row groups that would take more are read as streams.
        drop_last: leave out the rows that do not fill a batch.
        global_rank, global_size: this worker's number, and how many there are. All have the same number of batches,
            and each row comes to one of them.
        pad: give all workers the same number of rows, some rows to two of them.
    """

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
        check_at_least(self, 1, "batch_size", "parts_per_chunk", "global_size")
        check_at_least(self, 0, "seed", most=MOST_SEED)
        if not 0 <= self.global_rank < self.global_size:
            raise ConfigError(
                f"global_rank is {self.global_rank}, expected a whole number below global_size, {self.global_size}."
            )
        fewest = self.total_rows if self.pad else self.total_rows // self.global_size
        if self.total_rows and fewest < max(1, self.num_batches):
            raise ConfigError(
                f"{self.total_rows} rows do not give each of {self.global_size} workers the same number of batches of "
                f"up to {self.batch_size}. Set pad=True, or take fewer workers."
            )

    # Asked for several times per batch, and the first is a sum over all row groups.
    @cached_property
    def total_rows(self) -> int:
        """Rows of all workers."""
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
        """The row of the epoch that batch number `batch` starts with; `num_rows` for the one after the last."""
        return min(batch * self.batch_size, self.num_rows - (self.num_batches - batch))

    def blocks(self, epoch: int) -> Iterator[ShuffleBlock]:
        """The blocks of an epoch; together they have `num_rows` rows."""
        order: Sequence[int] = range(len(self.group_rows))
        if self.shuffle:
            order = np.random.default_rng((self.seed, epoch)).permutation(len(order)).tolist()
        parts_per_chunk = self.parts_per_chunk if self.shuffle else 1  # else rows of several would take turns
        share = list(self._share_of_groups(order))
        for begin in range(0, len(share), parts_per_chunk):
            mixed = share[begin : begin + parts_per_chunk]
            largest = max(self.group_bytes[rows.group] * rows.num_rows / self.group_rows[rows.group] for rows in mixed)
            num_blocks = _ceil(int(largest) * parts_per_chunk, self.block_bytes)
            yield from _in_blocks([self._streamed(rows, parts_per_chunk) for rows in mixed], max(1, num_blocks))

    def _streamed(self, rows: GroupRows, parts_per_chunk: int) -> GroupRows:
        """The rows, to be read as a stream where they are some of a row group that is too large to be decoded whole."""
        is_too_large = self.group_bytes[rows.group] * parts_per_chunk > self.block_bytes
        are_some = rows.num_rows < self.group_rows[rows.group]
        return rows._replace(rows_at_once=rows.num_rows) if are_some and is_too_large else rows

    def _share(self) -> tuple[int, int]:
        """First row of this worker's share of the epoch, and the row after its last."""
        if not self.pad:
            rank, size = self.global_rank, self.global_size
            return self.total_rows * rank // size, self.total_rows * (rank + 1) // size
        num_rows = _ceil(self.total_rows, self.global_size)
        start = min(self.global_rank * num_rows, self.total_rows - num_rows)
        return start, start + num_rows

    def _share_of_groups(self, order: Sequence[int]) -> Iterator[GroupRows]:
        """This worker's rows in an order of the row groups."""
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
        """The batches from number `start` on; before it, those that the first of them is gathered with."""
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
        """The order of the rows of a row group of a block, or None for that of the file."""
        return self._order(self._first_group[block] + number, self.blocks[block].rows[number].num_rows)

    def run_order(self, run: BatchRun) -> npt.NDArray[np.intp] | None:
        """The order of the rows of a run of several batches, or None for group by group."""
        if len(run.cuts) == 2:
            return None
        return self._order(self._first_group[-1] + run.batch, run.num_rows)

    def bucketed(
        self, run: BatchRun, order: npt.NDArray[np.intp], lengths: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.intp]:
        """`order` again, so that the rows of each batch of a run are about equally long.

        Which batch comes when is left to chance, as is the order of rows that are equally long.

        Args:
            run: of several batches.
            order: of its rows.
            lengths: of its rows, in the order of the block.
        """
        by_length = order[np.argsort(lengths[order], kind="stable")]
        places, sizes = np.arange(len(run.cuts) - 1), np.diff(run.cuts)
        alike = sizes == sizes[0]  # one of another size, the last of an epoch, stays where it is
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
        """A random order.

        Drawing one costs as much as a fifth of decoding the rows. So one is drawn for an epoch, and turned by a random
        number of places each time.
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
        """An order of as many rows as are ever shuffled, twice in a row: each stretch of that length is one too."""
        sizes = [rows.num_rows for block in self.blocks for rows in block.rows]
        several = self._batches_at_once * self._schedule.batch_size if self._batches_at_once > 1 else 0
        return np.tile(np.random.default_rng(self._seed).permutation(max(several, *sizes, 0)), 2)


def dealt(sizes: Sequence[int], num_rows: int) -> list[int]:
    """How many rows of each row group are among the first `num_rows` of a block, if each is spread evenly over it.

    Row i of a group with n rows has its place at (i + 1/2) / n of the block, so that one more row of the block is one
    more row of one group.
    """
    total = sum(sizes)
    counts = [(2 * num_rows * size + total) // (2 * total) for size in sizes]  # as many as have their place before
    while (missing := num_rows - sum(counts)) != 0:
        step = 1 if missing > 0 else -1
        # Where each group's next row is or, for a step back, its last one.
        pairs = enumerate(zip(counts, sizes, strict=True))
        places = [(Fraction(2 * count + step, size), group) for group, (count, size) in pairs]
        counts[(min(places) if missing > 0 else max(places))[1]] += step
    return counts


def _in_blocks(mixed: Sequence[GroupRows], num_blocks: int) -> Iterator[ShuffleBlock]:
    """So many blocks of rows of several row groups, each with about as many of each."""
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
