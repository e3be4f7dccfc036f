"""Vectors of numbers that let a network learn non-monotonic functions."""

import math
from typing import Any

import tensorflow as tf
import tf_keras as keras


@keras.utils.register_keras_serializable("rankline")
class PeriodicNumbers(keras.layers.Layer):  # type: ignore[misc]  # tensorflow has no types
    """A vector per number: a dense layer with ReLU on its sines and cosines at learned frequencies.

    Gorishniy et al. 2022, "On Embeddings for Numerical Features in Tabular Deep Learning" (arXiv:2203.05556), the
    variant PLR; each number has its own weights. Computes in float32 under any policy, because half precision is too
    coarse for the phase.

    Call with (N, M), approximately standardized; returns (N, M × dimension).

    Args:
        dimension: width of each vector.
        frequencies: number of frequencies per number.
        scale: standard deviation of the initial frequencies; larger values distinguish finer differences.
    """

    def __init__(self, dimension: int, frequencies: int, scale: float, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "dtype": tf.float32})
        self.dimension, self.frequencies, self.scale = dimension, frequencies, scale

    def build(self, shape: Any) -> None:
        numbers = shape[-1]
        normal = keras.initializers.RandomNormal
        self.rates = self.add_weight("rates", (numbers, self.frequencies), initializer=normal(stddev=self.scale))
        weights = (numbers, 2 * self.frequencies, self.dimension)
        deviation = (2 * self.frequencies) ** -0.5
        self.kernel = self.add_weight("kernel", weights, initializer=normal(stddev=deviation))
        self.bias = self.add_weight("bias", (numbers, self.dimension), initializer="zeros")

    def call(self, numbers: Any) -> Any:
        phase = 2 * math.pi * numbers[..., None] * self.rates  # (N, M, frequencies)
        waves = tf.concat([tf.cos(phase), tf.sin(phase)], axis=-1)
        # One matrix product per number: (M, N, 2 × frequencies) by (M, 2 × frequencies, dimension).
        vectors = tf.transpose(tf.matmul(tf.transpose(waves, (1, 0, 2)), self.kernel), (1, 0, 2)) + self.bias
        return tf.reshape(tf.nn.relu(vectors), (-1, self.kernel.shape[0] * self.dimension))

    def get_config(self) -> dict[str, Any]:
        own = {"dimension": self.dimension, "frequencies": self.frequencies, "scale": self.scale}
        return {**super().get_config(), **own}
