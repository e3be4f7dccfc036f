"""Framework-independent streaming of Parquet files or tables in memory as shuffled batches, through Arrow.

Row groups are the unit of reading. Background threads decode row groups from different parts of the data and gather
batches from row groups that are already decoded; the consumer only takes finished batches. Columns never become Python
objects unless a workflow of `map` does so. `rankline.training.data.loader.schedule` defines the order of rows.
"""

import copy
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
from rankline.training.data.loader.dataset import open_rows
from rankline.training.data.loader.files import RowGroup
from rankline.training.data.loader.memory import buffer_bytes
from rankline.training.data.loader.schedule import BatchRun, Epoch, GroupRows, Schedule
from rankline.training.data.loader.workers import Batch, Decoded, Streams, Workers
from rankline.workflows.core.errors import ConfigError, DataError
from rankline.workflows.schema.ragged import Ragged

__all__ = ["Batch", "BatchStream", "Column", "OwnOptions", "StreamOptions", "Transform"]

T = TypeVar("T")

DEFAULT_PARTS_PER_CHUNK = 8
DEFAULT_BUFFER_SIZE = 0.06

# The block to gather from, the next one, and memory for decoding and for finished batches.
_BLOCKS_IN_MEMORY = 4
_RUNS_AHEAD = 4
_ORDER = (
    "batch_size", "shuffle", "seed", "parts_per_chunk", "block_bytes", "drop_last", "global_rank", "global_size", "pad"
)  # fmt: skip


def check_reading(prefetch: int | None, num_threads: int | None) -> None:
    """Raise `ConfigError` if `prefetch` or `num_threads` is out of range. None is always valid."""
    for name, number, least in (("prefetch", prefetch, 0), ("num_threads", num_threads, 1)):
        if number is not None and number < least:
            raise ConfigError(f"{name} is {number}, expected an integer of at least {least}.")


def check_any_batch(num_rows: int, batch_size: int, *, all_rows: int, num_workers: int = 1) -> None:
    """Raise `ConfigError` if `drop_last` would drop all rows. `num_rows` counts only the rows in full batches."""
    if all_rows and not num_rows:
        shared = f" for {num_workers:,} workers" if num_workers > 1 else ""
        raise ConfigError(
            f"drop_last drops all rows because the data has {all_rows:,} rows{shared} and batch_size is "
            f"{batch_size:,}. Use a smaller batch_size, or omit drop_last."
        )


class Transform(Protocol):
    """A row-wise function that computes a batch's columns from the data, such as an NVTabular workflow."""

    @property
    def columns(self) -> Sequence[str]: ...

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return a table with the computed columns for the same rows. Called by one thread at a time."""


class OwnOptions(TypedDict, total=False):
    """Options of `BatchStream` that NVTabular's loaders lack. See `BatchStream` for their meanings and defaults."""

    seed: int
    pad: bool
    fill_nulls: Mapping[str, float]
    cardinalities: Mapping[str, int]
    finite: Collection[str]
    prefetch: int | None
    num_threads: int | None
    bucket_by: str | None


class StreamOptions(OwnOptions, total=False):
    """Options of `BatchStream` that every loader accepts."""

    shuffle: bool
    parts_per_chunk: int
    buffer_size: float | str
    drop_last: bool
    global_rank: int
    global_size: int


