"""The loader's PyTorch face, with the classes and arguments that NVTabular's users know.

A dataset over Parquet files makes the batches, a data loader hands them out:

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
    """Batches of Parquet files as tensors, for a `DLDataLoader` or a loop of one's own.

    A batch is `(inputs, labels)`. `inputs` holds int64 (N, 1) for an id column and float32 (N, 1) for a number column.
    A list column is a tuple of all its values in a row, (M,), and the place int64 (N, 1) where each row's begin, which
    is what `torch.nn.EmbeddingBag` takes; lists of one fixed length W come as (N, W). `labels` is float32 (N,), int64
    for a label that is among the ids too, or a tuple of such for several label columns. Memory is shared with what was
    read, not copied, where types allow.

    Each pass is an epoch with its own order. In a worker of a data loader it is that worker's share of the rows, and
    of a `buffer_size` that is given. With PyTorch's own `DataLoader` and worker processes, PyTorch's seed counts too.

    Args:
        dataset: files, globs or directories, or an `nvtabular.Dataset` of files.
        cats: id columns, single or lists.
        conts: number columns.
        labels: columns to predict.
        batch_size: rows per batch; only the last one of an epoch is smaller.
        device: where the batches go; a worker of a data loader leaves them in main memory.
        **options: of `BatchStream`. Unlike in NVTabular, `shuffle` is on unless it is turned off.

    Attributes:
        cat_names, cont_names, label_names: what a batch holds.
        device: as given.
        num_rows_processed: rows handed out so far, in all epochs.

    Raises:
        ConfigError: an argument is out of its range, or the device is not there.
        DataError: no files, or files that are damaged or differ; at first use, files that do not hold the columns.
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
            raise ConfigError("the loader needs labels, and cats or conts.")
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
        """Batches per epoch when so many workers of a data loader share the rows; 0 for none."""
        return len(self._share(0, max(1, num_workers))) * max(1, num_workers)

    def __iter__(self) -> Iterator[tuple[Inputs, Labels]]:
        """One epoch, or what is left of it after `load_state_dict`; the next call gives the next one."""
        worker = torch.utils.data.get_worker_info()
        if worker is not None:
            if self._epochs.is_resuming:
                raise ConfigError(
                    "worker processes cannot go on from a saved position. Set num_workers=0, the fastest anyway."
                )
            share, epoch = self._share(worker.id, worker.num_workers), self._epochs.epoch
            if not self._is_counted:  # PyTorch's own loader starts each epoch from the same copy, with another seed
                epoch += worker.seed - worker.id
            self._epochs.skip()
            return share.made(self._tensors, epoch)
        return self._counted(iter(self._epochs))

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Have worker processes that start within it make the next epoch, which then counts as done."""
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
            raise DataError(f"label column {name!r} holds lists, expected one number per row.")
        label = _tensor(column)
        return label.clone() if name in self._input_names else label

    def _counted(self, batches: Iterator[tuple[Inputs, Labels]]) -> Iterator[tuple[Inputs, Labels]]:
        for inputs, labels in batches:
            self.num_rows_processed += len(labels[0] if isinstance(labels, tuple) else labels)
            yield _moved((inputs, labels), self.device)


class DLDataLoader(torch.utils.data.DataLoader[tuple[Inputs, Labels]]):
    """Hands out the batches of a `TorchAsyncItr`, made by worker processes or, without any, by its threads.

    Threads decode as fast as processes do and nothing has to be sent, so `num_workers=0` is the fastest.

    Args:
        dataset: where the batches come from.
        batch_size: None; the dataset makes the batches.
        collate_fn: applied to each batch.
        pin_memory: keep batches where a GPU can copy them from in the background; nothing happens without a GPU.
        num_workers: processes that share the rows of an epoch.
        device: where the batches go; None for the dataset's.
        **options: of `torch.utils.data.DataLoader`.

    Raises:
        ConfigError: a batch size, or the device is not there.
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
            raise ConfigError(f"batch_size is {batch_size}, expected None. Give it to TorchAsyncItr, which batches.")
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
        """Rows per epoch."""
        return self.dataset.num_rows

    def __len__(self) -> int:
        """Batches per epoch."""
        return self.dataset.num_batches(self.num_workers)

    def __iter__(self) -> Iterator[tuple[Inputs, Labels]]:  # type: ignore[override]  # torch promises its own class
        """One epoch; the next call gives the next one."""
        with self.dataset.counted() if self.num_workers else nullcontext():
            batches = super().__iter__()
        for num_rows, batch in cast(Iterator[tuple[int, Any]], batches):
            if self.num_workers:
                self.dataset.num_rows_processed += num_rows
            yield _moved(batch, self.device)


class _Counted:
    """Applies a function to a batch and sends the number of its rows along."""

    def __init__(self, function: Callable[[Any], Any] | None) -> None:
        self._function = function

    def __call__(self, batch: Any) -> tuple[int, Any]:
        labels = batch[1]
        num_rows = len(labels[0] if isinstance(labels, tuple) else labels)
        return num_rows, self._function(batch) if self._function else batch


def existing_device(device: torch.device | str | int | None) -> torch.device:
    """The device of a name that PyTorch knows; None is the CPU.

    Raises:
        ConfigError: there is none of that name, or no GPU here.
    """
    try:
        found = torch.device("cpu" if device is None else device)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"device is {device!r}, expected a device of PyTorch, such as cpu or cuda: {reason}"
        ) from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device is {device!r}, but PyTorch sees no GPU here. Leave it out, or give 'cpu'.")
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
    """Lends the memory of a read-only array as if it could be written.

    Arrow's arrays are read-only, and PyTorch, which has no such tensors, takes one with a warning. The memory belongs
    to one batch of one epoch, so whoever writes to it changes nothing else.
    """

    def __init__(self, array: Any) -> None:
        self._array = array  # what NumPy and PyTorch keep alive
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def _moved(batch: T, device: torch.device) -> T:
    """A batch on a device; on the same one it is as it was."""
    moved: Any = batch
    if isinstance(batch, torch.Tensor):
        moved = batch.to(device, non_blocking=True)
    elif isinstance(batch, dict):
        moved = {name: _moved(value, device) for name, value in batch.items()}
    elif isinstance(batch, tuple):
        moved = tuple(_moved(value, device) for value in batch)
    return cast(T, moved)
