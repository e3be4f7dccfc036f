"""The TensorFlow loaders: Keras sequences with the arguments of NVTabular's and merlin-dataloader's."""

import multiprocessing.dummy
import os
import re
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import pyarrow as pa
import tensorflow as tf
import tf_keras

from rankline.training.data.loader.dataset import OMITTED, Names, merlin_dataset
from rankline.training.data.loader.epochs import BatchLoader, Reading, SchemaLoader, single_values, stream_options
from rankline.training.data.loader.lists import ListOptions, Sparse
from rankline.training.data.loader.stream import DEFAULT_BUFFER_SIZE, DEFAULT_PARTS_PER_CHUNK, Batch, OwnOptions
from rankline.workflows.core.errors import ArgumentError, ConfigError, DataError
from rankline.workflows.core.optional_packages import require
from rankline.workflows.schema.feature_spec import PARQUET
from rankline.workflows.schema.ragged import Ragged
from rankline.workflows.schema.tensor_names import NNZS, OFFSETS, VALUES

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

VARIABLE = "TF_MEMORY_ALLOCATION"

_given: dict[str, tuple[str, int]] = {}  # GPU → value of the variable, and the limit that was set


def limit_tensorflow_memory(environment: Mapping[str, str] = os.environ) -> dict[str, int]:
    """Limit TensorFlow's memory on each visible GPU if `TF_MEMORY_ALLOCATION` is set. Call it before TensorFlow uses a
    GPU.

    Args:
        environment: where to look up the variable: MB if at least 1, otherwise a fraction of the free memory.

    Returns:
        GPU → limit in MB; empty without GPUs or without the variable.
    """
    text = environment.get(VARIABLE)
    if text is None:
        return {}
    amount = _parse(text)
    limits = {}
    for number, gpu in enumerate(tf.config.list_physical_devices("GPU")):
        if gpu.name not in _given or _given[gpu.name][0] != text:
            free_mb = _free_mb(_nvml_index(number, environment)) if amount < 1 else 0
            limit = limit_mb(amount, free_mb)
            try:
                tf.config.set_logical_device_configuration(
                    gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=limit)]
                )
            except RuntimeError:
                raise ConfigError(
                    f"{VARIABLE} is {text!r}, but TensorFlow has already allocated its memory. Create the first "
                    "loader or call limit_tensorflow_memory before creating any tensors."
                ) from None
            _given[gpu.name] = text, limit
        limits[gpu.name] = _given[gpu.name][1]
    return limits


def limit_mb(amount: float, free_mb: int) -> int:
    """Convert a memory amount to MB. Amounts below 1 are fractions of the free memory."""
    return int(amount if amount >= 1 else amount * free_mb)


def _parse(text: str) -> float:
    if re.fullmatch(r"\d*\.?\d+", text.strip()) and float(text) > 0:
        return float(text)
    raise ConfigError(
        f'{VARIABLE} is {text!r}, expected a size in MB such as "8192", or a fraction of the free memory such as "0.5".'
    )


def _nvml_index(number: int, environment: Mapping[str, str]) -> int | str:
    visible = [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    name = visible[number] if number < len(visible) else str(number)
    return int(name) if name.isdigit() else name


def _free_mb(gpu: int | str) -> int:
    require("pynvml", feature="a fraction of GPU memory", extra="gpu")
    import pynvml

    pynvml.nvmlInit()
    try:
        by_index = isinstance(gpu, int)
        handle = pynvml.nvmlDeviceGetHandleByIndex(gpu) if by_index else pynvml.nvmlDeviceGetHandleByUUID(gpu)
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).free) >> 20
    finally:
        pynvml.nvmlShutdown()


Inputs = dict[str, Any]

