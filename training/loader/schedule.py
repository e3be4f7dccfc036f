"""Which rows come when: the order of an epoch, cut into chunks, shares and batches. Pure arithmetic, no files.

An epoch is all rows, part after part, the parts in an order that follows from (seed, epoch). A rank takes one stretch
of it. Its rows are cut into chunks, whose rows are mixed, and into batches, which do not care about chunks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from workflows.errors import ConfigError


class Slice(NamedTuple):
    """Rows from `start` up to `stop` of a part.

    Attributes:
        part: number of the part.
        start, stop: rows in the part.
        piece_rows: 0 if the rows may be read in one go; else the part is larger than that, and this is one of the
            pieces of so many rows that are asked for one after another.
    """

    part: int
    start: int
    stop: int
    piece_rows: int = 0

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
        for name, least in (("batch_size", 1), ("parts_per_chunk", 1), ("global_size", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected a whole number of at least {least}.")
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

    @property
    def total_rows(self) -> int:
        """Rows of all workers."""
        return sum(self.part_rows)

    @property
    def num_batches(self) -> int:
        """Batches per epoch."""
        if not self.drop_last:
            return _ceil(_ceil(self.total_rows, self.global_size), self.batch_size)
        fewest = _ceil(self.total_rows, self.global_size) if self.pad else self.total_rows // self.global_size
        return fewest // self.batch_size

    @property
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
            yield from _in_pieces(group, max(1, num_pieces))

    def row_orders(self, epoch: int, sizes: Sequence[int]) -> Iterator[npt.NDArray[np.intp]]:
        """A random order of the rows of each chunk.

        Drawing one costs as much as a fifth of decoding the rows. So one is drawn for the largest chunk and turned
        by a random number of places for each: which rows meet in a batch is random all the same, since the chunks
        hold different parts.

        Args:
            epoch: number of the epoch.
            sizes: rows of each chunk.
        """
        rng = np.random.default_rng((self.seed, epoch, 1 + self.global_rank))
        largest = rng.permutation(max(sizes, default=0))
        for size, shift in zip(sizes, rng.integers(1 << 62, size=len(sizes)).tolist(), strict=True):
            order = largest if size == len(largest) else largest[largest < size]
            yield np.roll(order, shift % max(size, 1))

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


def _in_pieces(group: Sequence[Slice], num_pieces: int) -> Iterator[Chunk]:
    """Chunks that take one piece after another from each slice of a group."""
    if num_pieces == 1:
        yield Chunk(tuple(group))
        return
    sizes = [_ceil(whole.num_rows, num_pieces) for whole in group]
    for number in range(num_pieces):
        pieces = [
            Slice(whole.part, start, min(start + size, whole.stop), size)
            for whole, size in zip(group, sizes, strict=True)
            if (start := whole.start + number * size) < whole.stop
        ]
        if pieces:
            yield Chunk(tuple(pieces))


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)
