"""DeepFM (Guo et al. 2017, arXiv:1703.04247): a factorization machine and dense layers on the same embeddings.

    ids ─▶ embeddings ────────┬─▶ sum of the products of all pairs ─┐
    numbers ─▶ vector × value ┴─▶ concatenated ─▶ hidden ───────────┴─▶ heads

The paper sums the products. Here each head weights the columns of their sum, because adding the same number to all
classes would have no effect. The weights of single ids, the paper's first order, are the `linear_terms` of all models.
"""

from typing import Any

import tensorflow as tf
import tf_keras as keras

from rankline.training.models.base import (
    dense_layers,
    embedded_ids,
    feature_layer,
    keras_inputs,
    number_columns,
    scores,
)
from rankline.training.models.config import StepConfig
from rankline.training.models.deepfm import DeepFMConfig
from rankline.workflows.schema.feature_spec import FeatureSpec


def build(spec: FeatureSpec, model: DeepFMConfig, step: StepConfig) -> Any:
    inputs = keras_inputs(spec)
    vectors, beside = [], []
    if spec.categorical:
        ids = embedded_ids(inputs, spec, model, step)
        vectors.append(tf.reshape(ids, (-1, len(spec.categorical), model.embedding_dim)))
        beside.append(ids)
    if spec.continuous:
        numbers = feature_layer(number_columns(spec.continuous), spec.continuous, step, name="numbers")(inputs)
        vectors.append(NumberVectors(model.embedding_dim)(numbers))
        beside.append(numbers)
    products = PairProducts()(_joined(vectors))
    deep = dense_layers(_joined(beside), model.hidden, model.dropout)
    return keras.Model(inputs=inputs, outputs=scores(tf.concat([deep, products], 1), inputs, spec, model, step))


def _joined(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=1)


class NumberVectors(keras.layers.Layer):  # type: ignore[misc]  # tensorflow has no types
    """A learned vector per number, times the number: (N, M) → (N, M, dimension)."""

    def __init__(self, dimension: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dimension = dimension

    def build(self, shape: Any) -> None:
        initializer = keras.initializers.TruncatedNormal(stddev=self.dimension**-0.5)
        self.vectors = self.add_weight("vectors", (shape[-1], self.dimension), initializer=initializer)

    def call(self, numbers: Any) -> Any:
        return numbers[..., None] * self.vectors

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "dimension": self.dimension}


class PairProducts(keras.layers.Layer):  # type: ignore[misc]  # tensorflow has no types
    """The sum of the element-wise products of all pairs of vectors: (N, F, D) → (N, D)."""

    def call(self, vectors: Any) -> Any:
        # Rendle 2010, "Factorization Machines", lemma 3.1: takes linear time.
        return 0.5 * (tf.square(tf.reduce_sum(vectors, axis=1)) - tf.reduce_sum(tf.square(vectors), axis=1))
