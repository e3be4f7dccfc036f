"""The TensorFlow loader: a Keras sequence over Parquet files that accepts the same arguments as NVTabular's loader."""

import os
import re
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import tensorflow as tf
import tf_keras as keras

from rankline.training.data.loader.epochs import ParquetLoader
from rankline.training.data.loader.stream import Batch, StreamOptions
from rankline.workflows.core.errors import ConfigError, DataError
from rankline.workflows.core.optional_packages import require
from rankline.workflows.schema.ragged import Ragged
from rankline.workflows.schema.tensor_names import NNZS, OFFSETS, VALUES

if TYPE_CHECKING:
    from typing_extensions import Unpack

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
_LAYOUTS = ("nnzs", "offsets")
_ID_COLUMNS = (
    "IdentityCategoricalColumn", "HashedCategoricalColumn", "VocabularyListCategoricalColumn",
    "VocabularyFileCategoricalColumn",
)  # fmt: skip
_ALIGNMENT_BYTES = 64  # TensorFlow aborts the process if memory is less aligned


class KerasSequenceLoader(ParquetLoader[tuple[Inputs, Any]], keras.utils.Sequence):  # type: ignore[misc]  # tensorflow has no types
    """Batches of rows from Parquet files as tensors, for `model.fit` or a custom training loop.

    A batch is `(inputs, labels)`. `inputs` has `name` of shape (N, 1) for a single-value column and (N, W) if every row
    has a list of W values. A column of lists of any length becomes `name__values` of shape (M, 1), all values of the
    batch one after another, and either `name__nnzs` of shape (N, 1), int32, the number of values of each row, or
    `name__offsets` of shape (N + 1,), int32. Ids are int64, numbers float32. `labels` is float32 of shape (N, 1), int64
    for a label that is also an id, or a tuple of such tensors if there are several labels. Tensors share memory with
    the batch.

    Each pass over the loader is an epoch, with its own order if `shuffle` is set. Keras accesses batches by index. The
    loader returns them in the order of the stream and keeps only the first one of an epoch, which Keras inspects before
    it starts. With `shuffle`, any index other than 0 returns the next batch. Without it, index i returns batch i: if
    Keras uses several workers, each waits for its turn, and `fit` needs `shuffle=False` too, or Keras requests batches
    in a random order.

    The environment variable `TF_MEMORY_ALLOCATION` limits TensorFlow's share of a GPU when the first loader is created.

    Args:
        paths_or_dataset: files, glob patterns or directories of Parquet files, local or remote ("s3://…"); or an
            `nvtabular.Dataset` of such files.
        batch_size: rows per batch; only the last batch of an epoch is smaller.
        label_names: columns to predict.
        feature_columns: `tf.feature_column`s that define the columns to read, instead of `cat_names` and `cont_names`.
            Ids outside a column's buckets raise an error.
        cat_names: id columns, single values or lists.
        cont_names: number columns.
        engine: file format; only "parquet" is supported.
        list_layout: "nnzs" or "offsets".
        stack_labels: return several labels as one tensor, (N, number of labels).
        **options: options of `rankline.training.data.loader.stream.BatchStream`: shuffle, seed, parts_per_chunk,
            buffer_size, drop_last, global_rank, global_size, pad, fill_nulls, cardinalities, finite, prefetch,
            num_threads, bucket_by.

    Raises:
        ConfigError: an argument is out of range.
        DataError: there are no files, or files are damaged or have different schemas; at first use, files lack a
            column.
    """

    def __init__(
        self,
        paths_or_dataset: Any,
        batch_size: int,
        label_names: Sequence[str],
        *,
        feature_columns: Sequence[Any] | None = None,
        cat_names: Sequence[str] = (),
        cont_names: Sequence[str] = (),
        engine: str = "parquet",
        list_layout: str = "nnzs",
        stack_labels: bool = False,
        **options: "Unpack[StreamOptions]",
    ) -> None:
        if engine != "parquet":
            raise ConfigError(f"engine is {engine!r}, expected 'parquet'. Convert the files to Parquet first.")
        if list_layout not in _LAYOUTS:
            raise ConfigError(f"list_layout is {list_layout!r}, expected {' or '.join(_LAYOUTS)}.")
        if feature_columns is not None:
            if cat_names or cont_names:
                raise ConfigError(
                    "feature_columns and cat_names/cont_names both select columns. Pass only one of them."
                )
            cat_names, cont_names, cardinalities = _described_by(feature_columns)
            options["cardinalities"] = {**cardinalities, **(options.get("cardinalities") or {})}
        if not label_names or not (cat_names or cont_names):
            raise ConfigError("label_names and at least one of feature_columns, cat_names and cont_names are required.")
        limit_tensorflow_memory()
        self._set_up(
            paths_or_dataset, batch_size, cat_names, cont_names, label_names, options, stack_labels=stack_labels
        )
        self._label_names, self._list_layout = list(label_names), list_layout
        self._process = os.getpid()
        self._turn = threading.Condition()  # Keras may call from several threads
        self._first: tuple[Inputs, Any] | None = None
        self._rest: Generator[tuple[Inputs, Any], None, None] | None = None
        self._next = 1  # index of the first batch in `_rest`

    def __iter__(self) -> Iterator[tuple[Inputs, Any]]:
        return iter(self._epochs)

    def as_dataset(self) -> Any:
        """Return the loader as a `tf.data.Dataset`. Each pass over the dataset is an epoch, with one batch prefetched.

        It works with `fit` and with the transformations of `tf.data`. The position of `state_dict` includes batches
        that are read ahead of the model.

        Raises:
            DataError: there are no batches; iteration raises the errors of `BatchStream.made`.
        """
        first = self._epochs.first()
        if first is None:
            raise DataError(
                f"the data has {self.num_rows} rows, fewer than one batch of {self._batch_size}. Use smaller batches."
            )
        signature = tf.nest.map_structure(_any_rows, first)
        dataset = tf.data.Dataset.from_generator(lambda: iter(self), output_signature=signature)
        if not self._epochs.is_resuming:
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(self)))
        return dataset.prefetch(1)

    def __getitem__(self, index: int) -> tuple[Inputs, Any]:
        """Return batch `index`. With `shuffle`, any index other than 0 returns the next batch.

        Raises:
            ConfigError: batches are requested out of order without `shuffle`, or `load_state_dict` restored a position
                in the middle of the epoch.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"batch index {index} is out of range for {len(self)} batches")
        if os.getpid() != self._process:
            raise ConfigError("the loader uses threads and cannot run in another process. Omit use_multiprocessing.")
        if self._epochs.is_resuming:
            raise ConfigError(
                "batches cannot be indexed after load_state_dict. Iterate over the loader, or pass "
                "loader.as_dataset() to fit()."
            )
        epoch = self._epochs.epoch
        with self._turn:
            if index == 1 and self._next > 1 and not self._epochs.stream.is_shuffled:
                self._forget()  # restart a pass that was abandoned
            if index and not self._epochs.stream.is_shuffled:
                self._wait_for(index, epoch)
            try:
                return self._take(index)
            except BaseException:
                self._forget()
                raise

    def on_epoch_end(self) -> None:
        """Advance to the next epoch. Called by Keras."""
        with self._turn:
            self._forget()
            self._epochs.skip()
            self._turn.notify_all()

    def close(self) -> None:
        """End an unfinished pass started by Keras, and stop its threads. The loader can be used again.

        Your own passes end when their iterator is dropped, but Keras keeps a reference to a loader whose `fit` failed.
        """
        with self._turn:
            self._forget()

    def _take(self, index: int) -> tuple[Inputs, Any]:
        if self._rest is None:
            self._rest = self._epochs.again()
            self._first = next(self._rest)
        if index == 0:
            assert self._first is not None
            return self._first
        batch = next(self._rest)
        self._next += 1
        if self._next == len(self):  # without on_epoch_end the same epoch repeats
            self._rest, self._next = None, 1
        self._turn.notify_all()
        return batch

    def _forget(self) -> None:
        if self._rest is not None:
            self._rest.close()
        self._first, self._rest, self._next = None, None, 1

    def _wait_for(self, index: int, epoch: int) -> None:
        """Wait until batch `index` is next. Raise ConfigError if batches are requested out of order or other workers
        make no progress.
        """
        while (now := (self._epochs.epoch, self._next)) != (epoch, index):
            is_early = self._epochs.epoch == epoch and self._next < index
            if not is_early or not (self._turn.wait(_TURN_TIMEOUT_S) or (self._epochs.epoch, self._next) != now):
                raise ConfigError(
                    f"batch {index} was requested, but batch {self._next} of this unshuffled loader is next. "
                    "Request batches in order (shuffle=False in fit), or create the loader with shuffle=True."
                )

    def _tensors(self, batch: Batch) -> tuple[Inputs, Any]:
        inputs: Inputs = {}
        for name in self._input_names:
            column = batch[name]
            if not isinstance(column, Ragged):
                inputs[name] = _tensor(column.reshape(len(column), -1))
            else:
                inputs[name + VALUES] = _tensor(column.values.reshape(-1, 1))
                if self._list_layout == "nnzs":
                    inputs[name + NNZS] = _tensor(column.lengths.reshape(-1, 1))
                else:
                    inputs[name + OFFSETS] = _tensor(column.offsets.astype(np.int32, copy=False))
        labels = tuple(self._label(name, batch[name]) for name in self._label_names)
        if self._stack_labels:
            return inputs, labels[0] if len(labels) == 1 else tf.concat(labels, axis=1)
        return inputs, labels[0] if len(labels) == 1 else labels

    def _label(self, name: str, column: Any) -> Any:
        if isinstance(column, Ragged) or column.ndim > 1:
            raise DataError(f"label column {name!r} contains lists, expected one number per row.")
        return _tensor(column.reshape(-1, 1))


class KerasSequenceValidater(keras.callbacks.Callback):  # type: ignore[misc]  # tensorflow has no types
    """Callback that evaluates on a loader after each epoch, and adds `val_loss` and the other `val_` metrics to the
    logs.
    """

    def __init__(self, loader: KerasSequenceLoader) -> None:
        super().__init__()
        self._loader = loader

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002  (Keras's signature)
        results: Mapping[str, float] = self.model.evaluate(self._loader, verbose=0, return_dict=True)
        if logs is not None:
            logs.update({f"val_{name}": value for name, value in results.items()})


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
