"""Framework-free streaming of Parquet files as shuffled batches, through Arrow.

Row groups are the unit of reading. Background threads decode some of them from different places of the data, and
gather batches from those that came before; the consumer only takes what is ready. Columns are never turned into Python
objects, unless a workflow of `map` does so. Which rows come when is said in `rankline.training.data.loader.schedule`.
"""

import threading
from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from typing import Any, Protocol, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankline.training.data.loader import columns as arrays
from rankline.training.data.loader.columns import Column
from rankline.training.data.loader.files import ParquetFiles, RowGroup
from rankline.training.data.loader.memory import buffer_bytes
from rankline.training.data.loader.schedule import BatchRun, Epoch, GroupRows, Schedule
from rankline.training.data.loader.workers import Batch, Decoded, Streams, Workers
from rankline.workflows.core.errors import ConfigError, DataError
from rankline.workflows.schema.ragged import Ragged

__all__ = ["Batch", "BatchStream", "Column", "StreamOptions", "Transform"]

T = TypeVar("T")

# A block that is gathered from, the next one, and what is decoded or waits to be taken.
_BLOCKS_IN_MEMORY = 4
_RUNS_AHEAD = 4
_ORDER = (
    "batch_size", "shuffle", "seed", "parts_per_chunk", "block_bytes", "drop_last", "global_rank", "global_size", "pad"
)  # fmt: skip


def check_reading(prefetch: int | None, num_threads: int | None) -> None:
    """Refuse numbers that no loader takes; None is always one.

    Raises:
        ConfigError: a number is out of its range.
    """
    for name, number, least in (("prefetch", prefetch, 0), ("num_threads", num_threads, 1)):
        if number is not None and number < least:
            raise ConfigError(f"{name} is {number}, expected a whole number of at least {least}.")


def check_any_batch(num_rows: int, batch_size: int, *, all_rows: int) -> None:
    """Refuse `drop_last` where it leaves no row.

    Args:
        num_rows: rows in whole batches.
        batch_size: rows of each.
        all_rows: rows of the data.

    Raises:
        ConfigError: there is no whole batch.
    """
    if all_rows and not num_rows:
        raise ConfigError(
            f"drop_last leaves no row: the data has {all_rows:,} rows, and a batch has {batch_size:,}. Take smaller "
            "batches, or leave out drop_last."
        )


class Transform(Protocol):
    """Makes columns from what is in the files, row by row, such as an NVTabular workflow."""

    @property
    def columns(self) -> Sequence[str]:
        """What it reads."""

    def __call__(self, table: pa.Table) -> pa.Table:
        """The same rows with other columns; called by one thread at a time."""


class StreamOptions(TypedDict, total=False):
    """The options of `BatchStream` that every loader passes on; it documents them and has their defaults."""

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
    finite: Collection[str]
    prefetch: int | None
    num_threads: int | None
    bucket_by: str | None


