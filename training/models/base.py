"""Building blocks of Keras models.

Each model is a functional `keras.Model` with the inputs of `keras_inputs` and the outputs of `scores`, one per head.
For a row with a history, the output is a probability for each of its C candidates, (N, C).

Under mixed precision in Keras, activations use half precision; tables, logits, linear terms and scores are float32.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from rankline.training.models.config import NetworkConfig, StepConfig, check_numbers
from rankline.training.models.layers import FUSED_IDS, Dense, DenseFeatures, ScalarDenseFeatures
from rankline.workflows.schema.feature_spec import FIRST_UNSEEN_ID, Feature, FeatureSpec
from rankline.workflows.schema.targets import BINARY, REGRESSION, Head
from rankline.workflows.schema.tensor_names import NNZS, VALUES


@keras.utils.register_keras_serializable("rankline")
class UniformIds(keras.initializers.Initializer):  # type: ignore[misc]  # tensorflow has no types
    """Initializes an embedding table uniformly between -`scale` and `scale`, and the rows of reserved ids with zeros.

    An id that never occurred in training then contributes zero instead of noise.
    """

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, shape: Any, dtype: Any = tf.float32, **_: Any) -> Any:
        known = tf.random.uniform(shape, -self.scale, self.scale, dtype)
        return tf.where(tf.range(shape[0])[:, None] <= FIRST_UNSEEN_ID, tf.zeros((), dtype), known)

    def get_config(self) -> dict[str, Any]:
        return {"scale": self.scale}


def keras_inputs(spec: FeatureSpec) -> dict[str, Any]:
    dtypes: dict[str, Any] = {}
    for name, dtype in spec.model_dtypes.items():
        dtypes |= {name + VALUES: dtype, name + NNZS: tf.int32} if spec[name].is_list else {name: dtype}
    # The prefix avoids collisions with names of layers, such as "output" or "dense".
    return {name: keras.Input((1,), name=f"column.{name}", dtype=dtype) for name, dtype in dtypes.items()}


def embedding_columns(features: Iterable[Feature], model: NetworkConfig) -> list[Any]:
    """Return one embedding column per feature; lists are averaged."""
    initializer = UniformIds(model.embedding_init) if model.embedding_init else None
    return [_embedding_column(feature, model.table_width(feature), initializer) for feature in features]


def number_columns(features: Sequence[Feature]) -> list[Any]:
    check_numbers(features)
    return [tf.feature_column.numeric_column(feature.name) for feature in features]


def feature_layer(columns: Sequence[Any], features: Iterable[Feature], step: StepConfig, **options: Any) -> Any:
    if any(feature.is_list for feature in features):
        return DenseFeatures(columns, **options)
    return scalar_layer(columns, step, **options)


def scalar_layer(columns: Sequence[Any], step: StepConfig, **options: Any) -> Any:
    """Return a `feature_layer` for single-value features, with fused tables if that is faster for the batch size."""
    num_ids = step.batch_size * sum(hasattr(column, "categorical_column") for column in columns)
    return ScalarDenseFeatures(columns, fused=num_ids <= FUSED_IDS, **options)


def embedded(
    inputs: Any, spec: FeatureSpec, model: NetworkConfig, step: StepConfig, *, with_numbers: bool = True
) -> Any:
    """Concatenate the embeddings of all ids and, if `with_numbers`, the continuous features, and apply dropout."""
    columns = embedding_columns(spec.categorical, model)
    if with_numbers:
        columns += number_columns(spec.continuous)
    regularizer = penalty(model.l2_embedding)
    layer = feature_layer(columns, spec.categorical, step, activity_regularizer=regularizer, name="features")
    return apply_dropout(layer(inputs), model.embedding_dropout)


def apply_dropout(x: Any, share: float) -> Any:
    return keras.layers.Dropout(share)(x) if share else x


def penalty(weight: float) -> Any:
    """Return a regularizer that penalizes the mean squared norm of a layer's output rows, or None if `weight` is 0."""
    return keras.regularizers.L2(weight) if weight else None


def dense_layers(x: Any, units: Iterable[int], dropout: float, *, first_initializer: Any = "glorot_uniform") -> Any:
    for width in units:
        dense = Dense(width, activation="relu", kernel_initializer=first_initializer)
        x, first_initializer = apply_dropout(dense(x), dropout), "glorot_uniform"
    return x


def logit(x: Any, width: int = 1) -> Any:
    """Apply a linear layer and return float32 logits of shape (N, width)."""
    return keras.layers.Dense(width, dtype=tf.float32)(x)


def scores(x: Any, inputs: Any, spec: FeatureSpec, model: NetworkConfig, step: StepConfig) -> Any:
    """Return one output per head: probabilities (N, 1) or (N, C), or predictions (N, 1) in the label's unit.

    Args:
        x: input of all heads, (N, D); or a list with one tensor per head.
        inputs: inputs of the model; with `linear_terms` the weights of the row's ids are added to the logits.
    """
    heads = spec.heads
    parts = x if isinstance(x, list) else [x] * len(heads)
    logits = [logit(part, head.width) for part, head in zip(parts, heads, strict=True)]
    if model.linear_terms and spec.categorical:
        terms = _linear_terms(inputs, spec, model, step, sum(head.width for head in heads))
        parts = [terms] if len(heads) == 1 else tf.split(terms, [head.width for head in heads], axis=1)
        logits = [own + model.linear_scale * part for own, part in zip(logits, parts, strict=True)]
    names = ["output"] if len(heads) == 1 else [f"output_{number}" for number in range(len(heads))]
    outputs = [_activated(head, own, name) for head, own, name in zip(heads, logits, names, strict=True)]
    return outputs[0] if len(outputs) == 1 else outputs


def _linear_terms(inputs: Any, spec: FeatureSpec, model: NetworkConfig, step: StepConfig, width: int) -> Any:
    """Sum the linear weights of each row's ids, returning a tensor of shape (N, width)."""
    columns = [_embedding_column(feature, width, keras.initializers.Zeros()) for feature in spec.categorical]
    options = {"activity_regularizer": penalty(model.l2_linear), "dtype": tf.float32, "name": "linear"}
    weights = feature_layer(columns, spec.categorical, step, **options)(inputs)
    if width == 1:
        return tf.reduce_sum(weights, axis=1, keepdims=True)
    return tf.reduce_sum(tf.reshape(weights, (-1, len(columns), width)), axis=1)


def _activated(head: Head, logits: Any, name: str) -> Any:
    if head.task == REGRESSION:
        return keras.layers.Rescaling(head.deviation, head.mean, dtype=tf.float32, name=name)(logits)
    kind = "sigmoid" if head.task == BINARY else "softmax"
    return keras.layers.Activation(kind, dtype=tf.float32, name=name)(logits)


def _embedding_column(feature: Feature, dimension: int, initializer: Any) -> Any:
    ids = tf.feature_column.categorical_column_with_identity(feature.name, feature.embedding_shape[0])
    return tf.feature_column.embedding_column(ids, dimension, combiner="mean", initializer=initializer)
