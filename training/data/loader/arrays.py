"""Batches of NumPy arrays, for models that do not take tensors."""

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from rankline.training.data.loader.columns import Column
from rankline.training.data.loader.epochs import ParquetLoader
from rankline.training.data.loader.files import ParquetFiles
from rankline.training.data.loader.stream import Batch, StreamOptions
from rankline.workflows.schema.feature_spec import FeatureSpec

Arrays: TypeAlias = "tuple[dict[str, Column], npt.NDArray[np.float32]]"


class ArrayLoader(ParquetLoader[Arrays]):
    """Shuffled batches of prepared Parquet files.

    A batch is `(inputs, labels)`. `inputs` maps names to ids int64 (N,), numbers float32 (N,) or lists (`Ragged`).
    `labels` is float32 (N,), or (N, number of labels).
    """

    def __init__(self, files: ParquetFiles, spec: FeatureSpec, batch_size: int, options: StreamOptions) -> None:
        cats, conts, self._labels = (
            [feature.name for feature in features] for features in (spec.categorical, spec.continuous, spec.labels)
        )
        self._set_up(files, batch_size, cats, conts, self._labels, options, stack_labels=len(self._labels) > 1)

    def __iter__(self) -> Iterator[Arrays]:
        """Iterate over the next epoch, or the rest of it after `load_state_dict`."""
        return iter(self._epochs)

    def _tensors(self, batch: Batch) -> Arrays:
        labels = [np.asarray(batch[name]) for name in self._labels]
        inputs = {name: batch[name] for name in self._input_names}
        return inputs, labels[0] if len(labels) == 1 else np.stack(labels, axis=1)
