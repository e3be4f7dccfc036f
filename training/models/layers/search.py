"""Search of a long history for the items relevant to a candidate (SIM, Pi et al. 2020, arXiv:2006.05639).

The result is a mask over the history instead of a list of items. Attention and means do not depend on the order, so
they give the same result for both. With a mask, candidates share one history, nothing is gathered, and the gradient has
no sum in nondeterministic order.
"""

from typing import Any

import tensorflow as tf
import tf_keras as keras

from rankline.training.models.layers.attention import per_candidate
from rankline.workflows.core.errors import ConfigError


class SoftSearch(keras.layers.Layer):  # type: ignore[misc]  # tensorflow has no types
    """Keeps the items with the highest attention scores, the latest among equal scores.

    Call with `[scores, present]`: scores float32 (N, C, T), of which only the order matters, and present (N, T), 1 at
    items. Returns float32 (N, C, T), 1 at the items to keep: exactly `num_searched`, or all items if there are fewer.
    It has no gradient.
    """

    def __init__(self, num_searched: int, **kwargs: Any) -> None:
        super().__init__(**{"dtype": tf.float32, **kwargs})
        self.num_searched = _checked(num_searched)

    def call(self, inputs: Any) -> Any:
        scores, present = (tf.stop_gradient(x) for x in inputs)
        present = per_candidate(present)
        scores = tf.where(present > 0, tf.cast(scores, tf.float32), tf.float32.min)
        num_items = scores.shape[-1] if scores.shape[-1] is not None else tf.shape(scores)[-1]
        if isinstance(num_items, int) and num_items <= self.num_searched:
            return tf.where(present > 0, tf.ones_like(scores), 0.0)
        highest, _ = tf.math.top_k(scores, tf.minimum(self.num_searched, num_items), sorted=False)
        lowest_kept = tf.reduce_min(highest, axis=-1, keepdims=True)
        above, equal = (tf.cast(part, tf.float32) for part in (scores > lowest_kept, scores == lowest_kept))
        num_left = self.num_searched - tf.reduce_sum(above, axis=-1, keepdims=True)
        return tf.cast(present, tf.float32) * (above + _latest(equal, num_left))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_searched": self.num_searched}


class HardSearch(keras.layers.Layer):  # type: ignore[misc]  # tensorflow has no types
    """Keeps the latest items that have something in common with the candidate, such as the category.

    Call with `same`, (N, C, T), 1 at the items that do; returns float32 (N, C, T), 1 at the items to keep. It has no
    gradient.

    Args:
        num_searched: maximum number of items to keep.
    """

    def __init__(self, num_searched: int, **kwargs: Any) -> None:
        super().__init__(**{"dtype": tf.float32, **kwargs})
        self.num_searched = _checked(num_searched)

    def call(self, inputs: Any) -> Any:
        return _latest(tf.stop_gradient(tf.cast(inputs, tf.float32)), float(self.num_searched))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_searched": self.num_searched}


def _latest(marks: Any, num_kept: Any) -> Any:
    """Keep the last `num_kept` ones in `marks`, float32 (N, C, T), along the last axis."""
    return tf.where(tf.cumsum(marks, axis=-1, reverse=True) <= num_kept, marks, 0.0)


def _checked(num_searched: int) -> int:
    if num_searched < 1:
        raise ConfigError(f"num_searched is {num_searched}, expected a whole number of at least 1.")
    return num_searched