_TURN_TIMEOUT_S = 5.0
_INSPECTED = 2  # batches that Keras 3 reads to learn the types, before an epoch begins; Keras 2 reads one
_LAYOUTS = ("nnzs", "offsets")
_ID_COLUMNS = (
    "IdentityCategoricalColumn", "HashedCategoricalColumn", "VocabularyListCategoricalColumn",
    "VocabularyFileCategoricalColumn",
)  # fmt: skip
_ALIGNMENT_BYTES = 64  # TensorFlow aborts the process if memory is less aligned


class _KerasLoader(BatchLoader[Any], keras.utils.PyDataset, tf_keras.utils.Sequence):  # type: ignore[misc]  # they have no types
    """A loader that `fit`, `evaluate` and `predict` of Keras 2 and Keras 3 accept.

    Keras accesses batches by index. `loader[index]` is that batch of the current epoch for a caller with a thread of
    its own, such as Keras when it inspects the first batches. In an epoch, Keras requests the indexes in random order
    (`fit` by default), from threads of TensorFlow; these receive the batches in the order of the loader. Worker threads
    of Keras do, too, if the loader shuffles. If it does not, they wait for their turn, and `fit` needs `shuffle=False`.
    """

    def _use_device(self, device: Any) -> None:
        """Check the device. TensorFlow copies a batch to the device that uses it."""
        if device is not None and not isinstance(device, str | int):
            raise ArgumentError(f"device is {device!r}, expected the name or number of a device.")
        limit_tensorflow_memory()
        self._set_up_keras()

    def _set_up_keras(self) -> None:
        super().__init__()  # PyDataset's
        self._process = os.getpid()
        self._turn = threading.Condition()  # Keras may call from several threads
        self._rest: Generator[Any, None, None] | None = None  # the pass that Keras's batches come from
        self._begin_pass()

    def _tensor(self, array: Any) -> Any:
        return _tensor(array)

    def as_dataset(self) -> Any:
        """Return the loader as a `tf.data.Dataset`. Each pass over the dataset is an epoch, with one batch prefetched.

        It works with `fit` and with the transformations of `tf.data`. The position of `state_dict` includes batches
        that are read ahead of the model.

        Raises:
            DataError: there are no batches; iteration raises the errors of `BatchStream.made`.
        """
        widths = {**self._reading.columns.widths, **(self._lists.sparse_max or {})}
        if unknown := sorted(set(self._lists.sparse_names) - set(widths)):
            raise ConfigError(f"a tf.data.Dataset requires the width of {unknown}. Pass it in sparse_max.")
        first = self._epochs.first()
        if first is None:
            raise DataError(
                f"the data has {self.num_rows} rows, fewer than one batch of {self.batch_size}. Use smaller batches."
            )
        signature = tf.nest.map_structure(_any_rows, _without_none(first))
        dataset = tf.data.Dataset.from_generator(lambda: map(_without_none, self), output_signature=signature)
        if not self._epochs.is_resuming:
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(self)))
        return dataset.prefetch(1)

    def __getitem__(self, index: int) -> Any:
        """Return batch `index` of the current epoch, or the next one to a thread of Keras.

        Raises:
            ConfigError: Keras's workers request batches out of order without `shuffle`, or `load_state_dict` restored a
                position in the middle of the epoch.
        """
        if os.getpid() != self._process:
            raise ConfigError("the loader uses threads and cannot run in another process. Omit use_multiprocessing.")
        if self._epochs.is_resuming:  # opens the loader, which may find that a column is missing
            raise ConfigError(
                "batches cannot be indexed after load_state_dict. Iterate over the loader, or pass "
                "loader.as_dataset() to fit()."
            )
        if not 0 <= index < self._length:
            raise IndexError(f"batch index {index} is out of range for {self._length} batches")
        thread = threading.current_thread()
        with self._turn:
            if isinstance(thread, multiprocessing.dummy.DummyProcess):
                if not self.shuffle:
                    self._wait_for(index)
                return self._next_for_keras()
            if isinstance(thread, threading._DummyThread):  # TensorFlow's, which Python did not start
                return self._next_for_keras()
            if index == 0:
                self._served = 0  # Keras inspects the first batch before it starts, perhaps after a fit that failed
            return self._batch(index)

    def on_epoch_end(self) -> None:
        """Advance to the next epoch. Called by Keras."""
        with self._turn:
            self._begin_pass()
            self._epochs.skip()
            self._turn.notify_all()

    def stop(self) -> None:
        """End an unfinished pass started by `next` or Keras, and stop its threads. The loader can be used again.

        Your own passes end when their iterator is dropped, but Keras keeps a reference to a loader whose `fit` failed.
        """
        super().stop()
        with self._turn:
            self._begin_pass()

    def epochs(self, epochs: int = 1) -> "Self":
        several = super().epochs(epochs)
        several._set_up_keras()  # with a pass of its own
        return several

    def _open(self) -> None:
        super()._open()
        with self._turn:
            if self._rest is None:  # otherwise Keras is in the middle of an epoch, which it ends as it began
                self._begin_pass()

    def _begin_pass(self) -> None:
        if self._rest is not None:
            self._rest.close()
        self._rest = None
        self._length = len(self._passes) if self._passes else 0
        self._at = 0  # index of the next batch of `_rest`
        self._served = 0  # batches of this epoch that Keras has received
        self._inspected: dict[int, Any] = {}  # the first batches, which Keras requests twice

    def _next_for_keras(self) -> Any:
        batch = self._batch(self._served)
        self._served = (self._served + 1) % self._length  # without on_epoch_end the same epoch repeats
        self._turn.notify_all()
        return batch

    def _batch(self, index: int) -> Any:
        if index in self._inspected:
            return self._inspected[index]
        if self._rest is None or index != self._at:
            if self._rest is not None:
                self._rest.close()
            self._rest, self._at = self._epochs.again(index), index
        try:
            batch = _without_none(next(self._rest))
        except BaseException:
            self._rest = None
            raise
        self._at += 1
        if index < _INSPECTED:
            self._inspected[index] = batch
        return batch

    def _wait_for(self, index: int) -> None:
        """Wait until batch `index` is next. Raise ConfigError if batches are requested out of order or other workers
        make no progress.
        """
        while (now := (self._epochs.epoch, self._served))[1] != index:
            if not self._turn.wait(_TURN_TIMEOUT_S) and (self._epochs.epoch, self._served) == now:
                raise ConfigError(
                    f"batch {index} was requested, but batch {self._served} of this unshuffled loader is next. "
                    "Request batches in order (shuffle=False in fit), or create the loader with shuffle=True."
                )


