"""Import SavedModels written by Keras 2, Keras 3 or a plain `tf.Module`, using the signature `serving_default`.

`rankline.serving.engines.tensorflow.allowed_operations` checks the graph before loading, which runs parts of it.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankline.serving.engines.tensorflow.allowed_operations import check_loaded
from rankline.serving.importers import ForeignModel
from rankline.serving.importers.input_binding import COLUMN, MATRIX, PADDED, Input, InputBinding, dtypes_of
from rankline.workflows.core.errors import ArtifactError, ExportError
from rankline.workflows.core.optional_packages import require
from rankline.workflows.schema.model_artifact import SAVED_MODEL
from rankline.workflows.schema.targets import Head, output_names
from rankline.workflows.schema.tensor_names import (
    NNZS,
    OFFSETS,
    PADDED_SIGNATURE,
    RAGGED_SIGNATURE,
    VALUES,
    argument_names,
    name_inputs,
)

_SIGNATURE = "serving_default"
_PLACE = re.compile(
    r'Graph execution error:|Exception encountered when calling|Detected at node|<stack traces|File "|\d+ root error'
)
_NODE = re.compile(r"\x1b\[\d*m|\{\{function_node .*?\}\}|\[\[\{\{node .*|\[Op:.*|^\s*\(\d\) [A-Z_]+:")


def can_load(path: Path) -> bool:
    return path.is_dir() and (path / "saved_model.pb").is_file()


class TensorFlowModel(ForeignModel):
    """A model that is served as a SavedModel.

    Attributes:
        kept: trackable object, or several, with the variables of the function.
        function: computes a dict of outputs from the inputs, which are tensors passed by name.
    """

    format = SAVED_MODEL
    kept: Any
    function: Any

    def write(self, feeds: Sequence[InputBinding], heads: Sequence[Head], target: Path) -> None:
        """Write a SavedModel with a signature for padded columns, and a signature for merlin-systems' flat columns."""
        import tensorflow as tf
        from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

        padded: dict[str, tuple[Any, Any]] = {}
        ragged: dict[str, tuple[Any, Any]] = {}
        for name, dtype, is_list in _columns(feeds):
            if is_list:
                padded |= {name + VALUES: ((None, None), dtype), name + NNZS: ((None, 1), tf.int32)}
                ragged |= {name + VALUES: ((None,), dtype), name + OFFSETS: ((None,), tf.int32)}
            else:
                padded[name], ragged[name] = ((None, 1), dtype), ((None,), dtype)

        def signature(specs: Mapping[str, tuple[Any, Any]], column: Any) -> Any:
            def score(inputs: Mapping[str, Any]) -> dict[str, Any]:
                columns = {name: column(inputs, name, is_list) for name, _, is_list in _columns(feeds)}
                made = self.function(**{feed.input.name: _tensor(feed, columns) for feed in feeds})
                return {
                    name: tf.cast(tf.reshape(made[head.column], (-1, head.width)), tf.float32)
                    for name, head in zip(output_names(heads), heads, strict=True)
                }

            arguments = argument_names(specs)
            tensors = {name: tf.TensorSpec(*spec, arguments[name]) for name, spec in specs.items()}
            return tf.function(score, input_signature=[tensors], autograph=False)

        signatures = {
            PADDED_SIGNATURE: signature(padded, _from_padded),
            RAGGED_SIGNATURE: signature(ragged, _from_offsets),
        }
        tf.saved_model.save(_keeper(self.kept, signatures[PADDED_SIGNATURE]), str(target), signatures=signatures)
        name_inputs(target, SavedModel)


