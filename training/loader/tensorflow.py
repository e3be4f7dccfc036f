"""The loader's TensorFlow face: a Keras sequence over Parquet files, with the arguments that NVTabular's users know."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from training.loader.chunks import Batch, ChunkStream, Ragged
from workflows.errors import ConfigError, DataError
from workflows.tensor_names import NNZS, VALUES

Inputs = dict[str, Any]

_TURN_TIMEOUT_S = 5.0


class KerasSequenceLoader(tf.keras.utils.Sequence):  # type: ignore[misc]  # tensorflow has no types
    """Batches of Parquet files as tensors, for `model.fit` or a loop of one's own.

    A batch is `(inputs, labels)`. `inputs` holds `name` of shape (N, 1) for a single column, and for a list column
    `name__values` of shape (M, 1) with all values of the batch in a row and `name__nnzs` of shape (N, 1), int32, with
    the number of values of each row; M is the sum of the latter. Ids are int64, numbers float32. `labels` is float32
    of shape (N, 1), or a tuple of such where there are several label columns.

    Each pass over the loader is an epoch, with its own order when `shuffle` is set. Batches come in the order of the
    stream, and only the first one of an epoch is kept, because Keras looks at it before it starts. With `shuffle` any
    other index asks for the next batch. Without it index i is batch i: of several Keras workers each waits for its
    turn, and `fit` needs `shuffle=False` too, or Keras asks in an order of its own.

    Args:
        paths_or_dataset: files, a glob pattern, or a directory with Parquet files.
        batch_size: rows per batch; only the last one of an epoch is smaller.
        label_names: columns to predict.
        feature_columns: `tf.feature_column`s whose keys say what to read, in place of `cat_names` and `cont_names`.
        cat_names: id columns, single or lists.
        cont_names: number columns.
        engine: the file format; "parquet" is the only one.
        shuffle: give the rows a new random order in each epoch.
        buffer_size: memory that one chunk may take: a number of bytes, or, below 1, a share of the machine's memory.
        parts_per_chunk: row groups that are joined, and shuffled together, in one chunk.
        seed: start of the random order; the order follows from it and the number of the epoch.

    Raises:
        ConfigError: an argument is out of its range.
        DataError: no files, or files that do not hold the columns.
    """

    def __init__(
        self,
        paths_or_dataset: str | Path | Sequence[str | Path],
        batch_size: int,
        label_names: Sequence[str],
        *,
        feature_columns: Sequence[Any] | None = None,
        cat_names: Sequence[str] = (),
        cont_names: Sequence[str] = (),
        engine: str = "parquet",
        shuffle: bool = True,
        buffer_size: float = 0.06,
        parts_per_chunk: int = 1,
        seed: int = 0,
    ) -> None:
        if engine != "parquet":
            raise ConfigError(f"engine is {engine!r}, the loader reads 'parquet' only. Convert the files first.")
        if feature_columns is not None:
            if cat_names or cont_names:
                raise ConfigError("feature_columns and cat_names/cont_names both say what to read. Give only one.")
            cat_names, cont_names = _names_of(feature_columns)
        if not label_names or not (cat_names or cont_names):
            raise ConfigError("the loader needs label_names, and feature_columns, cat_names or cont_names.")
        self._cat_names, self._cont_names, self._label_names = list(cat_names), list(cont_names), list(label_names)
        self._stream = ChunkStream(
            _expand(paths_or_dataset),
            [*self._cat_names, *self._cont_names, *self._label_names],
            batch_size=batch_size,
            shuffle=shuffle,
            parts_per_chunk=parts_per_chunk,
            buffer_size=buffer_size,
            seed=seed,
        )
        self._shuffle = shuffle
        self._epoch = 0
        self._turn = threading.Condition()  # Keras may ask from several workers
        self._first: tuple[Inputs, Any] | None = None
        self._rest: Iterator[tuple[Inputs, Any]] | None = None
        self._next = 1  # index of the first batch in `_rest`

    @property
    def num_rows(self) -> int:
        """Rows per epoch."""
        return self._stream.num_rows

    def __len__(self) -> int:
        """Batches per epoch."""
        return len(self._stream)

    def __iter__(self) -> Iterator[tuple[Inputs, Any]]:
        """One epoch; the next call gives the next one."""
        epoch = self._epoch
        self._epoch += 1
        return self._batches(epoch)

    def __getitem__(self, index: int) -> tuple[Inputs, Any]:
        """The first batch of the running epoch for index 0; for another index that batch, or with `shuffle` the next.

        Raises:
            ConfigError: without `shuffle`, batches are not asked for one after another.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        epoch = self._epoch
        with self._turn:
            if index and not self._shuffle:
                self._wait_for(index, epoch)
            if self._rest is None:
                self._rest = self._batches(self._epoch)
                self._first = next(self._rest)
            if index == 0:
                assert self._first is not None
                return self._first
            batch = next(self._rest)
            self._next += 1
            if self._next == len(self):  # what follows without on_epoch_end is the same epoch again
                self._rest, self._next = None, 1
            self._turn.notify_all()
            return batch

    def on_epoch_end(self) -> None:
        """Move on to the next epoch; Keras calls this."""
        with self._turn:
            self._first, self._rest, self._next = None, None, 1
            self._epoch += 1
            self._turn.notify_all()

    def _wait_for(self, index: int, epoch: int) -> None:
        """Wait until batch `index` is the next one, as long as others get theirs."""
        while (now := (self._epoch, self._next)) != (epoch, index):
            is_early = self._epoch == epoch and self._next < index
            if not is_early or not (self._turn.wait(_TURN_TIMEOUT_S) or (self._epoch, self._next) != now):
                raise ConfigError(
                    f"batch {index} was asked for when batch {self._next} of an unshuffled loader was next. Ask for "
                    "one after another (shuffle=False in fit), or make the loader with shuffle=True."
                )

    def _batches(self, epoch: int) -> Iterator[tuple[Inputs, Any]]:
        for batch in self._stream.batches(epoch):
            inputs: Inputs = {}
            for name in self._cat_names:
                _add(inputs, batch, name, tf.int64)
            for name in self._cont_names:
                _add(inputs, batch, name, tf.float32)
            labels = tuple(_column(batch[name], tf.float32) for name in self._label_names)
            yield inputs, labels[0] if len(labels) == 1 else labels