class BatchStream:
    """Batches of some columns of Parquet files, every row exactly once per epoch.

    Args:
        paths: files, globs or directories, local or on any fsspec file system; or `ParquetFiles`.
        columns: the columns of a batch: numbers, or lists of numbers.
        batch_size: rows per batch; only the last batch of an epoch is smaller.
        shuffle: take the row groups, and the rows of each shuffle block, in an order that follows from (seed, epoch).
        seed: start of the random order.
        parts_per_chunk: row groups from different places whose rows are mixed in one shuffle block; Merlin's name.
        buffer_size: memory for all that is held at a time: a share of the available memory if below 1, else bytes,
            or text such as "512MB". Row groups that are too large for it are read as streams.
        drop_last: leave out the rows that do not fill a batch.
        global_rank, global_size: number of this worker, and how many there are. Each gets its share of the rows of
            an epoch, in the same number of batches; none is lost or doubled.
        pad: give the workers exactly the same number of rows, some rows to two of them.
        fill_nulls: column → value for what is missing, an empty list for a missing list; others refuse nulls.
        cardinalities: column → number of ids; an id outside [0, cardinality) is refused.
        finite: columns in which NaN and infinity are refused.
        prefetch: batches that are made ahead of the consumer, in memory of their own; None for as many as suit.
        num_threads: that decode and gather; None for as many as there are cores, or OMP_NUM_THREADS says, up to four.
        bucket_by: list column of about equal lengths within a batch, so that little is wasted where a model pads it.
            Shuffled rows are sorted by it among those that are gathered together, some 32,768, and their batches come
            in random order. None mixes all lengths.
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
        finite: Collection[str] = (),
        prefetch: int | None = None,
        num_threads: int | None = None,
        bucket_by: str | None = None,
        dtypes: Mapping[str, npt.DTypeLike] | None = None,
        transform: Transform | None = None,
    ) -> None:
        check_reading(prefetch, num_threads)
        self._files = paths if isinstance(paths, ParquetFiles) else ParquetFiles(paths)
        self._prefetch, self._num_threads = prefetch, num_threads
        self._columns, self._bucket_by = list(columns), bucket_by
        if bucket_by is not None and bucket_by not in self._columns:
            raise ConfigError(
                f"bucket_by is {bucket_by!r}, expected one of the columns that are read: {self._columns}."
            )
        self._fill_nulls, self._cardinalities = dict(fill_nulls or {}), dict(cardinalities or {})
        self._finite = frozenset(finite)
        self._dtypes = {name: np.dtype(dtype) for name, dtype in (dtypes or {}).items()}
        self._transform, self._one_at_a_time = transform, threading.Lock()
        self._read_columns = list(transform.columns) if transform else self._columns
        self._files.check_columns(self._read_columns)
        if transform is None:
            self._files.check_numeric(self._columns)
        self._schedule = Schedule(
            group_rows=tuple(group.num_rows for group in self._files.row_groups),
            group_bytes=tuple(self._files.decoded_bytes(group, self._read_columns) for group in self._files.row_groups),
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            parts_per_chunk=parts_per_chunk,
            block_bytes=max(1, buffer_bytes(buffer_size) // _BLOCKS_IN_MEMORY),
            drop_last=drop_last,
            global_rank=global_rank,
            global_size=global_size,
            pad=pad,
        )
        check_any_batch(self._schedule.num_rows, batch_size, all_rows=self._schedule.total_rows)

    def __getstate__(self) -> dict[str, Any]:
        """All but the lock, for the worker processes of a data loader."""
        return {name: value for name, value in self.__dict__.items() if name != "_one_at_a_time"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make a lock of its own."""
        self.__dict__.update(state, _one_at_a_time=threading.Lock())

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
            **{name: np.asarray(getattr(schedule, name)).item() for name in _ORDER},  # NumPy's own are no plain values
            "bucket_by": self._bucket_by,
        }

    def take_up(self, identity: Mapping[str, Any]) -> None:
        """Give the rows the order that another stream of the same data and options had.

        Its size of a block is taken over, since it may have come from a share of the memory at the time.

        Raises:
            ConfigError: the data or an option is another one.
        """
        mine = self.identity()
        for name in mine:
            if identity.get(name) != mine[name] and (name != "block_bytes" or name not in identity):
                raise ConfigError(
                    f"the saved position has {name} {identity.get(name)!r}, this loader has {mine[name]!r}. Go on with "
                    "the data and options that it was saved with, or start anew."
                )
        self._schedule = replace(self._schedule, block_bytes=int(identity["block_bytes"]))

    def batches(self, epoch: int = 0, start: int = 0) -> Generator[Batch, None, None]:
        """One epoch as arrays: column name → shape (N,) or (N, W), or `Ragged` for lists of any length; see `made`."""
        return self.made(lambda batch: batch, epoch, start)

    def made(self, make: Callable[[Batch], T], epoch: int = 0, start: int = 0) -> Generator[T, None, None]:
        """One epoch.

        The threads live as long as the iterator; one that is closed or dropped early ends them.

        Args:
            make: what is made of each batch, such as tensors; called in the background.
            epoch: number of the epoch; another number gives another order.
            start: batches to leave out at the beginning; their blocks are not read.

        Raises:
            DataError: a file has gone, changed or is damaged, or a column holds nulls or ids that are not allowed.
        """
        order = Epoch(self._schedule, epoch)
        with closing(Workers(order, self._read, make, self._bucket_by, self._num_threads)) as workers:
            ahead: deque[Future[list[T]]] = deque()
            for run in order.runs(start):
                ahead.append(workers.gather(run, skip=max(0, start - run.batch)))
                if len(ahead) > self._runs_ahead(run):
                    yield from ahead.popleft().result()
            while ahead:
                yield from ahead.popleft().result()

    def _runs_ahead(self, run: BatchRun) -> int:
        if self._prefetch is not None:
            return -(-self._prefetch // (len(run.cuts) - 1))
        return _RUNS_AHEAD if len(run.rows) == 1 else 1  # a batch of several blocks is large

    def _read(
        self, rows: GroupRows, order: npt.NDArray[np.intp] | None, streams: Streams, use_threads: bool
    ) -> Decoded:
        """Decode rows of a row group, and shuffle them while the caches hold them; called by the workers."""
        group = self._files.row_groups[rows.group]
        if rows.rows_at_once:
            if rows.group not in streams:
                streams[rows.group] = self._files.stream(group, self._read_columns, rows.start, rows.rows_at_once)
            table = next(streams[rows.group])
            if rows.is_last:
                streams.pop(rows.group).close()
        else:
            table = self._files.read(group, self._read_columns, use_threads=use_threads).slice(rows.start)
        table = table.slice(0, rows.num_rows)
        if self._transform:
            table = self._transformed(group, table)
        columns: Batch = {}
        dtypes: dict[str, np.dtype[Any]] = {}
        for name in self._columns:
            column, ends = self._column(group, name, table.column(name))
            dtype = arrays.value_dtype(column)
            dtypes[name] = self._dtypes.get(name, dtype)
            if order is not None:
                narrow = arrays.narrow_dtype(dtype, *ends) if ends else dtype
                source = column if isinstance(column, Ragged) else arrays.cast(column, narrow)  # lists: while gathering
                column = arrays.take(source, order, narrow)
            columns[name] = column
        return Decoded(columns=columns, dtypes=dtypes, num_rows=rows.num_rows)

    def _transformed(self, group: RowGroup, table: pa.Table) -> pa.Table:
        assert self._transform
        with self._one_at_a_time:
            made = self._transform(table)
        where = f"{self._files.name(group)}: the workflow"
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

    def _column(self, group: RowGroup, name: str, column: pa.ChunkedArray) -> tuple[Column, tuple[Any, Any] | None]:
        """A column as arrays, checked, and its smallest and largest value where it can be narrowed for shuffling."""
        missing = arrays.num_nulls(column)
        if missing:
            column = self._filled(group, name, column, missing)
        numbers = arrays.from_arrow(column)
        if name in self._finite and (odd := arrays.not_finite(numbers)) is not None:
            raise DataError(
                f"{self._files.name(group)}: column {name!r} holds {odd}, expected finite numbers. "
                "Prepare the data again."
            )
        wanted = self._dtypes.get(name)
        if wanted is not None and wanted.kind == "i" and (lost := arrays.lost_by_cast(numbers, wanted)) is not None:
            raise DataError(
                f"{self._files.name(group)}: column {name!r} holds {lost}, expected ids, which are whole numbers below "
                "2**63. Encode it when preparing, or load it as a number column."
            )
        cardinality = self._cardinalities.get(name)
        if cardinality is None and not (self.is_shuffled and arrays.value_dtype(numbers).kind == "i"):
            return numbers, None
        by_footer = None if self._transform or missing else self._files.statistics(group, name)
        ends = by_footer or arrays.ends(numbers)
        if cardinality is not None:
            if by_footer and not 0 <= by_footer[0] <= by_footer[1] < cardinality:
                ends = arrays.ends(numbers)  # of the rows that are wanted here
            for value in ends:
                if not 0 <= value < cardinality:
                    raise DataError(
                        f"{self._files.name(group)}: column {name!r} holds the id {value}, expected ids from 0 to "
                        f"{cardinality - 1}. The data and the spec do not belong together: prepare again."
                    )
        return numbers, ends

    def _filled(self, group: RowGroup, name: str, column: pa.ChunkedArray, missing: int) -> pa.ChunkedArray:
        where = f"{self._files.name(group)}: column {name!r} holds {missing:,} nulls"
        if name not in self._fill_nulls:
            raise DataError(f"{where}, expected none. Fill them when preparing, or say with what: fill_nulls.")
        value = self._fill_nulls[name]
        try:
            return arrays.fill_nulls(column, value)
        except (pa.ArrowException, TypeError) as error:
            raise DataError(f"{where}, which cannot become {value!r}: {error}.") from None
