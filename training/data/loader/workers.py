"""Background threads of a loader, which decode the rows of shuffle blocks and gather batches from them."""

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankline.training.data.loader import columns as arrays
from rankline.training.data.loader.columns import Column
from rankline.training.data.loader.schedule import BatchRun, BlockRows, Epoch, GroupRows, rows_from_each_group
from rankline.workflows.schema.ragged import Ragged

T = TypeVar("T")
Batch = dict[str, Column]
Streams = dict[int, Generator[pa.Table, None, None]]

_MAX_THREADS = 4


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """Decoded rows of a row group.

    Attributes:
        columns: values in the order of the epoch; integers of shuffled rows use as few bytes as possible.
        dtypes: types of the values in a batch.
    """

    columns: Batch
    dtypes: Mapping[str, np.dtype[Any]]
    num_rows: int


class Workers(Generic[T]):
    """Threads that decode rows and gather batches for one epoch.

    Tasks are submitted in the order in which their results are needed, with the decoding of the next block interleaved
    with the gathering of the current one. A task therefore only waits for tasks that have already started.
    """

    def __init__(
        self,
        epoch: Epoch,
        read: Callable[[GroupRows, npt.NDArray[np.intp] | None, Streams, bool], Decoded],
        make: Callable[[Batch], T],
        bucket_by: str | None = None,
        num_threads: int | None = None,
    ) -> None:
        self._epoch, self._read, self._make, self._bucket_by = epoch, read, make, bucket_by
        self._num_threads = num_threads or min(_MAX_THREADS, pa.cpu_count())
        self._pool = ThreadPoolExecutor(self._num_threads, thread_name_prefix="rankline-loader")
        self._decoded: dict[int, list[Future[Decoded]]] = {}
        self._streams: Streams = {}
        self._before: dict[int, Future[Decoded]] = {}  # unfinished streamed row group → its latest task

    def gather(self, run: BatchRun, *, skip: int) -> "Future[list[T]]":
        """Start gathering the batches of a run, except for the first `skip` batches. Runs must be passed in epoch
        order.
        """
        for number in [number for number in self._decoded if number < run.rows[0].block]:
            del self._decoded[number]  # tasks that still need it have a reference
        sources = []
        for rows in run.rows:
            self._decode(rows.block, share=1.0)
            sources.append((self._decoded[rows.block], rows))
        gathered = self._pool.submit(self._gather, sources, run, skip)
        *_, last = run.rows
        if last.block + 1 < len(self._epoch.blocks):
            self._decode(last.block + 1, share=last.stop / self._epoch.blocks[last.block].num_rows)
        return gathered

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for stream in self._streams.values():
            stream.close()

    def _decode(self, block: int, share: float) -> None:
        """Start decoding the first row groups of a block, up to the fraction `share`, skipping those already
        started.
        """
        of_block, begun = self._epoch.blocks[block].rows, self._decoded.setdefault(block, [])
        while len(begun) < math.ceil(share * len(of_block)):
            rows = of_block[len(begun)]
            before = self._before.pop(rows.group, None)
            begun.append(self._pool.submit(self._decode_rows, block, len(begun), before))
            if not rows.is_last:
                self._before[rows.group] = begun[-1]

    def _decode_rows(self, block: int, number: int, before: "Future[Decoded] | None") -> Decoded:
        if before:
            wait([before])
        of_block = self._epoch.blocks[block].rows
        use_threads = len(of_block) < self._num_threads  # otherwise the row groups keep all threads busy
        return self._read(of_block[number], self._epoch.group_order(block, number), self._streams, use_threads)

    def _gather(
        self, sources: "Sequence[tuple[list[Future[Decoded]], BlockRows]]", run: BatchRun, skip: int
    ) -> list[T]:
        gathered: list[Batch] = []
        for futures, rows in sources:
            decoded = [future.result() for future in futures]
            sizes = [group.num_rows for group in decoded]
            shares = zip(
                decoded, rows_from_each_group(sizes, rows.start), rows_from_each_group(sizes, rows.stop), strict=True
            )
            gathered += [_cut(group.columns, start, stop) for group, start, stop in shares if start < stop]
        dtypes, order = decoded[0].dtypes, self._epoch.run_order(run)
        if self._bucket_by and order is not None:
            lengths = [arrays.lengths(some[self._bucket_by]) for some in gathered]
            order = self._epoch.bucketed(run, order, np.concatenate(lengths))
        cuts = list(pairwise(run.cuts))[skip:]
        columns = {
            name: _of_batches([some[name] for some in gathered], order, cuts, dtype) for name, dtype in dtypes.items()
        }
        return [self._make({name: column[n] for name, column in columns.items()}) for n in range(len(cuts))]


def _of_batches(
    columns: Sequence[Column],
    order: npt.NDArray[np.intp] | None,
    cuts: Sequence[tuple[int, int]],
    dtype: np.dtype[Any],
) -> list[Column]:
    """Split a column of a run into batches.

    Shuffled lists are copied into separate memory for each batch: slices of one array would not be aligned, and
    TensorFlow copies unaligned memory.
    """
    if order is None:
        whole = arrays.concatenate(columns, dtype)
    else:
        whole = arrays.concatenate(columns)
        if isinstance(whole, Ragged):
            return [arrays.take(whole, order[start:stop], dtype) for start, stop in cuts]
        whole = arrays.take(whole, order, dtype)
    return [arrays.slice_rows(whole, start, stop) for start, stop in cuts]


def _cut(rows: Batch, start: int, stop: int) -> Batch:
    return {name: arrays.slice_rows(column, start, stop) for name, column in rows.items()}