class Model(TensorFlowModel):
    def __init__(self, path: Path) -> None:
        require("tensorflow", feature=f"serving {path}", extra="cpu")
        check_loaded(path)
        import tensorflow as tf

        try:
            self.kept = tf.saved_model.load(str(path))
        except (OSError, ValueError, RuntimeError, tf.errors.OpError) as error:
            raise ArtifactError(
                f"{path} cannot be loaded as a SavedModel: {line_of(error)}. Save the model again."
            ) from None
        signatures = self.kept.signatures
        if _SIGNATURE not in signatures:
            raise ArtifactError(
                f"{path} has the signatures {sorted(signatures)}, expected {_SIGNATURE!r}. Save it with "
                f"signatures={{{_SIGNATURE!r}: a tf.function with an input_signature}}."
            )
        self.function = signatures[_SIGNATURE]
        self.inputs = tuple(
            Input(name=name, dtype=_dtype(spec), shape=_shape(path, name, spec))
            for name, spec in sorted(self.function.structured_input_signature[1].items())
        )

    def run(self, arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        import tensorflow as tf

        try:
            made = self.function(**{name: tf.constant(array) for name, array in arrays.items()})
        except (ValueError, TypeError, tf.errors.OpError) as error:
            raise ExportError(f"the SavedModel failed on the sample: {line_of(error)}.") from None
        return {name: output.numpy() for name, output in made.items()}


def _keeper(model: Any, function: Any) -> Any:
    """Return a trackable object with only the variables and tables that a function captures, excluding optimizer state.

    Layers of Keras 3 expose other variables to TensorFlow than the ones they compute with, and those would be saved
    without values. If anything else is captured, the whole model is kept.
    """
    import tensorflow as tf

    graph = function.get_concrete_function().graph
    keeper = tf.Module()
    keeper.captured = list(graph.variables)
    handles = {id(variable.handle) for variable in graph.variables}
    resources = [id(outer) for outer, _ in graph.captures if outer.dtype == tf.resource]
    if others := [handle for handle in resources if handle not in handles]:
        parts = tf.train.TrackableView(model).descendants()
        tables = {id(part.resource_handle): part for part in parts if hasattr(part, "resource_handle")}
        keeper.tables = [tables[handle] for handle in others if handle in tables]
        if len(keeper.tables) < len(others):
            keeper.model = model
    return keeper


def _columns(feeds: Sequence[InputBinding]) -> list[tuple[str, str, bool]]:
    """Return the name and dtype of each encoded column, and whether the column contains lists."""
    lists = {feed.columns[0] for feed in feeds if feed.is_of_list}
    return [(name, dtype, name in lists) for name, dtype in dtypes_of(feeds).items()]


def _from_padded(inputs: Mapping[str, Any], name: str, is_list: bool) -> Any:
    """Return a scalar column as a tensor of shape [rows, 1]. Return a list column as a tuple of flat values, lengths
    and padded values.
    """
    import tensorflow as tf

    if not is_list:
        return inputs[name]
    padded, lengths = inputs[name + VALUES], inputs[name + NNZS]
    is_value = tf.range(tf.shape(padded)[1]) < lengths
    return tf.boolean_mask(padded, is_value), lengths[:, 0], padded


def _from_offsets(inputs: Mapping[str, Any], name: str, is_list: bool) -> Any:
    import tensorflow as tf

    if not is_list:
        return inputs[name][:, None]
    values, offsets = inputs[name + VALUES], inputs[name + OFFSETS]
    return values, offsets[1:] - offsets[:-1], tf.RaggedTensor.from_row_splits(values, offsets).to_tensor()


def _tensor(feed: InputBinding, columns: Mapping[str, Any]) -> Any:
    import tensorflow as tf

    if feed.kind == MATRIX:
        return tf.concat([tf.cast(columns[name], feed.dtype) for name in feed.columns], axis=1)
    column = columns[feed.columns[0]]
    if feed.kind == COLUMN:
        tensor = column
    elif feed.kind == PADDED:
        width = feed.input.shape[1] if feed.input.shape else None
        tensor = column[2] if width is None else _of_width(column[2], width)
    else:
        offsets = tf.concat([[0], tf.cumsum(column[1])], axis=0)
        tensor = {VALUES: column[0], NNZS: column[1], OFFSETS: offsets}[feed.kind]
    shape = (-1, 1) if feed.rank == 2 else (-1,)
    return tf.cast(tensor if feed.kind == PADDED else tf.reshape(tensor, shape), feed.dtype)


def _of_width(padded: Any, width: int) -> Any:
    """Pad shorter rows with zeros to the width that the model was built for."""
    import tensorflow as tf

    missing = tf.maximum(width - tf.shape(padded)[1], 0)
    return tf.ensure_shape(tf.pad(padded, [[0, 0], [0, missing]]), (None, width))


def _dtype(spec: Any) -> str:
    return "object" if spec.dtype.name == "string" else np.dtype(spec.dtype.as_numpy_dtype).name


def _shape(path: Path, name: str, spec: Any) -> tuple[int | None, ...]:
    if spec.shape.rank is None:
        raise ArtifactError(
            f"{path} has input {name!r} of unknown rank. Save the model with an input_signature of shape [None] or "
            "[None, 1]."
        )
    return tuple(spec.shape.as_list())


def line_of(error: Exception) -> str:
    """Return the line of a TensorFlow error that states the problem, skipping lines about the position in the graph."""
    lines = (_NODE.sub("", line).strip() for line in str(error).splitlines())
    return next((line.rstrip(".") for line in lines if line and not _PLACE.match(line)), type(error).__name__)


class MultiModel(TensorFlowModel):
    """Several TensorFlow models combined into one, which takes all of their inputs and returns all of their outputs."""

    def __init__(self, models: Sequence[ForeignModel]) -> None:
        if foreign := sorted({model.format for model in models} - {SAVED_MODEL}):
            raise ExportError(
                f"several models can be served as one only if all are TensorFlow models, but some are {foreign}."
            )
        by_name: dict[str, Input] = {}
        for entry in (entry for model in models for entry in model.inputs):
            if by_name.setdefault(entry.name, entry) != entry:
                raise ExportError(
                    f"two models declare the same input differently, as {by_name[entry.name]} and {entry}. Save both "
                    "models with identical inputs."
                )
        self._models: tuple[Any, ...] = tuple(models)
        self.kept = [model.kept for model in self._models]
        self.inputs = tuple(by_name.values())

    def run(self, arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        return self._named([model.run(self._own(model, arrays)) for model in self._models])

    def function(self, **tensors: Any) -> dict[str, Any]:
        return self._named([model.function(**self._own(model, tensors)) for model in self._models])

    def _own(self, model: ForeignModel, tensors: Mapping[str, Any]) -> dict[str, Any]:
        return {entry.name: tensors[entry.name] for entry in model.inputs}

    def _named(self, made: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Merge the models' outputs by name. Names that occur more than once get the model's position as a suffix."""
        names = [name for outputs in made for name in outputs]
        return {
            name if names.count(name) == 1 else f"{name}_{place}": output
            for place, outputs in enumerate(made)
            for name, output in outputs.items()
        }
