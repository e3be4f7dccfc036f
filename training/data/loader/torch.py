"""PyTorch loaders with the classes and arguments of NVTabular's and merlin-dataloader's.

A dataset creates the batches, and a data loader returns them:

    dataset = TorchAsyncItr("train", cats=["user", "item", "tags"], labels=["rating"], batch_size=32_768, shuffle=True)
    for inputs, rating in DLDataLoader(dataset, batch_size=None): ...
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
import torch.utils.data

from rankline.training.data.loader.dataset import OMITTED, Names
from rankline.training.data.loader.epochs import BatchLoader, Reading, SchemaLoader, single_values, stream_options
from rankline.training.data.loader.lists import ListOptions, Sparse
from rankline.training.data.loader.memory import buffer_bytes
from rankline.training.data.loader.stream import (
    DEFAULT_BUFFER_SIZE,
    DEFAULT_PARTS_PER_CHUNK,
    Batch,
    BatchStream,
    Column,
    OwnOptions,
    StreamOptions,
)
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.schema.ragged import Ragged
from rankline.workflows.schema.tensor_names import OFFSETS, VALUES

if TYPE_CHECKING:
    from typing_extensions import Unpack

Inputs = dict[str, torch.Tensor | tuple[torch.Tensor, torch.Tensor]]
Labels = torch.Tensor | tuple[torch.Tensor, ...] | None
T = TypeVar("T")


class _TorchLoader(BatchLoader[Any], torch.utils.data.IterableDataset[Any]):
    """A loader whose rows the worker processes of a data loader can share.

    Attributes:
        device: device of the batches.
        num_rows_processed: rows returned so far, in all epochs.
    """

    def _use_device(self, device: torch.device | str | int | None) -> None:
        self.device = existing_device(device)
        self.num_rows_processed = 0
        self._is_counted = False

    def _tensor(self, array: Any) -> torch.Tensor:
        return _tensor(array)

    def num_batches(self, num_workers: int) -> int:
        """Return the number of batches per epoch when a data loader uses `num_workers` worker processes (0 for
        none).
        """
        if num_workers <= 1:
            return len(self)
        return len(self._share(0, num_workers)) * num_workers * self._epochs_per_pass

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the next epoch, or over the remaining batches of an epoch restored by `load_state_dict`."""
        worker = torch.utils.data.get_worker_info()
        if worker is None:
            return super().__iter__()
        if self._seed_fn:
            raise ConfigError("worker processes would each call seed_fn. Pass a seed, or set num_workers=0.")
        if self._epochs.is_resuming:
            raise ConfigError(
                "worker processes cannot resume from a saved position. Set num_workers=0, which is also the "
                "fastest setting."
            )
        share, epoch = self._share(worker.id, worker.num_workers), self._epochs.epoch
        if not self._is_counted:  # PyTorch's own loader copies the same state each epoch, with another seed
            epoch += worker.seed - worker.id
        self._epochs.skip()
        make = partial(self._tensors, self._reading)
        passes = (share.made(make, epoch + number) for number in range(self._epochs_per_pass))
        return map(partial(super()._finish, self._functions), chain.from_iterable(passes))

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Let worker processes started inside the `with` block read the next epoch. The epoch counts as done when the
        block exits.
        """
        self._is_counted = True
        try:
            yield
        finally:
            self._is_counted = False
        self._epochs.skip()

    def _share(self, number: int, of: int) -> BatchStream:
        rank, size = self._options.get("global_rank", 0), self._options.get("global_size", 1)
        share: StreamOptions = {**self._options, "global_rank": rank * of + number, "global_size": size * of}
        if of > 1 and "buffer_size" in share:
            share["buffer_size"] = max(1, buffer_bytes(share["buffer_size"]) // of)
        return self._stream(share)

    def _finish(self, functions: Sequence[Callable[..., Any]], batch: Any) -> Any:
        self.num_rows_processed += _num_rows(batch)
        return super()._finish(functions, _moved(batch, self.device))


class TorchAsyncItr(_TorchLoader):
    """Batches of rows as tensors, for a `DLDataLoader` or a custom training loop, with NVTabular's arguments.

    A batch is `(inputs, labels)`. `inputs` has int64 (N, 1) for an id column and float32 (N, 1) for a number column. A
    list column is a tuple of all its values, (M,), and the offset of each row's first value, int64 (N, 1), as
    `torch.nn.EmbeddingBag` expects them; lists of a fixed length W are (N, W). `labels` is float32 (N,), int64 for a
    label that is also an id, a tuple of such tensors for several labels, or None without labels. Tensors share memory
    with the decoded rows if types allow.

    Each pass is an epoch with its own order. In a worker process of a data loader, a pass has that worker's share of
    the rows, and uses its share of `buffer_size` if given. With PyTorch's own `DataLoader` and worker processes,
    PyTorch's seed also affects the order.

    Args:
        dataset: the data, see `open_rows`.
        cats, conts, labels: id columns, number columns and labels. None for none; if omitted, those tagged CATEGORICAL,
            CONTINUOUS or TARGET in the schema.
        batch_size: rows per batch; only the last batch of an epoch is smaller.
        shuffle: see `BatchStream`. Off by default, as in NVTabular.
        device: device of the batches. Worker processes of a data loader leave them in main memory. A number is a GPU,
            or the CPU on a machine without GPUs, as in NVTabular.
        seed_fn, sparse_names, sparse_max, sparse_as_dense, schema: as for `KerasSequenceLoader`.
        stack_labels: return several labels as one tensor, (N, number of labels).
        **options: see `rankline.training.data.loader.stream.BatchStream`: seed, pad, fill_nulls, cardinalities, finite,
            prefetch, num_threads, bucket_by.

    Raises:
        ConfigError: an argument is out of range, there are no columns to load, or the device does not exist.
        DataError: there are no files or rows, or parts have different columns; at first use, a column is missing.
    """

    def __init__(
        self,
        dataset: Any,
        cats: Names = OMITTED,
        conts: Names = OMITTED,
        labels: Names = OMITTED,
        batch_size: int = 1,
        shuffle: bool = False,
        seed_fn: Callable[[], Any] | None = None,
        parts_per_chunk: int = DEFAULT_PARTS_PER_CHUNK,
        device: torch.device | str | int | None = None,
        global_size: int | None = None,
        global_rank: int | None = None,
        drop_last: bool = False,
        sparse_names: Sequence[str] | None = None,
        sparse_max: Mapping[str, int] | None = None,
        sparse_as_dense: bool = False,
        *,
        buffer_size: float | str = DEFAULT_BUFFER_SIZE,
        schema: Any = None,
        stack_labels: bool = False,
        **options: "Unpack[OwnOptions]",
    ) -> None:
        self._set_up(
            dataset,
            batch_size,
            cats,
            conts,
            labels,
            stream_options(
                options, shuffle, buffer_size, parts_per_chunk, global_size, global_rank, drop_last=drop_last
            ),
            schema=schema,
            lists=ListOptions(sparse_names=sparse_names or (), sparse_max=sparse_max, sparse_as_dense=sparse_as_dense),
            stack_labels=stack_labels,
            seed_fn=seed_fn,
            device=device,
        )

    def _tensors(self, reading: Reading, batch: Batch) -> tuple[Inputs, Labels]:
        inputs: Inputs = {name: _column(column) for name, column in reading.inputs(batch).items()}
        labels = tuple(_label(name, batch[name], name in inputs) for name in reading.columns.labels)
        if self._stack_labels and len(labels) > 1:
            return inputs, torch.stack(labels, dim=1)
        return inputs, labels if len(labels) > 1 else labels[0] if labels else None


class Loader(SchemaLoader[Any], _TorchLoader):
    """Batches of rows as tensors, as from merlin-dataloader. See `SchemaLoader`."""


class DLDataLoader(torch.utils.data.DataLoader[Any]):
    """Data loader over the batches of a `TorchAsyncItr` or `Loader`, using worker processes or, without them, the
    dataset's threads.

    Threads decode as fast as processes do and need not transfer the batches, so `num_workers=0` is the fastest.

    Args:
        dataset: source of the batches.
        batch_size: None, to pass each batch of the dataset to `collate_fn`; or 1, the default as in PyTorch, to pass it
            a list with one batch.
        collate_fn: applied to each batch, or to the list. By default, the batch is returned as it is.
        pin_memory: keep batches in pinned memory, from which a GPU copies asynchronously; no effect without a GPU.
        num_workers: worker processes that share the rows of an epoch.
        device: device of the batches; None for the dataset's.
        **options: options of `torch.utils.data.DataLoader`.

    Raises:
        ConfigError: another batch size is given, or the device does not exist.
    """

    dataset: _TorchLoader

    def __init__(
        self,
        dataset: _TorchLoader,
        batch_size: int | None = 1,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        num_workers: int = 0,
        *,
        device: torch.device | str | int | None = None,
        **options: Any,
    ) -> None:
        if batch_size not in (None, 1):
            raise ConfigError(
                f"batch_size is {batch_size}, expected None or 1. Pass it to the dataset, which does the batching."
            )
        self.device = dataset.device if device is None else existing_device(device)
        super().__init__(
            dataset,
            batch_size=None,
            collate_fn=_Counted(collate_fn, as_list=batch_size == 1),
            pin_memory=pin_memory and torch.cuda.is_available() and (num_workers > 0 or dataset.device.type == "cpu"),
            num_workers=num_workers,
            **options,
        )

    @property
    def num_rows(self) -> int:
        return self.dataset.num_rows

    def __len__(self) -> int:
        return self.dataset.num_batches(self.num_workers)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch declares its own iterator class
        with self.dataset.counted() if self.num_workers else nullcontext():
            batches = super().__iter__()
        for num_rows, batch in cast(Iterator[tuple[int, Any]], batches):
            if self.num_workers:
                self.dataset.num_rows_processed += num_rows
            yield _moved(batch, self.device)


class _Counted:
    """A callable that applies a function to a batch, and returns the number of rows together with the result."""

    def __init__(self, function: Callable[[Any], Any] | None, *, as_list: bool) -> None:
        self._function, self._as_list = function, as_list

    def __call__(self, batch: Any) -> tuple[int, Any]:
        if self._function is None:
            return _num_rows(batch), batch
        return _num_rows(batch), self._function([batch] if self._as_list else batch)


def _num_rows(batch: Any) -> int:
    """Return the number of rows of a batch, from any of its tensors; 0 if a function of `map` returned none."""
    inputs, labels = (*batch, None)[:2] if isinstance(batch, tuple | list) else (batch, None)
    if isinstance(inputs, dict) and inputs and labels is None:
        name, inputs = next(iter(inputs.items()))
        if name.endswith(VALUES):
            return len(batch[0][name.removesuffix(VALUES) + OFFSETS]) - 1
        inputs = inputs[1] if isinstance(inputs, tuple) else inputs
    if isinstance(labels, tuple | dict):
        labels = next(iter(labels.values() if isinstance(labels, dict) else labels))
    rows = inputs if labels is None else labels
    return len(rows) if isinstance(rows, torch.Tensor) else 0


def existing_device(device: torch.device | str | int | None) -> torch.device:
    """Return the PyTorch device for a name, or the CPU for None. A number is a GPU, or the CPU without GPUs.

    Raises:
        ConfigError: PyTorch does not know the name, or there is no GPU.
    """
    if isinstance(device, int) and not torch.cuda.is_available():
        device = None
    try:
        found = torch.device("cpu" if device is None else device)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"device is {device!r}, expected a PyTorch device such as 'cpu' or 'cuda': {reason}"
        ) from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device is {device!r}, but PyTorch finds no GPU. Omit device, or pass 'cpu'.")
    return found


def _column(column: Column | Sparse) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    if isinstance(column, Sparse):
        return torch.sparse_coo_tensor(
            _tensor(column.coordinates).T, _tensor(column.values), column.shape, check_invariants=False
        )
    if isinstance(column, Ragged):
        begins = torch.from_numpy(column.offsets[:-1].astype(np.int64))
        return _tensor(column.values), begins.reshape(-1, 1)
    tensor = _tensor(column)
    return tensor.reshape(-1, 1) if tensor.ndim == 1 else tensor


def _label(name: str, column: Column, is_input: bool) -> torch.Tensor:
    label = _tensor(single_values(name, column))
    return label.clone() if is_input else label


def _tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Writable(array)))


class _Writable:
    """A wrapper that exposes the memory of a read-only array as writable.

    Arrow's arrays are read-only; PyTorch has no read-only tensors and would warn. The memory belongs to one batch of
    one epoch, so writing to it changes nothing else.
    """

    def __init__(self, array: Any) -> None:
        self._array = array  # NumPy and PyTorch keep this object, and so the array, alive
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def _moved(batch: T, device: torch.device) -> T:
    moved: Any = batch
    if isinstance(batch, torch.Tensor):
        moved = batch.to(device, non_blocking=True)
    elif isinstance(batch, dict):
        moved = {name: _moved(value, device) for name, value in batch.items()}
    elif isinstance(batch, tuple):
        moved = tuple(_moved(value, device) for value in batch)
    return cast(T, moved)
