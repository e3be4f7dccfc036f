"""Attention of candidates over histories.

Shapes: N rows, C candidates per row, T items in a history, D values per item. All candidates of a row share its
history, and anything that depends only on the history is computed once. `present` is 1 at items and 0 at padding:
(N, T), or (N, C, T) if each candidate has its own items. A row without items gives zeros.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from rankline.training.models.layers.mlp import Dense, product, with_leading_axes_of

_UNITS = (80, 40)  # as in the activation unit of NVIDIA's SIM


def per_candidate(present: Any) -> Any:
    """Add a candidate axis to `present` if it has none, returning shape (N, C, T) or (N, 1, T)."""
    return present if present.shape.rank == 3 else present[:, None]


def masked_softmax(scores: Any, present: Any) -> Any:
    """Compute a softmax over the last axis, the items, with zero weight for padding.

    Returns:
        float32 (N, C, T), because small weights would vanish in half precision.
    """
    is_present = per_candidate(present) > 0
    weights = tf.nn.softmax(tf.where(is_present, tf.cast(scores, tf.float32), tf.float32.min))
    return tf.where(is_present, weights, 0.0)


class DotAttention(keras.layers.Layer):  # type: ignore[misc]  # tensorflow has no types
    """Dot-product attention: the history's items, weighted by the softmax of their dot products with the candidate.

    Call with `[targets, history, present]`: (N, C, D), (N, T, D), and (N, T) or (N, C, T). An optional fourth tensor,
    such as the output of `Recency`, is added to the scores. Returns the weighted sum (N, C, D) and the scores before
    the softmax, float32 (N, C, T), whose values at padding are meaningless.
    """

    def call(self, inputs: Any) -> tuple[Any, Any]:
        targets, history, present, *added = inputs
        scores = tf.cast(self._scores(targets, history, present), tf.float32)
        for numbers in added:
            scores += tf.cast(numbers, tf.float32)
        return tf.matmul(tf.cast(masked_softmax(scores, present), history.dtype), history), scores

    def _scores(self, targets: Any, history: Any, present: Any) -> Any:  # noqa: ARG002  (a subclass needs it)
        return tf.matmul(targets, history, transpose_b=True)


class DinAttention(DotAttention):
    """`DotAttention` that computes the scores with a `DinUnit` instead of dot products."""

    def __init__(self, units: Sequence[int] = _UNITS, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._unit = DinUnit(units)

    def build(self, input_shape: Any) -> None:
        self._unit.build(input_shape)
        super().build(input_shape)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self._unit.units}

    def _scores(self, targets: Any, history: Any, present: Any) -> Any:
        return self._unit([targets, history, present])


class DinUnit(keras.layers.Layer):  # type: ignore[misc]  # tensorflow has no types
    """The activation unit of DIN (Zhou et al. 2018, arXiv:1706.06978), as in NVIDIA's SIM.

    concat[q, s, q − s, q∘s] of a candidate q and an item s → sigmoid layers → one number.

    Call with `[targets, history, present]`: (N, C, D), (N, T, D), and (N, T) or (N, C, T). Returns scores (N, C, T),
    whose values at padding are meaningless. The weights form dense layers on the concatenation, which is never
    computed: terms that depend only on the candidate or only on the item are computed once for each. If T is unknown at
    graph construction and there is one candidate, as in training, padding costs no computation.
    """

    def __init__(self, units: Sequence[int] = _UNITS, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = tuple(units)
        self._layers = [*(Dense(width, activation="sigmoid") for width in self.units[1:]), Dense(1)]

    def build(self, input_shape: Any) -> None:
        width = input_shape[0][-1]
        self._kernel = self.add_weight("kernel", (4 * width, self.units[0]), initializer="glorot_uniform")
        self._bias = self.add_weight("bias", (self.units[0],), initializer="zeros")
        for layer, size in zip(self._layers, self.units, strict=True):
            layer.build((None, size))
        super().build(input_shape)

    def call(self, inputs: Any) -> Any:
        targets, history, present = inputs
        of_target, of_item, of_difference, of_product = tf.split(self._kernel, 4)
        by_target = product(targets, of_target + of_difference, self._bias)
        kernels = of_item - of_difference, of_product
        if targets.shape[1] != 1 or history.shape[1] is not None:
            return self._scores(targets[:, :, None], by_target[:, :, None], history[:, None], kernels)
        present = per_candidate(present)[:, 0]
        places = tf.where(present > 0)
        queries, by_query = (tf.gather(x[:, 0], places[:, 0]) for x in (targets, by_target))
        scores = self._scores(queries, by_query, tf.gather_nd(history, places), kernels)
        return tf.scatter_nd(places, scores, tf.shape(present, tf.int64))[:, None]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units}

    def _scores(self, targets: Any, by_target: Any, items: Any, kernels: Any) -> Any:
        of_item, of_product = kernels
        hidden = product(items, of_item) + product(items * targets, of_product) + by_target
        x = tf.reshape(tf.sigmoid(hidden), (-1, self.units[0]))
        for layer in self._layers:
            x = layer(x)
        return with_leading_axes_of(hidden, x)[..., 0]


class SmoothedMean(keras.layers.Layer):  # type: ignore[misc]  # tensorflow has no types
    """The sum of the items divided by (number of items + 1), as in NVIDIA's SIM.

    Call with `[history, present]`: (N, T, D), and (N, T) or (N, C, T). Returns (N, C, D); C is 1 for (N, T).
    """

    def call(self, inputs: Any) -> Any:
        history, present = inputs
        present = tf.stop_gradient(tf.cast(per_candidate(present), tf.float32))
        shares = present / (tf.reduce_sum(present, axis=-1, keepdims=True) + 1)
        return tf.matmul(tf.cast(shares, history.dtype), history)
