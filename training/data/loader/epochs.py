"""Iteration over epochs from a position that can be saved and restored, and the base class of all loaders."""

import copy
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from rankline.training.data.loader.columns import Column, is_nested
from rankline.training.data.loader.dataset import (
    OMITTED,
    Columns,
    Names,
    all_columns,
    open_rows,
    schema_of,
    tagged_columns,
)
from rankline.training.data.loader.files import ColumnsError, Rows
from rankline.training.data.loader.lists import ListOptions, Sparse
from rankline.training.data.loader.stream import (
    DEFAULT_BUFFER_SIZE,
    DEFAULT_PARTS_PER_CHUNK,
    Batch,
    BatchStream,
    OwnOptions,
    StreamOptions,
    Transform,
)
from rankline.workflows.core.errors import ArgumentError, ConfigError, DataError
from rankline.workflows.schema.ragged import Ragged
from rankline.workflows.schema.tensor_names import OFFSETS, VALUES

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where the batches of an epoch come from.

    Attributes:
        make: converts a batch. Called in background threads.
        finish: converts the result further. Called by the consumer.
    """

    stream: BatchStream
    make: Callable[[Batch], Any]
    finish: Callable[[Any], Any] = lambda batch: batch


class Epochs(Generic[T]):
    """An iterable over a stream's batches. Each pass is one epoch, or several, with its own row order.

    Args:
        source: where the batches come from. It may be replaced; a pass keeps the one that it started with.
        per_pass: epochs of a pass.
        seed_fn: returns the seed of each epoch, instead of the stream's.

    Attributes:
        start: epoch and batch at which the next pass starts, and the number of epochs left in it.
        position: the same after the last batch returned.
    """

    def __init__(self, source: Source, per_pass: int = 1, seed_fn: Callable[[], Any] | None = None) -> None:
        self.source = source
        self._per_pass, self._seed_fn = per_pass, seed_fn
        self.start_at((0, 0, per_pass))

    def start_at(self, position: tuple[int, int, int]) -> None:
        """Let the next pass start at a position."""
        epoch, batch, left = position
        self.position = self.start = epoch, batch, left or self._per_pass

    @property
    def stream(self) -> BatchStream:
        return self.source.stream

    @property
    def epoch(self) -> int:
        return self.start[0]

    @property
    def is_resuming(self) -> bool:
        """Whether the next pass starts after its beginning."""
        return self.start[1] > 0 or self.start[2] != self._per_pass

    def __len__(self) -> int:
        """Return the number of batches of a whole pass."""
        return self._per_pass * len(self.stream)

    def __iter__(self) -> Iterator[T]:
        """Start the next pass, and advance to the following epoch even if this pass is not exhausted."""
        passing = self.again()
        self.skip()
        return passing

    def again(self, start: int = 0) -> Generator[T, None, None]:
        """Start the next pass at batch `start` without advancing, so that calling it again repeats the same epoch."""
        epoch, first, left = self.start
        ahead, first = divmod(first + start, max(1, len(self.stream)))
        return self._passing(self.source, range(epoch + ahead, epoch + left), first)

    def skip(self) -> None:
        epoch, _, left = self.start
        self.start = epoch + left, 0, self._per_pass

    def state_dict(self) -> dict[str, Any]:
        self._check_seeded()
        epoch, batch, left = self.position
        several = {"epochs_left": left} if self._per_pass > 1 else {}
        return {"epoch": epoch, "batch": batch, **several, **self.stream.identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._check_seeded()
        self.stream.take_up(state)
        if state["batch"] not in range(max(1, len(self.stream))):
            raise ConfigError(
                f"the saved position is at batch {state['batch']}, but an epoch has {len(self.stream)} batches. Pass "
                "the result of state_dict unchanged."
            )
        self.start_at((state["epoch"], state["batch"], state.get("epochs_left", self._per_pass)))

    def first(self) -> T | None:
        """Return the first batch of the next pass without consuming it, or None if the pass has no batches."""
        with closing(self.stream.made(self.source.make, *self.start[:2])) as batches:
            batch = next(batches, None)
        return None if batch is None else self.source.finish(batch)

    def _passing(self, source: Source, epochs: range, start: int) -> Generator[T, None, None]:
        for epoch in epochs:
            stream = source.stream.with_seed(self._seed_fn()) if self._seed_fn else source.stream
            with closing(stream.made(source.make, epoch, start)) as batches:
                for number, batch in enumerate(batches, start + 1):
                    is_last = number == len(stream)
                    left = epochs.stop - epoch - is_last
                    self.position = epoch + is_last, 0 if is_last else number, left or self._per_pass
                    yield source.finish(batch)
            start = 0

    def _check_seeded(self) -> None:
        if self._seed_fn:
            raise ConfigError("the order of a loader with seed_fn cannot be saved or restored. Pass a seed instead.")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What the batches of an epoch consist of."""

    columns: Columns
    lists: ListOptions

    @cached_property
    def input_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.columns.cats, *self.columns.conts)))

    def inputs(self, batch: Batch) -> dict[str, Column | Sparse]:
        """Return a batch's input columns, lists in the layout that was asked for."""
        return {name: self.lists.of_column(name, batch[name], self.columns) for name in self.input_names}


