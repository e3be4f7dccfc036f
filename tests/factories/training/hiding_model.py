"""A model whose loss is finite whatever its weights are: what is no number counts as 0."""

from dataclasses import dataclass
from typing import Any, ClassVar

from rankline.training.models.config import ModelConfig, StepConfig
from rankline.workflows.schema.feature_spec import CONTINUOUS, FeatureSpec


@dataclass(frozen=True, kw_only=True)
class HidingConfig(ModelConfig):
    """A weight per number, and nothing else."""

    name: ClassVar[str] = "hiding"
    network: ClassVar[str] = f"{__name__}:build"


def build(spec: FeatureSpec, _model: HidingConfig, step: StepConfig) -> Any:
    """The weighted numbers of a row, through a sigmoid."""
    import tensorflow as tf
    import tf_keras as keras

    from rankline.training.models.base import feature_layer, keras_inputs

    inputs = keras_inputs(spec)
    columns = [tf.feature_column.numeric_column(feature.name) for feature in spec.channel(CONTINUOUS)]
    logit = keras.layers.Dense(1)(feature_layer(columns, spec.channel(CONTINUOUS), step, name="features")(inputs))
    shown = tf.where(tf.math.is_nan(logit), tf.zeros_like(logit), logit)
    return keras.Model(inputs, keras.layers.Activation("sigmoid", name="output")(shown))
