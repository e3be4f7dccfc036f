"""Which rows come when: the order of an epoch, cut into chunks, shares and batches. Pure arithmetic, no files.

An epoch is all rows, part after part, the parts in an order that follows from (seed, epoch). A rank takes one stretch
of it, and cuts it into chunks, each of slices of several parts. The rows of a slice are shuffled by themselves, while
the caches hold them; then every batch gets its share of each slice of its chunk. That mixes as much as shuffling the
chunk as a whole, which would wait for main memory at every row.
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

from workflows.choices import check_at_least
from workflows.errors import ConfigError

_ROWS_AT_ONCE = 32_768  # small batches are gathered together


class Slice(NamedTuple):
    """Rows from `start` up to `stop` of a part.

    Attributes:
        part: number of the part.
        start, stop: rows in the part.
        piece_rows: 0 if the rows may be read in one go; else the part is larger than that, and this is one of the
            pieces of so many rows that are asked for one after another.
        is_last: whether no other piece follows.
    """

    part: int
    start: int
    stop: int
    piece_rows: int = 0
    is_last: bool = True

    @property
    def num_rows(self) -> int:
        """Rows of the slice."""
        return self.stop - self.start


class Chunk(NamedTuple):
    """Slices of different parts that are in memory, and mixed, together."""

    slices: tuple[Slice, ...]

    @property
    def num_rows(self) -> int:
        """Rows of all slices."""
        return sum(piece.num_rows for piece in self.slices)


class Piece(NamedTuple):
    """Rows from `start` up to `stop` of a chunk."""

    chunk: int
    start: int
    stop: int


class Bundle(NamedTuple):
    """Batches that are gathered together: rows of one chunk or, for a batch that goes on in the next one, of several.

    Attributes:
        batch: number of the first one.
        pieces: the rows.
        cuts: where each batch begins in them, and the end.
    """

    batch: int
    pieces: tuple[Piece, ...]
    cuts: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        """Rows of all batches."""
        return self.cuts[-1]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The order of rows for one worker.

    Attributes:
        part_rows: rows of each part.
        part_bytes: memory that each part takes.
        batch_size: rows per batch; only the last batch of an epoch is smaller. Where another worker has one row more
            and so one more batch, the last full batch gives up a row.
        shuffle: take the parts, and the rows of a chunk, in random order.
        seed: start of the random order.
        parts_per_chunk: parts whose rows are mixed in one chunk.
        chunk_bytes: memory that a chunk may take. Parts that would take more come in pieces.
        drop_last: leave out the rows that do not fill a batch.
        global_rank, global_size: this worker's number, and how many there are. All have the same number of batches,
            and each row comes to one of them.
        pad: give all workers the same number of rows, some rows to two of them.

    Raises:
        ConfigError: a number is out of its range, or the rows do not give every worker the same number of batches.
    """

    part_rows: tuple[int, ...]
    part_bytes: tuple[int, ...]
    batch_size: int
    shuffle: bool
    seed: int
    parts_per_chunk: int
    chunk_bytes: int
    drop_last: bool
    global_rank: int
    global_size: int
    pad: bool

    def __post_init__(self) -> None:
        check_at_least(self, 1, "batch_size", "parts_per_chunk", "global_size")
        check_at_least(self, 0, "seed")
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

    # Asked for several times per batch, and the first is a sum over all parts.
    @cached_property
    def total_rows(self) -> int:
        """Rows of all workers."""
        return sum(self.part_rows)

    @cached_property
    def num_batches(self) -> int:
        """Batches per epoch."""
        if not self.drop_last:
            return _ceil(_ceil(self.total_rows, self.global_size), self.batch_size)
        fewest = _ceil(self.total_rows, self.global_size) if self.pad else self.total_rows // self.global_size
        return fewest // self.batch_size

    @cached_property
    def num_rows(self) -> int:
        """Rows per epoch that this worker gets."""
        start, stop = self._share()
        return self.num_batches * self.batch_size if self.drop_last else stop - start

    def first_row(self, batch: int) -> int:
        """The row of the epoch that batch number `batch` starts with; `num_rows` for the one after the last."""
        return min(batch * self.batch_size, self.num_rows - (self.num_batches - batch))

    def chunks(self, epoch: int) -> Iterator[Chunk]:
        """The chunks of an epoch; together they have `num_rows` rows."""
        order: Sequence[int] = range(len(self.part_rows))
        if self.shuffle:
            order = np.random.default_rng((self.seed, epoch)).permutation(len(order)).tolist()
        parts_per_chunk = self.parts_per_chunk if self.shuffle else 1  # else pieces of several would take turns
        slices = list(self._slices(order))
        for begin in range(0, len(slices), parts_per_chunk):
            group = slices[begin : begin + parts_per_chunk]
            largest = max(self.part_bytes[piece.part] * piece.num_rows / self.part_rows[piece.part] for piece in group)
            num_pieces = _ceil(int(largest) * parts_per_chunk, self.chunk_bytes)
            yield from _in_pieces([self._streamed(whole, parts_per_chunk) for whole in group], max(1, num_pieces))

    def _streamed(self, whole: Slice, parts_per_chunk: int) -> Slice:
        """The slice, to be read as a stream where it is a stretch of a part that is too large to be decoded whole."""
        is_too_large = self.part_bytes[whole.part] * parts_per_chunk > self.chunk_bytes
        is_stretch = whole.num_rows < self.part_rows[whole.part]
        return whole._replace(piece_rows=whole.num_rows) if is_stretch and is_too_large else whole

    def _share(self) -> tuple[int, int]:
        """This worker's stretch of the epoch."""
        if not self.pad:
            rank, size = self.global_rank, self.global_size
            return self.total_rows * rank // size, self.total_rows * (rank + 1) // size
        num_rows = _ceil(self.total_rows, self.global_size)
        start = min(self.global_rank * num_rows, self.total_rows - num_rows)
        return start, start + num_rows

    def _slices(self, order: Sequence[int]) -> Iterator[Slice]:
        """This worker's rows in an order of the parts."""
        begin = self._share()[0]
        end = begin + self.num_rows
        row = 0
        for part in order:
            start, stop = max(begin - row, 0), min(end - row, self.part_rows[part])
            if start < stop:
                yield Slice(part, start, stop)
            row += self.part_rows[part]