class _Setting:
    """An attribute of a loader that takes effect at its next epoch when it is set.

    Args:
        name: the argument.
        read: the field of `Columns` that has its value, for arguments that may have been omitted.
    """

    def __init__(self, name: str, read: str = "") -> None:
        self._name, self._read = f"_{name}", read

    def __get__(self, loader: Any, owner: type) -> Any:
        if loader is None:
            return self
        value = getattr(loader._reading.columns, self._read) if self._read else getattr(loader, self._name)
        return list(value) if isinstance(value, tuple) else value

    def __set__(self, loader: Any, value: Any) -> None:
        names = self._name, "_opened", "_reading", "_is_open"
        before = {name: getattr(loader, name) for name in names}
        setattr(loader, self._name, value)
        if self._name == "_data":
            loader._opened = None
        try:
            loader._renew()
        except Exception:
            vars(loader).update(before)
            raise


class BatchLoader(Generic[T]):
    """Base class of the loaders. Subclasses convert batches to tensors or arrays.

    The data is opened at once. Columns are checked at first use, because `map` may compute them.

    Attributes:
        batch_size, shuffle, data, schema, cat_names, cont_names, label_names: the arguments; setting one takes effect
            at the next epoch.
    """

    batch_size, shuffle, data = _Setting("batch_size"), _Setting("shuffle"), _Setting("data")
    cat_names, cont_names = _Setting("cat_names", "cats"), _Setting("cont_names", "conts")
    label_names, schema = _Setting("label_names", "labels"), _Setting("schema", "schema")

    def _set_up(
        self,
        data: Any,
        batch_size: int,
        cats: Names,
        conts: Names,
        labels: Names,
        options: StreamOptions,
        *,
        schema: Any = None,
        lists: ListOptions | None = None,
        stack_labels: bool = False,
        seed_fn: Callable[[], Any] | None = None,
        device: Any = None,
    ) -> None:
        known = StreamOptions.__annotations__
        if unknown := [name for name in options if name not in known]:
            raise ArgumentError(f"the loader has no option {unknown[0]!r}. Available: {', '.join(known)}.")
        if seed_fn is not None and not callable(seed_fn):
            raise ArgumentError(f"seed_fn is {seed_fn!r}, expected a function. Pass a number as seed.")
        self._data = list(data) if isinstance(data, Iterator) else data
        self._batch_size, self._schema = batch_size, schema
        self._cat_names, self._cont_names, self._label_names = cats, conts, labels
        self._shuffle = options.get("shuffle", True)
        self._options, self._lists = options, lists or ListOptions()
        self._stack_labels, self._seed_fn = stack_labels, seed_fn
        self._functions: tuple[Callable[..., Any], ...] = ()
        self._workflow: Any = None
        self._epochs_per_pass = 1
        self._opened: tuple[Rows, Any] | None = None  # the rows, and their schema
        self._passes: Epochs[T] | None = None
        self._batch_itr: Iterator[T] | None = None  # NVTabular's name; None unless a pass of `next` has begun
        self._peeked: list[tuple[T, tuple[int, int, int]]] = []  # the batch of `peek`, and the position after it
        self._use_device(device)
        self._renew()

    def __getstate__(self) -> dict[str, Any]:
        """Drop the pass of `next`, so that the loader can be sent to worker processes."""
        return {**self.__dict__, "_batch_itr": None, "_peeked": []}

    def _use_device(self, device: Any) -> None:
        """Check and store the device of the batches, before the data is opened."""

    def _tensors(self, reading: Reading, batch: Batch) -> T:
        """Convert a batch to the framework's tensors. Called in background threads."""
        raise NotImplementedError

    def _tensor(self, array: Any) -> Any:
        raise NotImplementedError

    def _columns(self) -> Columns:
        return tagged_columns(self._found()[1], self._cat_names, self._cont_names, self._label_names)

    def _found(self) -> tuple[Rows, Any]:
        """Return the rows and their schema, opening the data if it is new."""
        if self._opened is None:
            rows = open_rows(self._data)
            self._opened = rows, schema_of(self._data, rows)
        rows, schema = self._opened
        return rows, schema if self._schema is None else self._schema

    def map(self, function: Any) -> "Self":
        """Apply a function to every batch, or compute the columns with an NVTabular workflow, from the next epoch on.

        Args:
            function: takes inputs and labels, and returns a batch, for example inputs, labels and sample weights. Or a
                fitted workflow that keeps every row; it runs in the background, on one row group at a time. Its inputs,
                and columns that it does not produce, come from the data. A hashed value always gets the same bucket,
                which NVTabular does not guarantee on a CPU.
        """
        if callable(function):
            self._functions = (*self._functions, function)
            self._renew()
            return self
        before, self._workflow = self._workflow, function
        try:
            self._open()
        except Exception:
            self._workflow = before
            raise
        return self

    def epochs(self, epochs: int = 1) -> "Self":
        """Return a loader over the same rows whose passes have `epochs` epochs each."""
        if not isinstance(epochs, int) or epochs < 1:
            raise ConfigError(f"epochs is {epochs!r}, expected a positive integer.")
        several = copy.copy(self)
        several._epochs_per_pass, several._passes, several._is_open = epochs, None, False
        several._epochs.start_at((*self._epochs.start[:2], epochs))
        return several

    @property
    def num_rows(self) -> int:
        return self._epochs.stream.num_rows

    def __len__(self) -> int:
        return len(self._epochs)

    def __iter__(self) -> Iterator[T]:
        """Iterate over the next epoch, or over the remaining batches of an epoch restored by `load_state_dict`."""
        return iter(self._epochs)

    def __next__(self) -> T:
        """Return the next batch of a pass that begins with the first call. After its end, the next one begins."""
        if self._peeked:
            batch, self._epochs.position = self._peeked.pop()
            return batch
        if self._batch_itr is None:
            self._batch_itr = iter(self)
        try:
            return next(self._batch_itr)
        except BaseException:
            self._batch_itr = None
            raise

    def peek(self) -> T:
        """Return the batch that `next` will return."""
        if not self._peeked:
            before = self._epochs.position
            batch = next(self)
            self._peeked.append((batch, self._epochs.position))
            self._epochs.position = before
        return self._peeked[0][0]

    def stop(self) -> None:
        """End the pass of `next`. Other passes end when their iterator is dropped. The loader can be used again."""
        self._batch_itr = None
        self._peeked.clear()

    @property
    def _working(self) -> bool:
        """Whether a pass of `next` has begun, under NVTabular's name."""
        return self._batch_itr is not None

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last returned batch, as built-in types.

        It is the model's position only if you iterate over the loader yourself: Keras's `fit` reads a few batches
        ahead, and worker processes have their own positions.
        """
        return self._epochs.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved position. The next pass yields exactly the remaining batches of the epoch."""
        self._epochs.load_state_dict(state)

    @property
    def _epochs(self) -> Epochs[T]:
        if not self._is_open:
            self._open()
        assert self._passes is not None
        return self._passes

    def _renew(self) -> None:
        """Create the source of the next epoch now, or at first use if columns are missing that `map` may compute."""
        self._is_open = False
        with suppress(ColumnsError):
            self._open()

    def _open(self) -> None:
        """Create the source of the next epoch from the current arguments."""
        self._reading = reading = Reading(columns=self._columns(), lists=self._lists)
        self._check(reading)
        stream = self._stream(self._options)
        finish = partial(self._finish, self._functions)
        source = Source(stream=stream, make=partial(self._tensors, reading), finish=finish)
        if self._passes is None:
            self._passes = Epochs(source, self._epochs_per_pass, self._seed_fn)
        else:
            self._passes.source = source
        self._is_open = True

    def _check(self, reading: Reading) -> None:
        cats, conts, labels = reading.columns.cats, reading.columns.conts, reading.columns.labels
        if both := sorted(set(cats) & set(conts)):
            raise ConfigError(
                f"columns {both} are listed both as ids (int64) and as numbers (float32), but a batch has one "
                "tensor per name. List each column once, or store the column under two names."
            )
        if self._stack_labels and (ids := sorted(set(cats) & set(labels))):
            raise ConfigError(f"labels {ids} are int64 ids, which cannot be stacked. Omit stack_labels.")
        reading.lists.check(reading.input_names)

    def _dtypes(self, columns: Columns) -> Mapping[str, npt.DTypeLike]:
        """Return the types of a batch's columns; a column without one keeps its type."""
        return {
            **dict.fromkeys(columns.cats, np.int64),
            **dict.fromkeys(columns.conts, np.float32),
            # A label that is also an id stays int64, because float32 cannot represent all integers above 2**24.
            **{name: np.float32 for name in columns.labels if name not in columns.cats},
        }

    def _stream(self, options: StreamOptions) -> BatchStream:
        rows, _ = self._found()
        columns = self._reading.columns
        names = list(dict.fromkeys((*self._reading.input_names, *columns.labels)))
        _check_nested(rows.schema, names, columns.shapes)
        transform: Transform | None = None
        if self._workflow is not None:
            from rankline.workflows.nvt.fitted import OnlineWorkflow  # NVTabular takes seconds to import

            transform = OnlineWorkflow(self._workflow, keep=names)
        chosen: StreamOptions = {**options, "shuffle": self._shuffle}
        return BatchStream(
            rows, names, batch_size=self._batch_size, dtypes=self._dtypes(columns), transform=transform, **chosen
        )

    def _finish(self, functions: Sequence[Callable[..., Any]], batch: Any) -> T:
        """Apply the functions of `map`. Called by the consumer."""
        for function in functions:
            batch = function(*batch)
        return batch  # type: ignore[no-any-return]