class KerasSequenceLoader(_KerasLoader):
    """Batches of rows as tensors, for `model.fit` or a custom training loop, with NVTabular's arguments.

    A batch is `(inputs, labels)`. `inputs` has `name` of shape (N, 1) for a single-value column and (N, W) if every row
    has a list of W values. A column of lists of any length becomes `name__values` of shape (M, 1), all values of the
    batch one after another, and either `name__nnzs` of shape (N, 1), int32, the number of values of each row, or
    `name__offsets` of shape (N + 1,), int32. Ids are int64, numbers float32. `labels` is float32 of shape (N, 1), int64
    for a label that is also an id, a tuple of such tensors for several labels, or None without labels. Tensors share
    memory with the batch.

    Each pass over the loader is an epoch, with its own order if `shuffle` is set. It is a `Sequence` of Keras 2
    (`tf_keras`) and a `PyDataset` of Keras 3. The environment variable `TF_MEMORY_ALLOCATION` limits TensorFlow's share
    of a GPU when the first loader is created.

    Args:
        paths_or_dataset: files, glob patterns or directories of Parquet files, local or remote ("s3://…"); an
            `nvtabular.Dataset`; or a DataFrame of pandas, Dask, Polars or Arrow. All but Parquet files is held in
            memory.
        batch_size: rows per batch; only the last batch of an epoch is smaller.
        label_names: columns to predict; None for none. If omitted, those tagged TARGET in the schema.
        feature_columns: `tf.feature_column`s that define the columns to read, instead of `cat_names` and `cont_names`.
            Ids outside a column's buckets raise an error.
        cat_names: id columns, single values or lists. If omitted, those tagged CATEGORICAL.
        cont_names: number columns. If omitted, those tagged CONTINUOUS.
        engine: format of the files, "parquet" by default, or another that NVTabular's Dataset reads, such as "csv".
        seed_fn: returns the seed of each epoch.
        device: TensorFlow copies batches to the device that uses them, so this only checks the value.
        reader_kwargs: options of NVTabular's Dataset for the files.
        sparse_names: list columns that become sparse tensors of shape (N, width).
        sparse_max: width of each of them; by default the maximum length in the schema or the batch.
        sparse_as_dense: pad them with zeros to (N, width) instead.
        schema: the Merlin schema; by default that of the dataset, or the one stored with the files.
        list_layout: "nnzs" or "offsets".
        stack_labels: return several labels as one tensor, (N, number of labels).
        **options: see `rankline.training.data.loader.stream.BatchStream` for these and the others: seed, pad,
            fill_nulls, cardinalities, finite, prefetch, num_threads, bucket_by.

    Raises:
        ConfigError: an argument is out of range, or there are no columns to load.
        DataError: there are no files or rows, or parts have different columns; at first use, a column is missing.
    """

    def __init__(
        self,
        paths_or_dataset: Any,
        batch_size: int,
        label_names: Names = OMITTED,
        feature_columns: Sequence[Any] | None = None,
        cat_names: Names = OMITTED,
        cont_names: Names = OMITTED,
        engine: str | None = None,
        shuffle: bool = True,
        seed_fn: Callable[[], Any] | None = None,
        buffer_size: float | str = DEFAULT_BUFFER_SIZE,
        device: str | int | None = None,
        parts_per_chunk: int = DEFAULT_PARTS_PER_CHUNK,
        reader_kwargs: Mapping[str, Any] | None = None,
        global_size: int | None = None,
        global_rank: int | None = None,
        drop_last: bool = False,
        sparse_names: Sequence[str] | None = None,
        sparse_max: Mapping[str, int] | None = None,
        sparse_as_dense: bool = False,
        schema: Any = None,
        *,
        list_layout: str = "nnzs",
        stack_labels: bool = False,
        **options: "Unpack[OwnOptions]",
    ) -> None:
        if list_layout not in _LAYOUTS:
            raise ConfigError(f"list_layout is {list_layout!r}, expected {' or '.join(_LAYOUTS)}.")
        if feature_columns is not None:
            if any(names is not OMITTED and names for names in (cat_names, cont_names)):
                raise ConfigError(
                    "feature_columns and cat_names/cont_names both select columns. Pass only one of them."
                )
            cat_names, cont_names, cardinalities = _described_by(feature_columns)
            options["cardinalities"] = {**cardinalities, **(options.get("cardinalities") or {})}
        reader_kwargs = {name: value for name, value in (reader_kwargs or {}).items() if name != "cpu"}
        if reader_kwargs or engine not in (None, PARQUET):
            paths_or_dataset = merlin_dataset(paths_or_dataset, engine or PARQUET, reader_kwargs)
        self._list_layout = list_layout
        self._set_up(
            paths_or_dataset,
            batch_size,
            cat_names,
            cont_names,
            label_names,
            stream_options(
                options, shuffle, buffer_size, parts_per_chunk, global_size, global_rank, drop_last=drop_last
            ),
            schema=schema,
            lists=ListOptions(sparse_names=sparse_names or (), sparse_max=sparse_max, sparse_as_dense=sparse_as_dense),
            stack_labels=stack_labels,
            seed_fn=seed_fn,
            device=device,
        )

    def _tensors(self, reading: Reading, batch: Batch) -> tuple[Inputs, Any]:
        inputs: Inputs = {}
        for name, column in reading.inputs(batch).items():
            if isinstance(column, Ragged):
                inputs[name + VALUES] = _tensor(column.values.reshape(-1, 1))
                if self._list_layout == "nnzs":
                    inputs[name + NNZS] = _tensor(column.lengths.reshape(-1, 1))
                else:
                    inputs[name + OFFSETS] = _tensor(column.offsets.astype(np.int32, copy=False))
            elif isinstance(column, Sparse):
                inputs[name] = tf.sparse.SparseTensor(column.coordinates, _tensor(column.values), column.shape)
            else:
                inputs[name] = _tensor(column if column.ndim > 1 else column.reshape(-1, 1))
        labels = tuple(_tensor(single_values(name, batch[name]).reshape(-1, 1)) for name in reading.columns.labels)
        if len(labels) > 1 and self._stack_labels:
            return inputs, tf.concat(labels, axis=1)
        return inputs, labels if len(labels) > 1 else labels[0] if labels else None


