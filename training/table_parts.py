"""Arrays that are split over workers by rows, put together again for what is written to disk.

All workers send their rows block by block, and worker 0 writes each block when it is there, so that none of them ever
has such an array as a whole. Importing this file imports no framework.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from training.world import Array, World

_BLOCK_BYTES = 1 << 25

VariableState: TypeAlias = Any
"""What a run keeps of a variable: an array, or a `TablePart` of one that is split."""


@dataclass(frozen=True, kw_only=True)
class TablePart:
    """What this worker has of an array with one row per id: a table, its average, or what an optimizer remembers.

    Attributes:
        rows: of the ids rank, rank + size, rank + 2 × size, …
        num_rows: of the whole array.
        world: the workers.
    """

    rows: Array
    num_rows: int
    world: World

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole array."""
        return (self.num_rows, *self.rows.shape[1:])

    def blocks(self) -> Iterator[Array]:
        """The whole array in blocks, one below the other. The others have to send theirs."""
        size = self.world.size
        for by_rank in self._gathered():
            block, end = np.empty_like(by_rank), 0
            for rank in range(size):
                own = block[rank::size]
                start, end = end, end + len(own)
                own[...] = by_rank[start:end]
            yield block

    def send(self) -> None:
        """Give a worker that takes the blocks the rows of this one."""
        for _ in self._gathered():
            pass

    def write(self, file: BinaryIO) -> None:
        """Write the whole array as `numpy.save` does. The others have to send theirs."""
        header = {"descr": self.rows.dtype.str, "fortran_order": False, "shape": self.shape}
        write_header: Callable[[BinaryIO, dict[str, Any]], None] = np.lib.format.write_array_header_1_0
        write_header(file, header)
        for block in self.blocks():
            file.write(block.data)

    def _gathered(self) -> Iterator[Array]:
        for place in _blocks(self.num_rows, self.rows, self.world):
            yield self.world.all_gather(self.rows[place])


def send_parts(kept: Iterable[VariableState]) -> None:
    """Send what is split, in the order in which worker 0 writes it."""
    for part in kept:
        if isinstance(part, TablePart):
            part.send()


def hand_out(array: Array | None, own: Array, num_rows: int, world: World) -> None:
    """Give each worker its rows of an array that worker 0 has; all workers have to call this.

    Args:
        array: the whole array; only worker 0's counts.
        own: is filled with the rows of this worker.
        num_rows: of the whole array.
        world: the workers.
    """
    for place in _blocks(num_rows, own, world):
        block = own[:0]
        if world.rank == 0 and array is not None:
            block = array[place.start * world.size : place.stop * world.size]
        own[place] = own_rows(world.all_gather(block), world)


def own_rows(array: Array, world: World) -> Array:
    """The rows of this worker, of a whole array; a view."""
    return array[world.rank :: world.size]


def _blocks(num_rows: int, rows: Array, world: World) -> Iterator[slice]:
    """Places of each worker's rows that make a block together; the same for all workers."""
    row_bytes = rows.dtype.itemsize * prod(rows.shape[1:])
    num_places = max(1, _BLOCK_BYTES // (row_bytes * world.size))
    for first in range(0, -(-num_rows // world.size), num_places):
        yield slice(first, first + num_places)
