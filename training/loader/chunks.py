"""Framework-free streaming of Parquet files as shuffled batches, through Arrow.

Row groups are the unit of reading. Background threads decode some of them from different places of the data while
another one gathers batches from those that came before; the consumer only takes what is ready. Columns are never
turned into Python objects.

    readers (Arrow, no GIL)      decode the parts of the next chunk
    gatherer                     joins them, takes the rows of each batch in random order
    consumer                     makes tensors
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice, pairwise, repeat
from typing import Any, Protocol, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from training.loader import columns as arrays
from training.loader.columns import Column, Ragged
from training.loader.files import ParquetFiles, Part
from training.loader.memory import buffer_bytes
from training.loader.schedule import Chunk, Schedule, Slice
from workflows.errors import ConfigError, DataError

__all__ = ["Batch", "ChunkStream", "Column", "Ragged", "StreamOptions", "Transform"]

T = TypeVar("T")
Batch = dict[str, Column]

# A chunk that is gathered from, the next one, what joins its parts, and batches that wait.
_CHUNKS_IN_MEMORY = 3
_ROWS_AT_ONCE = 32_768  # small batches are gathered together and then cut
_BUNDLES_AHEAD = 2
_MAX_READERS = 4
_THREAD_NAME = "rankline-chunks"
_ORDER = ("batch_size", "shuffle", "seed", "parts_per_chunk", "drop_last", "global_rank", "global_size", "pad")


class Transform(Protocol):
    """Makes the columns of a chunk from what is in the files, row by row, such as an NVTabular workflow."""

    @property
    def columns(self) -> Sequence[str]:
        """What it reads."""

    def __call__(self, table: pa.Table) -> pa.Table:
        """The same rows with other columns; called by one thread at a time."""


class StreamOptions(TypedDict, total=False):
    """The options of `ChunkStream` that every loader passes on; it documents them and has their defaults."""

    shuffle: bool
    seed: int
    parts_per_chunk: int
    buffer_size: float | str
    drop_last: bool
    global_rank: int
    global_size: int
    pad: bool
    fill_nulls: Mapping[str, float]
    cardinalities: Mapping[str, int]


class ChunkStream:
    """Batches of some columns of Parquet files, every row exactly once per epoch.

    Args:
        paths: files, globs or directories, local or on any fsspec file system; or `ParquetFiles`.
        columns: the columns of a batch: numbers, or lists of numbers.
        batch_size: rows per batch; only the last batch of an epoch is smaller.
        shuffle: take the row groups, and the rows of each chunk, in an order that follows from (seed, epoch).
        seed: start of the random order.
        parts_per_chunk: row groups from different places whose rows are mixed in one chunk.
        buffer_size: memory for all that is held at a time: a share of the available memory if below 1, else bytes,
            or text such as "512MB". Row groups that are too large for it are read in pieces.
        drop_last: leave out the rows that do not fill a batch.
        global_rank, global_size: number of this worker, and how many there are. Each gets its share of the rows of
            an epoch, in the same number of batches; none is lost or doubled.
        pad: give the workers exactly the same number of rows, some rows to two of them.
        fill_nulls: column → value for what is missing, an empty list for a missing list; others refuse nulls.
        cardinalities: column → number of ids; an id outside [0, cardinality) is refused.
        dtypes: column → type of its values in a batch; others stay what they are in the files.
        transform: makes the columns from what is in the files.

    Raises:
        ConfigError: an option is out of its range.
        DataError: a file is missing or is no Parquet, or a column is missing or of a type that has no tensor.
    """

    def __init__(
        self,
        paths: Any,
        columns: Sequence[str],
        *,
        batch_size: int,
        shuffle: bool = True,
        seed: int = 0,
        parts_per_chunk: int = 8,
        buffer_size: float | str = 0.06,
        drop_last: bool = False,
        global_rank: int = 0,
        global_size: int = 1,
        pad: bool = False,
        fill_nulls: Mapping[str, float] | None = None,
        cardinalities: Mapping[str, int] | None = None,
        dtypes: Mapping[str, npt.DTypeLike] | None = None,
        transform: Transform | None = None,
    ) -> None:
        self._files = paths if isinstance(paths, ParquetFiles) else ParquetFiles(paths)
        self._columns = list(columns)
        self._fill_nulls, self._cardinalities = dict(fill_nulls or {}), dict(cardinalities or {})
        self._dtypes = {name: np.dtype(dtype) for name, dtype in (dtypes or {}).items()}
        self._transform, self._one_at_a_time = transform, threading.Lock()
        self._read_columns = list(transform.columns) if transform else self._columns
        self._files.check_columns(self._read_columns)
        if transform is None:
            self._files.check_numeric(self._columns)
        self._schedule = Schedule(
            part_rows=tuple(part.num_rows for part in self._files.parts),
            part_bytes=tuple(self._files.decoded_bytes(part, self._read_columns) for part in self._files.parts),
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            parts_per_chunk=parts_per_chunk,
            chunk_bytes=max(1, buffer_bytes(buffer_size) // _CHUNKS_IN_MEMORY),
            drop_last=drop_last,
            global_rank=global_rank,
            global_size=global_size,
            pad=pad,
        )

    @property
    def num_rows(self) -> int:
        """Rows per epoch that this worker gets."""
        return self._schedule.num_rows

    @property
    def is_shuffled(self) -> bool:
        """Whether rows come in random order."""
        return self._schedule.shuffle

    def __len__(self) -> int:
        """Batches per epoch, from the files' footers alone."""
        return self._schedule.num_batches

    def identity(self) -> dict[str, Any]:
        """What the order of the rows follows from, as plain values."""
        schedule = self._schedule
        return {
            "data": self._files.digest(),
            **{name: getattr(schedule, name) for name in _ORDER},
            "chunk_bytes": schedule.chunk_bytes,
        }

    def take_up(self, identity: Mapping[str, Any]) -> None:
        """Give the rows the order that another stream of the same data and options had.

        Its size of a chunk is taken over, since it may have come from a share of the memory at the time.

        Raises:
            ConfigError: the data or an option is another one.
        """
        mine = self.identity()
        for name in mine:
            if name != "chunk_bytes" and identity.get(name) != mine[name]:
                raise ConfigError(
                    f"the saved position has {name} {identity.get(name)!r}, this loader has {mine[name]!r}. Go on with "
                    "the data and options that it was saved with, or start anew."
                )
        self._schedule = replace(self._schedule, chunk_bytes=int(identity["chunk_bytes"]))

    def batches(self, epoch: int = 0, start: int = 0) -> Generator[Batch, None, None]:
        """Read one epoch.

        The threads live as long as the iterator; one that is closed or dropped early ends them.

        Args:
            epoch: number of the epoch; another number gives another order.
            start: batches to leave out at the beginning; their chunks are not read.

        Yields:
            column name → array of shape (N,) or (N, W), or `Ragged` for lists of any length.

        Raises:
            DataError: a file has gone, changed or is damaged, or a column holds nulls or ids that are not allowed.
        """
        with closing(self._bundles(epoch, start)) as bundles, closing(_prefetched(bundles)) as ahead:
            for bundle in ahead:
                yield from bundle

    def _bundles(self, epoch: int, start: int) -> Generator[list[Batch], None, None]:
        """Batches in their order, several at a time where they are small."""
        schedule = self._schedule
        row, batch = schedule.first_row(start), start
        held: list[Batch] = []  # rows of a batch that goes on in the next block
        with closing(self._blocks(epoch, row)) as blocks:
            for block in blocks:
                done = block.begin
                while done < block.num_rows:
                    room, end = block.num_rows - done, batch + 1
                    while (
                        not held and schedule.first_row(end + 1) - row <= min(room, _ROWS_AT_ONCE) and end < len(self)
                    ):
                        end += 1
                    num_rows = min(schedule.first_row(end) - row, room)
                    rows = block.rows(done, done + num_rows)
                    done, row = done + num_rows, row + num_rows
                    if row < schedule.first_row(end):
                        held.append(rows)
                        continue
                    if held:
                        yield [_joined([*held, rows])]
                        held = []
                    else:
                        first = row - num_rows
                        bounds = [schedule.first_row(number) - first for number in range(batch, end + 1)]
                        yield [_cut(rows, *ends) for ends in pairwise(bounds)]
                    batch = end

    def _blocks(self, epoch: int, first_row: int) -> Generator["_Block", None, None]:
        """What batches are cut from, one after the other, from row `first_row` of the epoch on."""
        chunks = list(self._schedule.chunks(epoch))
        sizes = [chunk.num_rows for chunk in chunks]
        orders: Iterator[npt.NDArray[np.intp] | None] = repeat(None)
        if self._schedule.shuffle:
            orders = self._schedule.row_orders(epoch, sizes)
        skipped = 0
        while skipped < len(chunks) and sizes[skipped] <= first_row:
            first_row -= sizes[skipped]
            skipped += 1
        orders = islice(orders, skipped, None)
        with closing(_Readers(self._read)) as readers:
            ahead = readers.submit(chunks[skipped]) if skipped < len(chunks) else []
            for number in range(skipped, len(chunks)):
                parts = [future.result() for future in ahead]
                ahead.clear()
                block = _Block.made_of(parts, self._dtypes, order=next(orders), begin=first_row)
                del parts  # before more is read
                if number + 1 < len(chunks):
                    ahead = readers.submit(chunks[number + 1])
                yield block
                del block
                first_row = 0

    def _read(self, piece: Slice, streams: dict[int, Generator[pa.Table, None, None]], use_threads: bool) -> "_Decoded":
        """Decode a slice; called by the readers."""
        part = self._files.parts[piece.part]
        if piece.piece_rows:
            if piece.part not in streams:
                streams[piece.part] = self._files.stream(part, self._read_columns, piece.start, piece.piece_rows)
            table = next(streams[piece.part])
        else:
            table = self._files.read(part, self._read_columns, use_threads=use_threads).slice(piece.start)
        table = table.slice(0, piece.num_rows)
        if self._transform:
            table = self._transformed(part, table)
        found = {name: self._column(part, name, table.column(name)) for name in self._columns}
        return _Decoded(
            columns={name: column for name, (column, _) in found.items()},
            ends={name: ends for name, (_, ends) in found.items()},
        )

    def _transformed(self, part: Part, table: pa.Table) -> pa.Table:
        assert self._transform
        with self._one_at_a_time:
            made = self._transform(table)
        where = f"{self._files.name(part)}: the workflow"
        if len(made) != len(table):
            raise DataError(
                f"{where} made {len(made)} rows of {len(table)}. Rows cannot be dropped or added while loading: "
                "filter when preparing."
            )
        for name in self._columns:
            if name not in made.column_names:
                raise DataError(f"{where} does not make column {name!r}. It makes {made.column_names}.")
            if not arrays.is_numeric(made.schema.field(name).type):
                raise DataError(f"{where} makes {made.schema.field(name).type} of column {name!r}, expected numbers.")
        return made

    def _column(self, part: Part, name: str, column: pa.ChunkedArray) -> tuple[Column, tuple[Any, Any] | None]:
        """A column as arrays, checked, and its smallest and largest value if it can hold ids."""
        missing = arrays.num_nulls(column)
        if missing:
            column = self._filled(part, name, column, missing)
        numbers = arrays.from_arrow(column)
        cardinality = self._cardinalities.get(name)
        if cardinality is None and arrays.value_dtype(numbers).kind != "i":
            return numbers, None
        by_footer = None if self._transform or missing else self._files.statistics(part, name)
        ends = by_footer or arrays.ends(numbers)
        if cardinality is not None:
            if by_footer and not 0 <= by_footer[0] <= by_footer[1] < cardinality:
                ends = arrays.ends(numbers)  # of the rows that are wanted here
            for value in ends:
                if not 0 <= value < cardinality:
                    raise DataError(
                        f"{self._files.name(part)}: column {name!r} holds the id {value}, expected ids from 0 to "
                        f"{cardinality - 1}. The data and the spec do not belong together: prepare again."
                    )
        return numbers, ends

    def _filled(self, part: Part, name: str, column: pa.ChunkedArray, missing: int) -> pa.ChunkedArray:
        where = f"{self._files.name(part)}: column {name!r} holds {missing:,} nulls"
        if name not in self._fill_nulls:
            raise DataError(f"{where}, expected none. Fill them when preparing, or say with what: fill_nulls.")
        value = self._fill_nulls[name]
        try:
            return arrays.fill_nulls(column, value)
        except (pa.ArrowException, TypeError) as error:
            raise DataError(f"{where}, which cannot become {value!r}: {error}.") from None


