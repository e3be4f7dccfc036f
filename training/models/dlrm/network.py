"""DLRM (Naumov et al. 2019, arXiv:1906.00091), as in NVIDIA's notebook on Keras on GPUs.

numbers ─▶ bottom_mlp ─▶ one more vector ─┬────────────────────────────────────┐
ids ─▶ embeddings, all of one width ──────┴─▶ dot product of each pair ─▶ concatenated ─▶ top_mlp ─▶ heads
"""

from typing import Any

import tensorflow as tf
import tf_keras as keras

from rankline.training.models.base import (
    dense_layers,
    dropped,
    embedding_columns,
    keras_inputs,
    number_columns,
    penalty,
    scalar_layer,
    scores,
)
from rankline.training.models.config import StepConfig
from rankline.training.models.dlrm import DLRMConfig
from rankline.training.models.layers import Dense, DotProductInteraction
from rankline.workflows.core.errors import SpecError
from rankline.workflows.schema.feature_spec import FeatureSpec

HALF_PRECISION_MULTIPLE = 16
"""GPU matrix units in half precision need matrix sizes that are multiples of this."""


def build(spec: FeatureSpec, model: DLRMConfig, step: StepConfig) -> Any:
    _check(spec)
    inputs = keras_inputs(spec)
    embeddings = scalar_layer(
        embedding_columns(spec.categorical, model),
        step,
        aggregation="stack",
        activity_regularizer=penalty(model.l2_embedding),
        name="features",
    )(inputs)
    numbers = scalar_layer(number_columns(spec.continuous), step, name="numbers")(inputs)
    x = head(embeddings, numbers, model, step)
    return keras.Model(inputs=inputs, outputs=scores(x, inputs, spec, model, step))


def head(embeddings: Any, numbers: Any, model: DLRMConfig, step: StepConfig) -> Any:
    """Build the part between the lookups and the logits.

    In half precision the input of the first layer of `top_mlp` is padded with zeros to a multiple of
    `HALF_PRECISION_MULTIPLE`: 27 vectors of width 8 give a width of 368 instead of 359. The weights of the padding stay
    zero and all others have the same initial values, so padding changes only the number of weights.

    Args:
        embeddings: (N, number of categories, embedding_dim).
        numbers: (N, number of numbers).

    Returns:
        Input of the logits, (N, units of the last layer).
    """
    dense = dense_layers(numbers, model.bottom_mlp, model.dropout)
    dense = Dense(model.embedding_dim)(dense)
    embeddings = dropped(embeddings, model.embedding_dropout)
    vectors = tf.concat([embeddings, dense[:, None]], axis=1)
    pad_to = 1 if step.precision == "float32" else HALF_PRECISION_MULTIPLE
    x = DotProductInteraction(pad_to=pad_to)(vectors, beside=dense)
    num_pairs = vectors.shape[1] * (vectors.shape[1] - 1) // 2
    initializer = ZerosForPadding(x.shape[1] - num_pairs - dense.shape[1])
    return dense_layers(x, model.top_mlp, model.dropout, first_initializer=initializer)


@keras.utils.register_keras_serializable("rankline")
class ZerosForPadding(keras.initializers.Initializer):  # type: ignore[misc]  # tensorflow has no types
    """Initializes a kernel with Keras' default, and the rows of padded inputs with zeros."""

    def __init__(self, padding: int) -> None:
        self.padding = padding

    def __call__(self, shape: Any, dtype: Any = tf.float32, **_: Any) -> Any:
        drawn = keras.initializers.GlorotUniform()((shape[0] - self.padding, shape[1]), dtype=dtype)
        return tf.pad(drawn, [[0, self.padding], [0, 0]])

    def get_config(self) -> dict[str, Any]:
        return {"padding": self.padding}


def _check(spec: FeatureSpec) -> None:
    if lists := [feature.name for feature in (*spec.categorical, *spec.continuous) if feature.is_list]:
        raise SpecError(f"model 'dlrm' takes one value per row, {lists} are lists. Choose 'mlp' or 'dcnv2'.")
    if not spec.categorical or not spec.continuous:
        raise SpecError(
            f"model 'dlrm' needs categories and numbers, got {len(spec.categorical)} and {len(spec.continuous)} of "
            "them. Choose 'mlp' or 'dcnv2'."
        )
