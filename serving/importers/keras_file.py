"""`.keras` files of Keras 2 and 3, served as the SavedModel that they export.

`rankline.serving.importers.keras_archive` checks the file before Keras reads it.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankline.serving.importers import ForeignModel, saved_model
from rankline.serving.importers.input_binding import Feed, Input
from rankline.serving.importers.keras_archive import check_names, checked_release, holds_keras
from rankline.workflows.core.errors import ArtifactError, ExportError
from rankline.workflows.core.optional_packages import require
from rankline.workflows.schema.model_artifact import SAVED_MODEL
from rankline.workflows.schema.targets import Head

_MAX_GROWTH, _SPARE_BYTES = 4, 64 << 20
"""Bytes of variables allowed per byte of the file, which may store them in a smaller type, plus a fixed allowance."""


def takes(path: Path) -> bool:
    return holds_keras(path)


class Model(ForeignModel):
    format = SAVED_MODEL

    def __init__(self, path: Path) -> None:
        require("tensorflow", feature=f"serving {path}", extra="cpu")
        import tensorflow as tf

        keras = _keras_of(path)
        try:
            with tf.variable_creator_scope(_Creator(_MAX_GROWTH * path.stat().st_size + _SPARE_BYTES)):
                self._model = keras.saving.load_model(str(path), compile=False, safe_mode=True)
        except Exception as error:  # layers raise anything
            reason = " ".join(str(error).split())[:200]
            raise ArtifactError(f"{path} cannot be loaded by Keras ({type(error).__name__}: {reason}).") from None
        inputs = getattr(self._model, "inputs", None)
        if not inputs:
            raise ArtifactError(f"{path} does not say what it takes. Build it with keras.Input, or save a SavedModel.")
        self.inputs = tuple(
            Input(name=_name(tensor), dtype=_dtype(tensor.dtype), shape=(None, *tensor.shape[1:])) for tensor in inputs
        )  # a Sequential built by a call has the number of rows of that call in its shapes
        self._taken = inputs[0] if len(inputs) == 1 else self._model.input
        names = getattr(self._model, "output_names", None)  # missing in a Sequential of Keras 3
        self._outputs = list(names or [self._model.layers[-1].name])
        self.kept = self._model

    def run(self, arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        try:
            return {name: np.asarray(output) for name, output in self.function(**arrays).items()}
        except Exception as error:  # layers raise anything
            raise ExportError(f"the Keras model cannot run the sample: {saved_model.line_of(error)}.") from None

    def write(self, feeds: Sequence[Feed], heads: Sequence[Head], target: Path) -> None:
        saved_model.save(self._model, self.function, feeds, heads, target)

    def function(self, **arrays: Any) -> dict[str, Any]:
        """Return the outputs by the names of their layers, numbered if a layer has several, for inputs by name."""
        import tensorflow as tf

        given = tf.nest.map_structure(lambda tensor: arrays[_name(tensor)], self._taken)
        made = self._model(given, training=False)
        if isinstance(made, dict):
            return made
        outputs, names = tf.nest.flatten(made), self._outputs
        if len(set(names)) < len(names):
            names = [f"{name}_{place}" for place, name in enumerate(names)]
        return dict(zip(names, outputs, strict=True))


class _Creator:
    """Raises before TensorFlow allocates more variables than the file can contain.

    Args:
        max_bytes: maximum size of all variables.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._num_bytes = max_bytes, 0

    def __call__(self, create: Any, **options: Any) -> Any:
        import tensorflow as tf

        initial, shape = options["initial_value"], options.get("shape")
        if shape is None:  # Keras 3; tracing allocates nothing
            shape = (
                tf.function(initial).get_concrete_function().output_shapes if callable(initial) else np.shape(initial)
            )
        dtype = tf.as_dtype(options.get("dtype") or tf.float32)
        self._num_bytes += dtype.size * (tf.TensorShape(shape).num_elements() or 0)
        if self._num_bytes > self._max_bytes:
            raise ValueError(
                f"its layers have more than {self._num_bytes} bytes of variables, expected at most {self._max_bytes} "
                "for a file of its size"
            )
        return create(**options)


def _keras_of(path: Path) -> Any:
    if checked_release(path).startswith("2."):
        import tf_keras as keras
    else:
        os.environ["KERAS_BACKEND"] = "tensorflow"  # the only backend that exports SavedModels
        import keras
    check_names(path, keras)
    return keras


def _name(tensor: Any) -> str:
    name: str = tensor.name
    return name.partition(":")[0]


def _dtype(dtype: Any) -> str:
    name = getattr(dtype, "name", str(dtype))
    return "object" if name == "string" else name
