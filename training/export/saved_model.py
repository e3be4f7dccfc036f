"""Export of Keras models as plain SavedModels, with two signatures for the two common layouts of lists.

`serving_default` takes lists as flat values and offsets, the layout that merlin-systems sends. `serving_padded` takes
lists as a padded matrix and lengths, so that every tensor has the batch as its first axis and Triton's dynamic batcher
can combine requests. Single-value features are int64 (ids) or float32 (numbers), of shape (N,) in the first and (N, 1)
in the second; the result is `{"score": float32 (N, 1)}`, or an output per head, see
`rankline.workflows.schema.targets.output_names`. N may differ between calls.

Models with histories score several items of a row at once in `serving_padded`: the features of the target item and the
result have the shape (N, C), and C may differ between calls as N may. Negative histories are not part of any signature.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
import tf_keras as keras
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from rankline.training.export.mlflow_frames import Arrays, FrameScorer
from rankline.training.models.layers import DenseFeatures, Lists
from rankline.training.models.layers.sequence_features import PaddedLists, SequenceFeatures
from rankline.workflows.core.errors import ArtifactError, ExportError
from rankline.workflows.schema.feature_spec import HISTORY, TARGET, FeatureSpec
from rankline.workflows.schema.targets import output_names
from rankline.workflows.schema.tensor_names import (
    NNZS,
    OFFSETS,
    PADDED_SIGNATURE,
    RAGGED_SIGNATURE,
    VALUES,
    Signature,
    argument_names,
    name_inputs,
)


def export_saved_model(model: Any, spec: FeatureSpec, path: Path) -> None:
    """Write a SavedModel directory with both serving signatures.

    For each single-value feature both signatures take `name`. For each list feature `serving_default` takes
    `name__values` (M,) and `name__offsets` int32 (N + 1,), where row i has the values from offsets[i] to
    offsets[i + 1]; `serving_padded` takes `name__values` (N, W), padded with zeros after the end of each list, and
    `name__nnzs` int32 (N, 1).

    Args:
        model: functional Keras model that uses its inputs only through `DenseFeatures` or `SequenceFeatures` layers;
            its first outputs are the outputs of the heads.
        spec: the features, which give the tensors their names. Negative histories are ignored.
        path: directory to write.
    """
    scorer = _Scorer(model, spec.for_scoring)
    tf.saved_model.save(scorer, str(path), signatures=scorer.signatures())
    name_inputs(path, SavedModel)


def load_signature(path: Path, name: str = PADDED_SIGNATURE) -> Signature:
    try:
        signatures = tf.saved_model.load(str(path)).signatures
    except OSError as error:
        raise ArtifactError(f"{path} cannot be loaded as a SavedModel ({error}). Train the model again.") from None
    if name not in signatures:
        raise ArtifactError(f"{path} has no signature named {name!r}. Available: {sorted(signatures)}.")
    return Signature(signatures[name])


def _load_pyfunc(data_path: str) -> FrameScorer:
    """Load a logged model. MLflow looks up this function by name in the loader module."""
    signature = load_signature(Path(data_path))

    def score(arrays: Arrays) -> dict[str, Any]:
        inputs = {name: tf.constant(arrays[name], dtype=spec.dtype) for name, spec in signature.inputs.items()}
        return {name: output.numpy() for name, output in signature(**inputs).items()}

    return FrameScorer(signature.inputs, score)


class _Scorer(tf.Module):  # type: ignore[misc]  # tensorflow has no types
    """A model reduced to two serving functions over its variables, without any Keras objects.

    When a loaded object is saved again without signatures, as by merlin-systems' PredictTensorflow, TensorFlow finds
    `__call__` by itself if it is the only function. Therefore `serving_padded` is not an attribute.
    """

    def __init__(self, model: Any, spec: FeatureSpec) -> None:
        super().__init__()
        layers, head = _split(model)
        self._weights = [variable for layer in (*layers, head) for variable in layer.variables]

        def score(columns: Mapping[str, Any]) -> dict[str, Any]:
            # Not `layer(…)`: Keras would add regularizers and checks, which do not belong in a serving graph.
            outputs = tf.nest.flatten(head([layer.lookup(columns) for layer in layers], training=False))
            return dict(zip(output_names(spec.heads), outputs, strict=False))

        def flat(inputs: Mapping[str, Any]) -> dict[str, Any]:
            return score(_from_offsets(spec, inputs))

        def padded(inputs: Mapping[str, Any]) -> dict[str, Any]:
            return score(_from_padded(spec, inputs))

        self.__call__ = tf.function(flat, input_signature=[_tensor_specs(spec, padded=False)], autograph=False)
        # In a dict, where TensorFlow does not search for the object's only function. Not traced yet, because saving
        # ignores earlier traces and would trace again.
        self._signatures = {
            RAGGED_SIGNATURE: self.__call__,
            PADDED_SIGNATURE: tf.function(padded, input_signature=[_tensor_specs(spec, padded=True)], autograph=False),
        }

    def signatures(self) -> dict[str, Any]:
        return dict(self._signatures)


def _split(model: Any) -> tuple[list[Any], Any]:
    """Split a model into its feature layers and the rest. The layers are converted for serving, so that they accept
    more input layouts than Keras does.
    """
    layers, head = split_at_features(model)
    if foreign := [
        type(layer).__module__ for layer in layers if not isinstance(layer, DenseFeatures | SequenceFeatures)
    ]:
        raise ExportError(
            f"the model uses feature layers from {foreign}, expected those from rankline.training.models.layers."
        )
    return [layer.for_serving() for layer in layers], head


def _tensor_specs(spec: FeatureSpec, *, padded: bool) -> dict[str, Any]:
    tensors: dict[str, tuple[tuple[int | None, ...], Any]] = {}
    targets = {feature.name for feature in spec.channel(TARGET)}
    for name, dtype in spec.model_dtypes.items():
        if not spec[name].is_list:
            tensors[name] = (None, None if name in targets else 1) if padded else (None,), dtype
        elif padded:
            tensors |= {name + VALUES: ((None, None), dtype), name + NNZS: ((None, 1), tf.int32)}
        else:
            tensors |= {name + VALUES: ((None,), dtype), name + OFFSETS: ((None,), tf.int32)}
    arguments = argument_names(tensors)
    return {name: tf.TensorSpec(*tensor, arguments[name]) for name, tensor in tensors.items()}


def _from_offsets(spec: FeatureSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    columns = {feature.name: inputs[feature.name][:, None] for feature in _singles(spec)}
    for feature in _lists(spec):
        offsets = inputs[feature.name + OFFSETS]
        nnzs = offsets[1:] - offsets[:-1]
        num_rows = tf.size(nnzs)
        columns[feature.name] = Lists(inputs[feature.name + VALUES], tf.repeat(tf.range(num_rows), nnzs), num_rows)
    return columns


def _from_padded(spec: FeatureSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    columns = {feature.name: inputs[feature.name] for feature in _singles(spec)}
    for feature in spec.channel(HISTORY):
        columns[feature.name] = PaddedLists(inputs[feature.name + VALUES], inputs[feature.name + NNZS])
    for feature in (feature for feature in _lists(spec) if feature.name not in columns):
        padded = inputs[feature.name + VALUES]
        # Two to three times as fast as masked means over (N, W, dimension), and no slower for one row.
        places = tf.where(tf.range(tf.shape(padded)[1]) < inputs[feature.name + NNZS])
        columns[feature.name] = Lists(tf.gather_nd(padded, places), places[:, 0], tf.shape(padded)[0])
    return columns


def _singles(spec: FeatureSpec) -> list[Any]:
    return [feature for feature in (*spec.categorical, *spec.continuous) if not feature.is_list]


def _lists(spec: FeatureSpec) -> list[Any]:
    return [feature for feature in (*spec.categorical, *spec.continuous) if feature.is_list]


def split_at_features(model: Any) -> tuple[list[Any], Any]:
    """Split a model after its feature layers.

    Args:
        model: functional Keras model that uses its inputs only through `DenseFeatures` layers, Rankline's or Keras'
            own, or through `SequenceFeatures`.

    Returns:
        The feature layers, and the rest as a Keras model whose input is the list of their outputs in the same order:
        tensors or, for `SequenceFeatures`, dicts of tensors.
    """
    kinds = DenseFeatures | SequenceFeatures | keras.layers.DenseFeatures
    layers = [layer for layer in model.layers if isinstance(layer, kinds)]
    try:
        return layers, keras.Model([layer.output for layer in layers], model.output)
    except ValueError as error:
        raise ExportError(
            "the model has an input that bypasses DenseFeatures and SequenceFeatures, so it cannot be exported for "
            f"serving ({error})."
        ) from None
