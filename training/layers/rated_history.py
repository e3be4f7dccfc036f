"""What a candidate is to the items that somebody rated, and how they were rated.

Shapes as in `training.layers.attention`: N rows, C candidates, T items of a history, D numbers per item. A candidate
that is in the history itself is left out of it, and so is its grade: a training row, whose user has rated the very
item, is computed as one in serving, whose user has not.
"""

from typing import Any

import tensorflow as tf
import tf_keras as keras

_PRIOR_ITEMS = 5.0
"""Items that a mean of grades is shrunk by."""
_PRIOR_SUM, _EXPONENT = 10.0, 0.75
"""The sum of graded items is divided by (number of items + `_PRIOR_SUM`) to the power of `_EXPONENT`."""
_WORTH_SCALE = 20.0
"""Grades start at zero, and learn that much faster than their tables."""
_STEEPNESS, _MOST = 2.0, 8.0
"""Of the kernel: its exponent is at most `_MOST`."""


class RatedHistory(keras.layers.Layer):  # type: ignore[misc]  # tensorflow has no types
    """Summaries of a rated history for each candidate.

    What a grade is worth, g_t, is summed up three ways:

    - over all items, as a mean, and as vectors Σ g_t X v_t, the graded part of asymmetric SVD (Koren 2008,
      "Factorization meets the neighborhood");
    - without grades, as vectors Σ Y v_t / √n, the implicit part of SVD++ (same paper);
    - over items like the candidate: with kernels k = exp(K v · K v_t), one per head, Σ k g_t / (Σ k + λ), a regression
      that falls back to the mean where nothing is alike (Nadaraya 1964, "On estimating regression").

    Call with `[target, history, mask, own, grade]`: (N, C, D), (N, T, D), (N, T), and (N, C, T), 1 where the history's
    item is the candidate, and (N, T). Returns float32 vectors "graded" and "implicit" of the candidate's width, each
    (N, C, D), and numbers (N, C, 3 + 3 × heads). Without items all but the constants are zero.

    Args:
        heads: kernels; they share the D numbers out, so they divide D.
        **kwargs: of `keras.layers.Layer`.
    """

    def __init__(self, heads: int, **kwargs: Any) -> None:
        super().__init__(**{"dtype": tf.float32, **kwargs})
        self.heads = heads

    def build(self, input_shape: Any) -> None:
        """Make the weights."""
        width = input_shape[0][-1]
        start = keras.initializers.Identity()
        self._graded = self.add_weight("graded", (width, width), initializer=start)
        self._implicit = self.add_weight("implicit", (width, width), initializer=start)
        self._kernel = self.add_weight("kernel", (width, width), initializer=keras.initializers.Identity(2.0))
        self._prior = self.add_weight("prior", (self.heads,), initializer=keras.initializers.Constant(5.0))
        super().build(input_shape)

    def call(self, inputs: Any) -> tuple[Any, Any, Any]:
        target, history, mask, own, grade = inputs
        worth = _WORTH_SCALE * mask * grade  # (N, T)
        # What the whole history adds up to, less the candidate's own part: its vector there is its vector here.
        is_own = tf.reduce_sum(own, axis=2, keepdims=True)  # (N, C, 1)
        own_worth = tf.matmul(own, worth[..., None])
        count = tf.reduce_sum(mask, axis=1)[:, None, None] - is_own
        mean = (tf.reduce_sum(worth, axis=1)[:, None, None] - own_worth) / (count + _PRIOR_ITEMS)
        squares = tf.reduce_sum(worth**2, axis=1)[:, None, None] - own_worth**2
        sum_graded = tf.matmul(worth[:, None], history) - own_worth * target
        sum_implicit = tf.matmul(mask[:, None], history) - is_own * target
        graded = tf.matmul(sum_graded, self._graded) / (count + _PRIOR_SUM) ** _EXPONENT
        implicit = tf.matmul(sum_implicit, self._implicit) / tf.sqrt(count + 1)
        spread = tf.sqrt((tf.nn.relu(squares) + _PRIOR_ITEMS) / (count + _PRIOR_ITEMS))
        numbers = [mean, tf.math.log1p(count) / 4 - 1, spread - 1]
        pairs = zip(*(self._in_heads(vectors) for vectors in (target, history)), strict=True)
        others, summed = mask[:, None] * (1 - own), tf.stack([tf.ones_like(worth), worth], axis=2)
        for head, (query, keys) in enumerate(pairs):
            numbers += self._regressed(query, keys, others, summed, mean, tf.nn.relu(self._prior[head]))
        return graded, implicit, tf.concat(numbers, axis=2)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "heads": self.heads}

    def _in_heads(self, vectors: Any) -> list[Any]:
        parts: list[Any] = tf.split(tf.matmul(vectors, self._kernel), self.heads, axis=2)
        return parts

    def _regressed(self, query: Any, keys: Any, others: Any, summed: Any, mean: Any, prior: Any) -> list[Any]:
        """How much better items like the candidate were rated than the mean, how many they are, and both together."""
        scores = _STEEPNESS * tf.matmul(query, keys, transpose_b=True)
        alike = tf.exp(tf.clip_by_value(scores, -_MOST, _MOST)) * others  # (N, C, T)
        amount, worth = tf.split(tf.matmul(alike, summed), 2, axis=2)
        beyond = (worth - mean * amount) / (amount + prior + 1)
        logarithm = tf.math.log1p(amount) / 4
        return [beyond, logarithm - 1, beyond * logarithm]