class Loader(SchemaLoader[Any], _KerasLoader):
    """Batches of rows as tensors, as from merlin-dataloader. See `SchemaLoader`."""


class KerasSequenceValidater(keras.callbacks.Callback, tf_keras.callbacks.Callback):  # type: ignore[misc]
    """Callback that evaluates on a loader after each epoch, and adds `val_loss` and the other `val_` metrics to the
    logs. It works with Keras 2 and Keras 3.
    """

    def __init__(self, loader: _KerasLoader) -> None:
        super().__init__()
        self._loader = loader

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002  (Keras's signature)
        results: Mapping[str, float] = self.model.evaluate(self._loader, verbose=0, return_dict=True)
        if logs is not None:
            logs.update({f"val_{name}": value for name, value in results.items()})


def _without_none(batch: Any) -> Any:
    """Drop the labels of a batch that has none. A `tf.data.Dataset` cannot contain None."""
    return batch[:1] if isinstance(batch, tuple) and len(batch) == 2 and batch[1] is None else batch


def _tensor(array: Any) -> Any:
    """Convert an array to a tensor, without the copy of `tf.convert_to_tensor` if the memory is aligned.

    NumPy does not export read-only memory, such as a memory-mapped file, through DLPack; Arrow does.
    """
    if not array.size or array.ctypes.data % _ALIGNMENT_BYTES:
        return tf.convert_to_tensor(array)
    exporter = array if array.flags.writeable else pa.array(array.reshape(-1))
    tensor = tf.experimental.dlpack.from_dlpack(exporter.__dlpack__())
    return tensor if tensor.shape == array.shape else tf.reshape(tensor, array.shape)


def _any_rows(tensor: Any) -> Any:
    if isinstance(tensor, tf.SparseTensor):
        return tf.SparseTensorSpec((None, *tensor.shape[1:]), tensor.dtype)
    return tf.TensorSpec((None, *tensor.shape[1:]), tensor.dtype)


def _described_by(feature_columns: Sequence[Any]) -> tuple[list[str], list[str], dict[str, int]]:
    """Return the keys of the categorical columns, the keys of the numeric columns, and the cardinality of each identity
    column.
    """
    cat_names: list[str] = []
    cont_names: list[str] = []
    cardinalities: dict[str, int] = {}
    for column in feature_columns:
        ids = getattr(column, "categorical_column", column)
        kind = type(ids).__name__
        if kind == "NumericColumn":
            cont_names.append(ids.key)
        elif kind in _ID_COLUMNS:
            cat_names.append(ids.key)
            if kind == "IdentityCategoricalColumn":
                cardinalities[ids.key] = ids.number_buckets
        else:
            raise ConfigError(
                f"feature column {column.name!r} is a {kind}, expected a numeric column or a "
                "categorical identity, hash-bucket or vocabulary column. Pass cat_names and cont_names "
                "instead."
            )
    return cat_names, cont_names, cardinalities