class BatchStream:
    """A stream of batches from files or tables in memory. By default, each epoch contains every row exactly once.

    Args:
        data: files, globs or directories, local or on any fsspec file system; a Merlin dataset; or a DataFrame (see
            `open_rows`).
        columns: the columns of a batch: numbers, or lists of numbers.
        batch_size: rows per batch; only the last batch of an epoch is smaller.
        shuffle: shuffle the row groups, and the rows of each shuffle block, in an order derived from (seed, epoch).
        seed: seed of the random order.
        parts_per_chunk: row groups from different parts of the data to mix in one shuffle block; the name is Merlin's.
        buffer_size: maximum memory for rows and batches: a fraction of the available memory if below 1, else bytes, or
            text such as "512MB". Row groups that are too large for it are streamed.
        drop_last: drop the last rows if they do not fill a batch.
        global_rank, global_size: number of this worker, and number of workers. Each worker gets its share of the rows
            of an epoch, in the same number of batches; no row is lost or repeated.
        pad: give all workers exactly the same number of rows by giving some rows to two workers.
        fill_nulls: column → value that replaces nulls; null lists become empty. Nulls in other columns raise an error.
        cardinalities: column → number of ids; an id outside [0, cardinality) raises an error.
        finite: columns in which NaN and infinity raise an error.
        prefetch: batches to prepare ahead of the consumer, in addition to `buffer_size`; None for a suitable number.
        num_threads: threads for decoding and gathering; None for the number of cores or OMP_NUM_THREADS, at most four.
        bucket_by: list column whose lengths should be similar within a batch, so that a model that pads it wastes
            little. Shuffled rows are sorted by length within the rows gathered together (about 32,768), and their
            batches come in random order. None mixes all lengths.
        dtypes: column → type of its values in a batch; other columns keep their type in the files.
        transform: computes the columns from the columns in the files.

    Raises:
        ConfigError: an option is out of range.
        DataError: a file is missing or is not Parquet, or a column is missing or not numeric.
    """

    def __init__(
        self,
        data: Any,
        columns: Sequence[str],
        *,
        batch_size: int,
        shuffle: bool = True,
        seed: int = 0,
        parts_per_chunk: int = DEFAULT_PARTS_PER_CHUNK,
        buffer_size: float | str = DEFAULT_BUFFER_SIZE,
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
        self._rows = open_rows(data)
        self._prefetch, self._num_threads = prefetch, num_threads
        self._columns, self._bucket_by = list(columns), bucket_by
        if bucket_by is not None and bucket_by not in self._columns:
            raise ConfigError(f"bucket_by is {bucket_by!r}, expected one of the loaded columns: {self._columns}.")
        self._fill_nulls, self._cardinalities = dict(fill_nulls or {}), dict(cardinalities or {})
        self._finite = frozenset(finite)
        known = {*self._columns, *self._rows.schema.names}
        for option, names in (
            ("fill_nulls", self._fill_nulls.keys()),
            ("cardinalities", self._cardinalities.keys()),
            ("finite", self._finite),
        ):
            if unknown := sorted(names - known):
                raise ConfigError(f"{option} has {unknown}, expected some of the loaded columns: {self._columns}.")
        self._dtypes = {name: np.dtype(dtype) for name, dtype in (dtypes or {}).items()}
        self._transform, self._one_at_a_time = transform, threading.Lock()
        self._read_columns = list(transform.columns) if transform else self._columns
        readable = [name for name in self._read_columns if name in self._rows.schema.names]
        self._schedule = Schedule(
            group_rows=tuple(group.num_rows for group in self._rows.row_groups),
            group_bytes=tuple(self._rows.decoded_bytes(group, readable) for group in self._rows.row_groups),
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
        check_any_batch(
            self._schedule.num_rows, batch_size, all_rows=self._schedule.total_rows, num_workers=global_size
        )
        self._rows.check_columns(self._read_columns)
        if transform is None:
            self._rows.check_numeric(self._columns)

    def __getstate__(self) -> dict[str, Any]:
        """Drop the lock, so that the stream can be pickled and sent to worker processes."""
        return {name: value for name, value in self.__dict__.items() if name != "_one_at_a_time"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _one_at_a_time=threading.Lock())

    @property
    def num_rows(self) -> int:
        """Rows per epoch of this worker."""
        return self._schedule.num_rows

    @property
    def is_shuffled(self) -> bool:
        return self._schedule.shuffle

    def __len__(self) -> int:
        """Return the number of batches per epoch, computed from the files' footers alone."""
        return self._schedule.num_batches

    def identity(self) -> dict[str, Any]:
        """Return the parameters that determine the order of the rows, as built-in types."""
        schedule = self._schedule
        return {
            "data": self._rows.digest(),
            **{name: np.asarray(getattr(schedule, name)).item() for name in _ORDER},  # plain values, not NumPy's
            "bucket_by": self._bucket_by,
        }

    def take_up(self, identity: Mapping[str, Any]) -> None:
        """Adopt the row order of another stream with the same data and options.

        The block size is copied, because it may come from a fraction of the memory available at the time.

        Raises:
            ConfigError: the data or an option differs.
        """
        mine = self.identity()
        for name in mine:
            if identity.get(name) != mine[name] and (name != "block_bytes" or name not in identity):
                raise ConfigError(
                    f"the saved position has {name} {identity.get(name)!r}, but this loader has {mine[name]!r}. "
                    "Use the same data and options as when the position was saved, or start over."
                )
        self._schedule = replace(self._schedule, block_bytes=int(identity["block_bytes"]))

    def with_seed(self, seed: Any) -> "BatchStream":
        """Return a stream of the same rows in the order of another seed. Raise `ConfigError` if it is no integer."""
        if not isinstance(seed, int | np.integer):
            raise ConfigError(f"seed_fn returned {seed!r}, expected an integer.")
        other = copy.copy(self)
        other._schedule = replace(self._schedule, seed=int(seed))
        return other

    def batches(self, epoch: int = 0, start: int = 0) -> Generator[Batch, None, None]:
        """Yield one epoch's batches as dicts keyed by column name. Values have shape (N,) or (N, W), or are `Ragged`
        for lists of any length. See `made`.
        """
        return self.made(lambda batch: batch, epoch, start)

    def made(self, make: Callable[[Batch], T], epoch: int = 0, start: int = 0) -> Generator[T, None, None]:
        """Yield the batches of one epoch, each converted by `make`.

        The threads live as long as the iterator; closing or dropping it early stops them.

        Args:
            make: converts a batch, for example to tensors; called in background threads.
            epoch: number of the epoch, which determines the order.
            start: batches to skip at the beginning, without reading their blocks.

        Raises:
            DataError: a file has disappeared, changed or is damaged, or a column contains invalid nulls or ids.
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
        """Decode rows of a row group, and shuffle them while they are in the CPU caches. Called by the workers."""
        group = self._rows.row_groups[rows.group]
        if rows.rows_at_once:
            if rows.group not in streams:
                streams[rows.group] = self._rows.stream(group, self._read_columns, rows.start, rows.rows_at_once)
            table = next(streams[rows.group])
            if rows.is_last:
                streams.pop(rows.group).close()
        else:
            table = self._rows.read(group, self._read_columns, use_threads=use_threads).slice(rows.start)
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
                source = column if isinstance(column, Ragged) else arrays.cast(column, narrow)  # `take` casts lists
                column = arrays.take(source, order, narrow)
            columns[name] = column
        return Decoded(columns=columns, dtypes=dtypes, num_rows=rows.num_rows)

    def _transformed(self, group: RowGroup, table: pa.Table) -> pa.Table:
        assert self._transform
        with self._one_at_a_time:
            made = self._transform(table)
        where = f"{self._rows.name(group)}: the workflow"
        if len(made) != len(table):
            raise DataError(
                f"{where} returned {len(made)} rows for {len(table)} input rows, but must not add or drop rows while "
                "loading. Filter the rows when preparing the data."
            )
        for name in self._columns:
            if name not in made.column_names:
                raise DataError(f"{where} does not output column {name!r}. It outputs {made.column_names}.")
            if not arrays.is_numeric(made.schema.field(name).type):
                raise DataError(f"{where} outputs {made.schema.field(name).type} in column {name!r}, expected numbers.")
        return made

    def _column(self, group: RowGroup, name: str, column: pa.ChunkedArray) -> tuple[Column, tuple[Any, Any] | None]:
        """Check a column and convert it to arrays. Also return its minimum and maximum if it can be narrowed for
        shuffling.
        """
        missing = arrays.num_nulls(column)
        if missing:
            column = self._filled(group, name, column, missing)
        numbers = arrays.from_arrow(column)
        if name in self._finite and (odd := arrays.not_finite(numbers)) is not None:
            raise DataError(
                f"{self._rows.name(group)}: column {name!r} contains {odd}, expected finite numbers. Prepare the "
                "data again."
            )
        wanted = self._dtypes.get(name)
        if wanted is not None and wanted.kind == "i" and (lost := arrays.lost_by_cast(numbers, wanted)) is not None:
            raise DataError(
                f"{self._rows.name(group)}: column {name!r} contains {lost}, expected ids (integers below "
                "2**63). Encode it when preparing the data, or load it as a continuous column."
            )
        cardinality = self._cardinalities.get(name)
        if cardinality is None and not (self.is_shuffled and arrays.value_dtype(numbers).kind == "i"):
            return numbers, None
        by_footer = None if self._transform or missing else self._rows.statistics(group, name)
        ends = by_footer or arrays.min_max(numbers)
        if cardinality is not None:
            if by_footer and not 0 <= by_footer[0] <= by_footer[1] < cardinality:
                ends = arrays.min_max(numbers)  # the footer may include rows that are not read here
            for value in ends:
                if not 0 <= value < cardinality:
                    raise DataError(
                        f"{self._rows.name(group)}: column {name!r} contains id {value}, expected ids from 0 to "
                        f"{cardinality - 1}. The data does not match the spec; prepare the data again."
                    )
        return numbers, ends

    def _filled(self, group: RowGroup, name: str, column: pa.ChunkedArray, missing: int) -> pa.ChunkedArray:
        where = f"{self._rows.name(group)}: column {name!r} contains {missing:,} nulls"
        if name not in self._fill_nulls:
            raise DataError(f"{where}, expected none. Fill them when preparing the data, or pass fill_nulls.")
        value = self._fill_nulls[name]
        try:
            return arrays.fill_nulls(column, value)
        except (pa.ArrowException, TypeError) as error:
            raise DataError(f"{where}, which cannot be replaced by {value!r}: {error}.") from None