class Epoch:
    """The order of one epoch.

    Args:
        schedule: of which.
        number: which one.
    """

    def __init__(self, schedule: Schedule, number: int) -> None:
        self._schedule, self._number = schedule, number
        self.chunks = list(schedule.chunks(number))
        self._ends = list(accumulate(chunk.num_rows for chunk in self.chunks))
        self._first_slice = [0, *accumulate(len(chunk.slices) for chunk in self.chunks)]
        self._batches_at_once = max(1, _ROWS_AT_ONCE // schedule.batch_size)

    def bundles(self, start: int) -> Iterator[Bundle]:
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
                yield Bundle(batch, self._pieces(row, first_row(stop)), cuts)
            batch = stop

    def slice_order(self, chunk: int, number: int) -> npt.NDArray[np.intp] | None:
        """The order of the rows of a slice of a chunk, or None for that of the file."""
        return self._order(self._first_slice[chunk] + number, self.chunks[chunk].slices[number].num_rows)

    def bundle_order(self, bundle: Bundle) -> npt.NDArray[np.intp] | None:
        """The order of the rows of a bundle of several batches, or None for slice by slice."""
        if len(bundle.cuts) == 2:
            return None
        return self._order(self._first_slice[-1] + bundle.batch, bundle.num_rows)

    def bucketed(
        self, bundle: Bundle, order: npt.NDArray[np.intp], lengths: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.intp]:
        """`order` again, so that the rows of each batch of a bundle are about equally long.

        Which batch comes when is left to chance, as is the order of rows that are equally long.

        Args:
            bundle: of several batches.
            order: of its rows.
            lengths: of its rows, in the order of the chunk.
        """
        by_length = order[np.argsort(lengths[order], kind="stable")]
        places, sizes = np.arange(len(bundle.cuts) - 1), np.diff(bundle.cuts)
        alike = sizes == sizes[0]  # one of another size, the last of an epoch, stays where it is
        rng = np.random.default_rng((*self._seed, self._first_slice[-1] + bundle.batch))
        places[alike] = rng.permutation(places[alike])
        batches = np.split(by_length, bundle.cuts[1:-1])
        return np.concatenate([batches[place] for place in places])

    def _pieces(self, row: int, end: int) -> tuple[Piece, ...]:
        chunks = range(bisect_right(self._ends, row), bisect_left(self._ends, end) + 1)
        begins = [self._ends[chunk] - self.chunks[chunk].num_rows for chunk in chunks]
        return tuple(
            Piece(chunk, max(row - begin, 0), min(end, self._ends[chunk]) - begin)
            for chunk, begin in zip(chunks, begins, strict=True)
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
        slices = [piece.num_rows for chunk in self.chunks for piece in chunk.slices]
        several = self._batches_at_once * self._schedule.batch_size if self._batches_at_once > 1 else 0
        return np.tile(np.random.default_rng(self._seed).permutation(max(several, *slices, 0)), 2)


def dealt(sizes: Sequence[int], num_rows: int) -> list[int]:
    """How many rows of each part are among the first `num_rows` of a chunk, if each is spread evenly over it.

    Row i of a part with n rows has its place at (i + 1/2) / n of the chunk, so that one more row of the chunk is one
    more row of one part.
    """
    total = sum(sizes)
    counts = [(2 * num_rows * size + total) // (2 * total) for size in sizes]  # as many as have their place before
    while (missing := num_rows - sum(counts)) != 0:
        step = 1 if missing > 0 else -1
        # Where each part's next row is or, for a step back, its last one.
        pairs = enumerate(zip(counts, sizes, strict=True))
        places = [(Fraction(2 * count + step, size), part) for part, (count, size) in pairs]
        counts[(min(places) if missing > 0 else max(places))[1]] += step
    return counts


def _in_pieces(group: Sequence[Slice], num_pieces: int) -> Iterator[Chunk]:
    """Chunks that take one piece after another from each slice of a group."""
    if num_pieces == 1:
        yield Chunk(tuple(group))
        return
    sizes = [_ceil(whole.num_rows, num_pieces) for whole in group]
    for number in range(num_pieces):
        pieces = [
            Slice(whole.part, start, min(start + size, whole.stop), size, is_last=start + size >= whole.stop)
            for whole, size in zip(group, sizes, strict=True)
            if (start := whole.start + number * size) < whole.stop
        ]
        if pieces:
            yield Chunk(tuple(pieces))


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)
