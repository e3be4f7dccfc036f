"""What Keras models are built from: inputs `keras_inputs`, one output, a probability named "output"."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from training.config import TrainConfig
from workflows.categories import FIRST_UNSEEN_ID
from workflows.feature_spec import Feature, FeatureSpec
from workflows.tensor_names import NNZS, VALUES


class UniformIds(tf.keras.initializers.Initializer):  # type: ignore[misc]  # tensorflow has no types
    """Starts an embedding table uniform in ± `scale`, with zeros for the reserved ids.

    An id that training never showed then adds nothing instead of noise.

    Args:
        scale: half the width of the distribution.
    """

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, shape: Any, dtype: Any = tf.float32, **_: Any) -> Any:
        """Draw a table of shape (number of ids, dimension)."""
        known = tf.random.uniform(shape, -self.scale, self.scale, dtype)
        return tf.where(tf.range(shape[0])[:, None] <= FIRST_UNSEEN_ID, tf.zeros((), dtype), known)

    def get_config(self) -> dict[str, Any]:
        """The argument as plain values."""
        return {"scale": self.scale}


def keras_inputs(spec: FeatureSpec) -> dict[str, Any]:
    """Keras inputs for the features of `spec`, named as the loader names them."""
    inputs = {}
    for feature, dtype in _typed_features(spec):
        if feature.is_list:
            inputs[feature.name + VALUES] = tf.keras.Input((1,), name=feature.name + VALUES, dtype=dtype)
            inputs[feature.name + NNZS] = tf.keras.Input((1,), name=feature.name + NNZS, dtype=tf.int32)
        else:
            inputs[feature.name] = tf.keras.Input((1,), name=feature.name, dtype=dtype)
    return inputs


def embedding_columns(features: Iterable[Feature], config: TrainConfig) -> list[Any]:
    """One embedding column per feature; lists are averaged."""
    return [
        _embedding_column(
            feature,
            min(feature.embedding_shape[1], config.embedding_dim_cap),
            UniformIds(config.embedding_init) if config.embedding_init else None,
        )
        for feature in features
    ]


def linear_columns(features: Iterable[Feature]) -> list[Any]:
    """One weight per id, starting at zero."""
    return [_embedding_column(feature, 1, tf.keras.initializers.Zeros()) for feature in features]


def _embedding_column(feature: Feature, dimension: int, initializer: Any) -> Any:
    ids = tf.feature_column.categorical_column_with_identity(feature.name, feature.embedding_shape[0])
    return tf.feature_column.embedding_column(ids, dimension, combiner="mean", initializer=initializer)


def _typed_features(spec: FeatureSpec) -> list[tuple[Feature, Any]]:
    categorical = [(feature, tf.int64) for feature in spec.categorical]
    return categorical + [(feature, tf.float32) for feature in spec.continuous]
