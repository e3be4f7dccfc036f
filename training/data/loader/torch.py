"""PyTorch loader with the same classes and arguments as NVTabular's loader.

A dataset over Parquet files creates the batches, and a data loader returns them:

    dataset = TorchAsyncItr("train", cats=["user", "item", "tags"], labels=["rating"], batch_size=32_768)
    for inputs, rating in DLDataLoader(dataset, batch_size=None): ...
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
import torch.utils.data

from rankline.training.data.loader.epochs import ParquetLoader
from rankline.training.data.loader.memory import buffer_bytes
from rankline.training.data.loader.stream import Batch, BatchStream, Column, StreamOptions
from rankline.workflows.core.errors import ConfigError, DataError
from rankline.workflows.schema.ragged import Ragged

if TYPE_CHECKING:
    from typing_extensions import Unpack

Inputs = dict[str, torch.Tensor | tuple[torch.Tensor, torch.Tensor]]
Labels = torch.Tensor | tuple[torch.Tensor, ...]
T = TypeVar("T")


class TorchAsyncItr(ParquetLoader[tuple[Inputs, Labels]], torch.utils.data.IterableDataset[tuple[Inputs, Labels]]):
    """Batches of rows from Parquet files as tensors, for a `DLDataLoader` or a custom training loop.

    A batch is `(inputs, labels)`. `inputs` has int64 (N, 1) for an id column and float32 (N, 1) for a number column. A
    list column is a tuple of all its values, (M,), and the offset of each row's first value, int64 (N, 1), as
    `torch.nn.EmbeddingBag` expects them; lists of a fixed length W are (N, W). `labels` is float32 (N,), int64 for a
    label that is also an id, or a tuple of such tensors for several labels. Tensors share memory with the decoded rows
    if types allow.

    Each pass is an epoch with its own order. In a worker process of a data loader, a pass has that worker's share of
    the rows, and uses its share of `buffer_size` if given. With PyTorch's own `DataLoader` and worker processes,
    PyTorch's seed also affects the order.

    Args:
        dataset: files, globs or directories, or an `nvtabular.Dataset` of files.
        cats: id columns, single values or lists.
        conts: number columns.
        labels: columns to predict.
        batch_size: rows per batch; only the last batch of an epoch is smaller.
        device: device of the batches; worker processes of a data loader leave them in main memory.
        stack_labels: return several labels as one tensor, (N, number of labels).
        **options: options of `BatchStream`. Unlike in NVTabular, `shuffle` is on by default.

    Attributes:
        cat_names, cont_names, label_names: columns of a batch.
        device: device of the batches.
        num_rows_processed: rows returned so far, in all epochs.

    Raises:
        ConfigError: an argument is out of range, or the device does not exist.
        DataError: there are no files, or files are damaged or have different schemas; at first use, files lack a
            column.
    """

    def __init__(
        self,
        dataset: Any,
        cats: Sequence[str] | None = None,
        conts: Sequence[str] | None = None,
        labels: Sequence[str] | None = None,
        batch_size: int = 1,
        *,
        device: torch.device | str | int | None = None,
        stack_labels: bool = False,
        **options: "Unpack[StreamOptions]",
    ) -> None:
        self.cat_names, self.cont_names, self.label_names = list(cats or ()), list(conts or ()), list(labels or ())
        if not self.label_names or not (self.cat_names or self.cont_names):
            raise ConfigError("the loader requires labels and at least one column in cats or conts.")
        self.device = existing_device(device)
        self.num_rows_processed = 0
        self._is_counted = False
        self._set_up(
            dataset,
            batch_size,
            self.cat_names,
            self.cont_names,
            self.label_names,
            options,
            stack_labels=stack_labels,
        )

    def num_batches(self, num_workers: int) -> int:
        """Return the number of batches per epoch when a data loader uses `num_workers` worker processes (0 for
        none).
        """
        return len(self._share(0, max(1, num_workers))) * max(1, num_workers)

    def __iter__(self) -> Iterator[tuple[Inputs, Labels]]:
        """Iterate over the next epoch, or over the remaining batches of an epoch restored by `load_state_dict`."""
        worker = torch.utils.data.get_worker_info()
        if worker is not None:
            if self._epochs.is_resuming:
                raise ConfigError(
                    "worker processes cannot resume from a saved position. Set num_workers=0, which is also the "
                    "fastest setting."
                )
            share, epoch = self._share(worker.id, worker.num_workers), self._epochs.epoch
            if not self._is_counted:  # PyTorch's own loader copies the same state each epoch, with another seed
                epoch += worker.seed - worker.id
            self._epochs.skip()
            return share.made(self._tensors, epoch)
        return self._counted(iter(self._epochs))

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

    def _tensors(self, batch: Batch) -> tuple[Inputs, Labels]:
        inputs: Inputs = {name: _column(batch[name]) for name in self._input_names}
        labels = tuple(self._label(name, batch[name]) for name in self.label_names)
        if self._stack_labels and len(labels) > 1:
            return inputs, torch.stack(labels, dim=1)
        return inputs, labels[0] if len(labels) == 1 else labels

    def _label(self, name: str, column: Column) -> torch.Tensor:
        if isinstance(column, Ragged) or column.ndim != 1:
            raise DataError(f"label column {name!r} contains lists, expected one number per row.")
        label = _tensor(column)
        return label.clone() if name in self._input_names else label

    def _counted(self, batches: Iterator[tuple[Inputs, Labels]]) -> Iterator[tuple[Inputs, Labels]]:
        for inputs, labels in batches:
            self.num_rows_processed += len(labels[0] if isinstance(labels, tuple) else labels)
            yield _moved((inputs, labels), self.device)


class DLDataLoader(torch.utils.data.DataLoader[tuple[Inputs, Labels]]):
    """Data loader over the batches of a `TorchAsyncItr`, using worker processes or, without them, the dataset's
    threads.

    Threads decode as fast as processes do and need not transfer the batches, so `num_workers=0` is the fastest.

    Args:
        dataset: source of the batches.
        batch_size: must be None; the dataset creates the batches.
        collate_fn: applied to each batch.
        pin_memory: keep batches in pinned memory, from which a GPU copies asynchronously; no effect without a GPU.
        num_workers: worker processes that share the rows of an epoch.
        device: device of the batches; None for the dataset's.
        **options: options of `torch.utils.data.DataLoader`.

    Raises:
        ConfigError: a batch size is given, or the device does not exist.
    """

    dataset: TorchAsyncItr

    def __init__(
        self,
        dataset: TorchAsyncItr,
        batch_size: None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        num_workers: int = 0,
        *,
        device: torch.device | str | int | None = None,
        **options: Any,
    ) -> None:
        if batch_size is not None:
            raise ConfigError(
                f"batch_size is {batch_size}, expected None. Pass it to TorchAsyncItr, which does the batching."
            )
        self.device = dataset.device if device is None else existing_device(device)
        super().__init__(
            dataset,
            batch_size=None,
            collate_fn=_Counted(collate_fn),
            pin_memory=pin_memory and torch.cuda.is_available() and (num_workers > 0 or dataset.device.type == "cpu"),
            num_workers=num_workers,
            **options,
        )

    @property
    def num_rows(self) -> int:
        return self.dataset.num_rows

    def __len__(self) -> int:
        return self.dataset.num_batches(self.num_workers)

    def __iter__(self) -> Iterator[tuple[Inputs, Labels]]:  # type: ignore[override]  # torch declares its own iterator class
        with self.dataset.counted() if self.num_workers else nullcontext():
            batches = super().__iter__()
        for num_rows, batch in cast(Iterator[tuple[int, Any]], batches):
            if self.num_workers:
                self.dataset.num_rows_processed += num_rows
            yield _moved(batch, self.device)


class _Counted:
    """A callable that applies a function to a batch, and returns the number of rows together with the result."""

    def __init__(self, function: Callable[[Any], Any] | None) -> None:
        self._function = function

    def __call__(self, batch: Any) -> tuple[int, Any]:
        labels = batch[1]
        num_rows = len(labels[0] if isinstance(labels, tuple) else labels)
        return num_rows, self._function(batch) if self._function else batch


def existing_device(device: torch.device | str | int | None) -> torch.device:
    """Return the PyTorch device for a name, or the CPU for None.

    Raises:
        ConfigError: PyTorch does not know the name, or there is no GPU.
    """
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


def _column(column: Column) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    if isinstance(column, Ragged):
        begins = torch.from_numpy(column.offsets[:-1].astype(np.int64))
        return _tensor(column.values), begins.reshape(-1, 1)
    tensor = _tensor(column)
    return tensor.reshape(-1, 1) if tensor.ndim == 1 else tensor


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