class SchemaLoader(BatchLoader[T]):
    """Base class of the loaders with the arguments and batches of merlin-dataloader's `Loader`.

    A batch is `(inputs, labels)`. `inputs` has every column of the schema that is not tagged TARGET: `name` of shape
    (N,), or (N, *shape) if all rows have a list of that shape according to the schema, or `name__values` (M,) and
    `name__offsets` (N + 1,), int32. `labels` is of shape (N,), a dict of such tensors for several labels, or None.
    All have the types of the data.

    Args:
        dataset: the data, see `open_rows`. Its schema names the columns.
        batch_size: rows per batch; only the last batch of an epoch is smaller.
        seed_fn: returns the seed of each epoch.
        transforms: not supported; pass a workflow or a function to `map`.
        device: as for NVTabular's loader of the framework.
        **options: see `rankline.training.data.loader.stream.BatchStream` for these and the others.

    Raises:
        ConfigError: an argument is out of range.
        DataError: there are no files or rows, or parts have different columns.
    """

    dataset, input_schema = _Setting("data"), _Setting("schema", "schema")  # merlin-dataloader's names

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        shuffle: bool = False,
        seed_fn: Callable[[], Any] | None = None,
        parts_per_chunk: int = DEFAULT_PARTS_PER_CHUNK,
        global_size: int | None = None,
        global_rank: int | None = None,
        drop_last: bool = False,
        transforms: None = None,
        device: Any = None,
        *,
        buffer_size: float | str = DEFAULT_BUFFER_SIZE,
        **options: "Unpack[OwnOptions]",
    ) -> None:
        if transforms is not None:
            raise ConfigError(
                "transforms is not supported. Pass a fitted nvtabular.Workflow, or a function of inputs and labels, to "
                "loader.map()."
            )
        chosen = stream_options(
            options, shuffle, buffer_size, parts_per_chunk, global_size, global_rank, drop_last=drop_last
        )
        self._set_up(dataset, batch_size, OMITTED, OMITTED, OMITTED, chosen, seed_fn=seed_fn, device=device)

    def _columns(self) -> Columns:
        if any(names is not OMITTED for names in (self._cat_names, self._cont_names, self._label_names)):
            raise ConfigError("the columns of a Loader are those of its schema. Set loader.schema instead.")
        rows, schema = self._found()
        return all_columns(schema, rows)

    def _dtypes(self, columns: Columns) -> Mapping[str, npt.DTypeLike]:  # noqa: ARG002
        return {}

    def _tensors(self, reading: Reading, batch: Batch) -> Any:
        inputs: dict[str, Any] = {}
        for name, column in reading.inputs(batch).items():
            if isinstance(column, Ragged):
                inputs[name + VALUES] = self._tensor(column.values)
                inputs[name + OFFSETS] = self._tensor(column.offsets.astype(np.int32, copy=False))
            else:
                inputs[name] = self._tensor(column)
        labels = {name: self._tensor(single_values(name, batch[name])) for name in reading.columns.labels}
        return inputs, labels if len(labels) > 1 else next(iter(labels.values()), None)