@dataclass(frozen=True, kw_only=True)
class _Decoded:
    """A slice in memory.

    Attributes:
        columns: its columns.
        ends: smallest and largest value of columns of integers, None for others.
    """

    columns: Batch
    ends: Mapping[str, tuple[Any, Any] | None]


@dataclass(frozen=True, kw_only=True)
class _Block:
    """Rows in memory that batches are cut from.

    Attributes:
        columns: their columns; for rows that are mixed, in the narrowest types that hold their values.
        dtypes: types of the values as they are handed out.
        num_rows: how many.
        order: the order in which they come, or None for that of the files.
        begin: first row that is wanted.
    """

    columns: Batch
    dtypes: Mapping[str, np.dtype[Any]]
    num_rows: int
    order: npt.NDArray[np.intp] | None
    begin: int

    @classmethod
    def made_of(
        cls,
        parts: Sequence[_Decoded],
        wanted: Mapping[str, np.dtype[Any]],
        *,
        order: npt.NDArray[np.intp] | None,
        begin: int,
    ) -> "_Block":
        first = parts[0].columns
        dtypes = {name: arrays.value_dtype(column) for name, column in first.items()}
        if order is None and len(parts) == 1:
            columns = first
        else:
            columns = {
                name: arrays.concatenate([part.columns[name] for part in parts], _narrow(dtype, name, parts))
                for name, dtype in dtypes.items()
            }
        num_rows = sum(arrays.num_rows(next(iter(part.columns.values()))) for part in parts)
        return cls(columns=columns, dtypes={**dtypes, **wanted}, num_rows=num_rows, order=order, begin=begin)

    def rows(self, start: int, stop: int) -> Batch:
        if self.order is None:
            return {
                name: arrays.cast(arrays.cut(column, start, stop), self.dtypes[name])
                for name, column in self.columns.items()
            }
        rows = self.order[start:stop]
        return {name: arrays.take(column, rows, self.dtypes[name]) for name, column in self.columns.items()}