class KerasSequenceValidater(tf.keras.callbacks.Callback):  # type: ignore[misc]  # tensorflow has no types
    """Evaluates on a loader after each epoch and adds `val_loss` and the other `val_` metrics to the logs.

    Args:
        loader: the validation data.
    """

    def __init__(self, loader: KerasSequenceLoader) -> None:
        super().__init__()
        self._loader = loader

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002  (Keras's signature)
        """Evaluate, and add the results to `logs`, where `History` and later callbacks find them."""
        results: Mapping[str, float] = self.model.evaluate(self._loader, verbose=0, return_dict=True)
        if logs is not None:
            logs.update({f"val_{name}": value for name, value in results.items()})


def _add(inputs: Inputs, batch: Batch, name: str, dtype: Any) -> None:
    column = batch[name]
    if isinstance(column, Ragged):
        inputs[name + VALUES] = _column(column.values, dtype)
        inputs[name + NNZS] = _column(column.nnzs, tf.int32)
    else:
        inputs[name] = _column(column, dtype)


def _column(array: Any, dtype: Any) -> Any:
    if isinstance(array, Ragged):
        raise DataError("a label column holds lists, expected one number per row.")
    return tf.convert_to_tensor(array.astype(dtype.as_numpy_dtype, copy=False).reshape(-1, 1))


def _names_of(feature_columns: Sequence[Any]) -> tuple[list[str], list[str]]:
    cat_names: list[str] = []
    cont_names: list[str] = []
    for column in feature_columns:
        categorical = getattr(column, "categorical_column", None)
        (cont_names if categorical is None else cat_names).append((categorical or column).key)
    return cat_names, cont_names


def _expand(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    if not isinstance(paths, str | Path):
        return [Path(path) for path in paths]
    pattern = Path(paths) / "*.parquet" if Path(paths).is_dir() else Path(paths)
    found = sorted(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor))))
    if not found:
        raise DataError(f"no Parquet files at {paths}. Give files, a glob pattern, or a directory that holds some.")
    return found