def stream_options(
    options: OwnOptions,
    shuffle: bool,
    buffer_size: float | str,
    parts_per_chunk: int,
    global_size: int | None,
    global_rank: int | None,
    *,
    drop_last: bool,
) -> StreamOptions:
    """Return NVTabular's arguments of a loader together with the others."""
    return {
        **options,
        "shuffle": shuffle,
        "buffer_size": buffer_size,
        "parts_per_chunk": parts_per_chunk,
        "global_size": 1 if global_size is None else global_size,
        "global_rank": 0 if global_rank is None else global_rank,
        "drop_last": drop_last,
    }


def single_values(name: str, column: Column) -> npt.NDArray[Any]:
    """Return a label column, of shape (N,)."""
    if isinstance(column, Ragged) or column.ndim > 1:
        raise DataError(f"label column {name!r} contains lists, expected one number per row.")
    return column


def _check_nested(schema: Any, names: Sequence[str], shapes: Mapping[str, Any]) -> None:
    for name in names:
        if name in schema.names and is_nested(schema.field(name).type) and name not in shapes:
            raise ConfigError(
                f"column {name!r} has lists of lists, but the schema does not give their shape. Set it with "
                f"dataset.schema[{name!r}] = dataset.schema[{name!r}].with_shape((None, rows, columns))."
            )
