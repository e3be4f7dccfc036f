"""DLRM (Naumov et al. 2019, arXiv:1906.00091), as in NVIDIA's notebook about Keras on GPUs.

numbers ─▶ numbers_hidden ─▶ one more vector ─┬────────────────────────────┐
ids ─▶ embeddings, all of one width ──────────┴─▶ product of each pair ─▶ beside ─▶ hidden ─▶ sigmoid
"""

from typing import Any

import tensorflow as tf

from training.config import TrainConfig
from training.layers import Dense, DotProductInteraction
from training.models.base import (
    dense_layers,
    dropped,
    embedding_columns,
    keras_inputs,
    logit,
    number_columns,
    penalty,
    scalar_layer,
    score,
)
from workflows.errors import ConfigError, SpecError
from workflows.feature_spec import FeatureSpec

HALF_PRECISION_MULTIPLE = 16
"""Sizes of a product of matrices that the matrix units of GPUs want in half precision."""


def build(spec: FeatureSpec, config: TrainConfig) -> Any:
    """Build the model.

    Args:
        spec: says which features there are, and how large their tables are.
        config: choices about the network; `embedding_dim` is the width of all vectors.

    Returns:
        A functional `tf.keras.Model`; its inputs are those of `keras_inputs`, its output "output" has shape (N, 1).

    Raises:
        SpecError: no numbers, no categories, or lists among them.
        ConfigError: `embedding_dim` is 0.
    """
    _check(spec, config)
    inputs = keras_inputs(spec)
    embeddings = scalar_layer(
        embedding_columns(spec.categorical, config),
        config,
        aggregation="stack",
        activity_regularizer=penalty(config.l2_embedding),
        name="features",
    )(inputs)
    numbers = scalar_layer(number_columns(spec.continuous), config, name="numbers")(inputs)
    return tf.keras.Model(inputs=inputs, outputs=score(head(embeddings, numbers, config), inputs, spec, config))


def head(embeddings: Any, numbers: Any, config: TrainConfig) -> Any:
    """What comes behind the lookups.

    In half precision the input of the first layer of `hidden` is padded with zeros to a multiple of
    `HALF_PRECISION_MULTIPLE`: with 27 vectors of width 8 it is 368 wide instead of 359. The weights of the padding
    are and stay zero and all others start from the same draw, so padding changes nothing but the number of weights.

    Args:
        embeddings: (N, number of categories, embedding_dim).
        numbers: (N, number of numbers).
        config: choices about the network.

    Returns:
        The logit, (N, 1) in float32.
    """
    dense = dense_layers(numbers, config.numbers_hidden, config.dropout)
    dense = Dense(config.embedding_dim)(dense)
    embeddings = dropped(embeddings, config.embedding_dropout)
    vectors = tf.concat([embeddings, dense[:, None]], axis=1)
    pad_to = 1 if config.precision == "float32" else HALF_PRECISION_MULTIPLE
    x = DotProductInteraction(pad_to=pad_to)(vectors, beside=dense)
    num_pairs = vectors.shape[1] * (vectors.shape[1] - 1) // 2
    initializer = ZerosForPadding(x.shape[1] - num_pairs - dense.shape[1])
    return logit(dense_layers(x, config.hidden, config.dropout, first_initializer=initializer))


@tf.keras.utils.register_keras_serializable("rankline")
class ZerosForPadding(tf.keras.initializers.Initializer):  # type: ignore[misc]  # tensorflow has no types
    """Starts a kernel as Keras does, with zeros for inputs that are padding.

    Args:
        padding: number of these inputs, the last ones.
    """

    def __init__(self, padding: int) -> None:
        self.padding = padding

    def __call__(self, shape: Any, dtype: Any = tf.float32, **_: Any) -> Any:
        """Draw a kernel of shape (inputs, units)."""
        drawn = tf.keras.initializers.GlorotUniform()((shape[0] - self.padding, shape[1]), dtype=dtype)
        return tf.pad(drawn, [[0, self.padding], [0, 0]])

    def get_config(self) -> dict[str, Any]:
        """The argument as plain values."""
        return {"padding": self.padding}


def _check(spec: FeatureSpec, config: TrainConfig) -> None:
    if lists := [feature.name for feature in (*spec.categorical, *spec.continuous) if feature.is_list]:
        raise SpecError(f"model 'dlrm' takes one value per row, {lists} are lists. Choose 'mlp' or 'dcnv2'.")
    if not spec.categorical or not spec.continuous:
        raise SpecError(
            f"model 'dlrm' needs categories and numbers, got {len(spec.categorical)} and {len(spec.continuous)} of "
            "them. Choose 'mlp' or 'dcnv2'."
        )
    if not config.embedding_dim:
        raise ConfigError("embedding_dim is 0, model 'dlrm' needs one width for all embeddings. Give one, such as 8.")
