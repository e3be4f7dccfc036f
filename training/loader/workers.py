"""The threads behind a loader: they decode the slices of chunks, and gather batches from them."""

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from training.loader import columns as arrays
from training.loader.columns import Column, Ragged
from training.loader.schedule import Bundle, Epoch, Piece, Slice, dealt

T = TypeVar("T")
Batch = dict[str, Column]
Streams = dict[int, Generator[pa.Table, None, None]]

_MAX_THREADS = 4


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """A slice in memory.

    Attributes:
        columns: in the order in which the rows come; integers of shuffled rows in as few bytes as they need.
        dtypes: types of the values in a batch.
        num_rows: N.
    """

    columns: Batch
    dtypes: Mapping[str, np.dtype[Any]]
    num_rows: int


class Workers(Generic[T]):
    """Threads for one epoch.

    Work is given out in the order in which it is needed, decoding the next chunk among gathering from this one, so
    that a task only ever waits for tasks that have begun.

    Args:
        epoch: the order of the rows.
        read: decodes a slice. It gets the order of its rows, and a dict in which it keeps parts open that come in
            pieces.
        make: what is made of each batch, such as tensors.
        bucket_by: list column by whose lengths the rows of shuffled batches are sorted; None for none.
        num_threads: None for as many as Arrow takes, up to four: as there are cores, or as OMP_NUM_THREADS says.
    """

    def __init__(
        self,
        epoch: Epoch,
        read: Callable[[Slice, npt.NDArray[np.intp] | None, Streams, bool], Decoded],
        make: Callable[[Batch], T],
        bucket_by: str | None = None,
        num_threads: int | None = None,
    ) -> None:
        self._epoch, self._read, self._make, self._bucket_by = epoch, read, make, bucket_by
        self._num_threads = num_threads or min(_MAX_THREADS, pa.cpu_count())
        self._pool = ThreadPoolExecutor(self._num_threads, thread_name_prefix="rankline-loader")
        self._decoded: dict[int, list[Future[Decoded]]] = {}
        self._streams: Streams = {}
        self._before: dict[int, Future[Decoded]] = {}  # part of which more pieces come → the last one begun

    def gather(self, bundle: Bundle, *, skip: int) -> "Future[list[T]]":
        """Begin to make the batches of a bundle, but for the first `skip`; bundles come in the order of the epoch."""
        for number in [number for number in self._decoded if number < bundle.pieces[0].chunk]:
            del self._decoded[number]  # the tasks that still need it hold it
        sources = []
        for piece in bundle.pieces:
            self._decode(piece.chunk, share=1.0)
            sources.append((self._decoded[piece.chunk], piece))
        gathered = self._pool.submit(self._gather, sources, bundle, skip)
        *_, last = bundle.pieces
        if last.chunk + 1 < len(self._epoch.chunks):
            self._decode(last.chunk + 1, share=last.stop / self._epoch.chunks[last.chunk].num_rows)
        return gathered

    def close(self) -> None:
        """End the threads and close the files."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        for stream in self._streams.values():
            stream.close()

    def _decode(self, chunk: int, share: float) -> None:
        """Begin to decode the first `share` of the slices of a chunk, as far as that was not begun before."""
        slices, begun = self._epoch.chunks[chunk].slices, self._decoded.setdefault(chunk, [])
        while len(begun) < math.ceil(share * len(slices)):
            piece = slices[len(begun)]
            before = self._before.pop(piece.part, None)
            begun.append(self._pool.submit(self._decode_slice, chunk, len(begun), before))
            if not piece.is_last:
                self._before[piece.part] = begun[-1]

    def _decode_slice(self, chunk: int, number: int, before: "Future[Decoded] | None") -> Decoded:
        if before:
            wait([before])
        slices = self._epoch.chunks[chunk].slices
        use_threads = len(slices) < self._num_threads  # else there is work for all of them
        return self._read(slices[number], self._epoch.slice_order(chunk, number), self._streams, use_threads)

    def _gather(self, sources: "Sequence[tuple[list[Future[Decoded]], Piece]]", bundle: Bundle, skip: int) -> list[T]:
        slices: list[Batch] = []
        for futures, piece in sources:
            decoded = [future.result() for future in futures]
            sizes = [part.num_rows for part in decoded]
            shares = zip(decoded, dealt(sizes, piece.start), dealt(sizes, piece.stop), strict=True)
            slices += [_cut(part.columns, start, stop) for part, start, stop in shares if start < stop]
        dtypes, order = decoded[0].dtypes, self._epoch.bundle_order(bundle)
        if self._bucket_by and order is not None:
            lengths = [arrays.lengths(part[self._bucket_by]) for part in slices]
            order = self._epoch.bucketed(bundle, order, np.concatenate(lengths))
        cuts = list(pairwise(bundle.cuts))[skip:]
        columns = {
            name: _of_batches([part[name] for part in slices], order, cuts, dtype) for name, dtype in dtypes.items()
        }
        return [self._make({name: column[n] for name, column in columns.items()}) for n in range(len(cuts))]


def _of_batches(
    parts: Sequence[Column],
    order: npt.NDArray[np.intp] | None,
    cuts: Sequence[tuple[int, int]],
    dtype: np.dtype[Any],
) -> list[Column]:
    """A column of a bundle, batch by batch.

    Lists that are gathered get memory of each batch's own: within one array a batch would begin anywhere, and
    TensorFlow copies what is not aligned.
    """
    if order is None:
        whole = arrays.concatenate(parts, dtype)
    else:
        whole = arrays.concatenate(parts)
        if isinstance(whole, Ragged):
            return [arrays.take(whole, order[start:stop], dtype) for start, stop in cuts]
        whole = arrays.take(whole, order, dtype)
    return [arrays.cut(whole, start, stop) for start, stop in cuts]


def _cut(rows: Batch, start: int, stop: int) -> Batch:
    return {name: arrays.cut(column, start, stop) for name, column in rows.items()}
