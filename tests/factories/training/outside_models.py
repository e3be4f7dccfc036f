"""Models as another package has them: configs that name their networks. No table of ours knows them."""

from dataclasses import dataclass
from typing import Any, ClassVar

from rankline.training.models.config import ModelConfig, StepConfig
from rankline.workflows.schema.feature_spec import CONTINUOUS, FeatureSpec


@dataclass(frozen=True, kw_only=True)
class WideConfig(ModelConfig):
    """One weight per id, and nothing else.

    Attributes:
        first_weight: of every id, before training.
    """

    name: ClassVar[str] = "wide"
    network: ClassVar[str] = f"{__name__}:build_wide"

    first_weight: float = 0.0


def build_wide(spec: FeatureSpec, model: WideConfig, step: StepConfig) -> Any:
    """The sum of the weights of a row's ids, through a sigmoid."""
    import tensorflow as tf
    import tf_keras as keras

    from rankline.training.models.base import feature_layer, keras_inputs

    inputs = keras_inputs(spec)
    columns = [
        tf.feature_column.embedding_column(
            tf.feature_column.categorical_column_with_identity(feature.name, feature.embedding_shape[0]),
            dimension=1,
            initializer=keras.initializers.Constant(model.first_weight),
        )
        for feature in spec.categorical
    ]
    weights = feature_layer(columns, spec.categorical, step, name="features")(inputs)
    logit = tf.reduce_sum(weights, axis=1, keepdims=True)
    return keras.Model(inputs, keras.layers.Activation("sigmoid", name="output")(logit))


@dataclass(frozen=True, kw_only=True)
class HidingConfig(ModelConfig):
    """A weight per number, whose loss is finite whatever the weights are: what is no number counts as 0."""

    name: ClassVar[str] = "hiding"
    network: ClassVar[str] = f"{__name__}:build_hiding"


def build_hiding(spec: FeatureSpec, _model: HidingConfig, step: StepConfig) -> Any:
    """The weighted numbers of a row, through a sigmoid."""
    import tensorflow as tf
    import tf_keras as keras

    from rankline.training.models.base import feature_layer, keras_inputs

    inputs = keras_inputs(spec)
    columns = [tf.feature_column.numeric_column(feature.name) for feature in spec.channel(CONTINUOUS)]
    logit = keras.layers.Dense(1)(feature_layer(columns, spec.channel(CONTINUOUS), step, name="features")(inputs))
    shown = tf.where(tf.math.is_nan(logit), tf.zeros_like(logit), logit)
    return keras.Model(inputs, keras.layers.Activation("sigmoid", name="output")(shown))