def _narrow(dtype: np.dtype[Any], name: str, parts: Sequence[_Decoded]) -> np.dtype[Any]:
    ends = [part.ends[name] for part in parts]
    known = [pair for pair in ends if pair is not None]
    if len(known) < len(ends):
        return dtype
    return arrays.narrow_dtype(dtype, min(low for low, _ in known), max(high for _, high in known))


class _Readers:
    """Threads that decode the slices of a chunk.

    Args:
        read: decodes one. Parts that come in pieces are kept open in the dict that it gets.
    """

    def __init__(self, read: Callable[[Slice, dict[int, Generator[pa.Table, None, None]], bool], _Decoded]) -> None:
        self._read = read
        self._num_threads = min(_MAX_READERS, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(self._num_threads, thread_name_prefix=_THREAD_NAME)
        self._streams: dict[int, Generator[pa.Table, None, None]] = {}

    def submit(self, chunk: Chunk) -> list["Future[_Decoded]"]:
        """Begin to decode a chunk; the one before must have been decoded."""
        use_threads = len(chunk.slices) < self._num_threads  # else there is work for all of them
        return [self._pool.submit(self._read, piece, self._streams, use_threads) for piece in chunk.slices]

    def close(self) -> None:
        """End the threads and close the files."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        for stream in self._streams.values():
            stream.close()


def _joined(parts: Sequence[Batch]) -> Batch:
    if len(parts) == 1:
        return parts[0]
    return {name: arrays.concatenate([part[name] for part in parts]) for name in parts[0]}


def _cut(rows: Batch, start: int, stop: int) -> Batch:
    return {name: arrays.cut(column, start, stop) for name, column in rows.items()}


def _prefetched(items: Iterator[T]) -> Generator[T, None, None]:
    """The same items, the next ones always being made by a thread while the current one is used."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix=_THREAD_NAME) as pool:
        ahead = deque(pool.submit(next, items, None) for _ in range(_BUNDLES_AHEAD))
        try:
            while (item := ahead.popleft().result()) is not None:
                ahead.append(pool.submit(next, items, None))
                yield item
        finally:
            for future in ahead:
                future.cancel()
