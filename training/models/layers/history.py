"""Layers over histories: recency weights, search, and the similarity between candidates and a summary of the history.

Shapes as in `rankline.training.models.layers.attention`. A search (SIM, Pi et al. 2020, arXiv:2006.05639) returns a
mask over the history instead of a list of items. Attention and means ignore the order, so both give the same result.
With a mask, candidates share one history, nothing is gathered, and the gradient has no nondeterministic sum.

The layers of recency and similarity improve DIN, DIEN and SIM on Amazon's reviews of
beauty products. On generated reviews, DIN without them does not see the order, and DIEN sees the order of only the
latest items, which explains most of SIM's lead.
"""

from typing import Any

import tensorflow as tf
import tf_keras as keras

from rankline.training.models.layers.attention import masked_softmax, per_candidate
from rankline.workflows.core.errors import ConfigError


class Recency(keras.layers.Layer):  # type: ignore[misc]  # tensorflow has no types
    """A learned number for each position in a history, counted from the latest item.

    Call with a tensor (N, T, …), T at most `max_items`; returns float32 (1, 1, T). The numbers are initially zero.
    """

    def __init__(self, max_items: int, **kwargs: Any) -> None:
        super().__init__(**{"dtype": tf.float32, **kwargs})
        self.max_items = max_items

    def build(self, input_shape: Any) -> None:
        """Create the weights, ordered from the oldest position to the latest."""
        self._numbers = self.add_weight("numbers", (self.max_items,), initializer="zeros")
        super().build(input_shape)

    def call(self, inputs: Any) -> Any:
        return self._numbers[None, None, self.max_items - tf.shape(inputs)[1] :]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "max_items": self.max_items}


class RecencyMean(keras.layers.Layer):  # type: ignore[misc]  # tensorflow has no types
    """A mean of the history's items, weighted by the softmax of `Recency` and independent of the candidate.

    Call with `[history, present]`: (N, T, D) and (N, T). Returns (N, D); zeros for a row without items.
    """

    def __init__(self, max_items: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_items = max_items
        self._recency = Recency(max_items)

    def build(self, input_shape: Any) -> None:
        self._recency.build(input_shape[0])
        super().build(input_shape)

    def call(self, inputs: Any) -> Any:
        history, present = inputs
        weights = masked_softmax(self._recency(history), present)
        return tf.matmul(tf.cast(weights, history.dtype), history)[:, 0]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "max_items": self.max_items}


class DotProductFeatures(keras.layers.Layer):  # type: ignore[misc]  # tensorflow has no types
    """Dot products of the candidate's features with a history summary, each scaled by a learned factor and summed.

    Call with `[targets, summary]`: (N, C, D), and (N, C, D) or (N, D). Returns float32 (N, C), to add to a logit.
    """

    def __init__(self, dimension: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dimension = dimension

    def build(self, input_shape: Any) -> None:
        shape = (input_shape[0][-1] // self.dimension,)
        options = {"initializer": "ones", "dtype": tf.float32, "experimental_autocast": False}
        self._factors = self.add_weight("factors", shape, **options)
        super().build(input_shape)

    def call(self, inputs: Any) -> Any:
        targets, summary = inputs
        summary = summary if summary.shape.rank == 3 else summary[:, None]
        # In float32, because it sums over all values of a feature.
        products = tf.cast(targets * summary, tf.float32)
        return tf.linalg.matvec(products, tf.repeat(self._factors, self.dimension))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "dimension": self.dimension}


class NegativeSamplingCorrection(keras.layers.Layer):  # type: ignore[misc]  # tensorflow has no types
    """Lowers logits during training to correct for more than one negative per positive.

    With k negatives per positive, a model learns odds that are k times too low. Training subtracts log k from the
    logit, so that the unshifted logit, which scoring uses, has the odds of one negative per positive (King & Zeng 2001,
    "Logistic regression in rare events data").

    Call with logits of any shape; returns the same shape.
    """

    def __init__(self, num_negatives: int, **kwargs: Any) -> None:
        super().__init__(**{"dtype": tf.float32, **kwargs})
        self.num_negatives = num_negatives

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        return inputs - tf.math.log(float(self.num_negatives)) if training else inputs

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_negatives": self.num_negatives}


class _Search(keras.layers.Layer):  # type: ignore[misc]  # tensorflow has no types
    def __init__(self, num_searched: int, **kwargs: Any) -> None:
        super().__init__(**{"dtype": tf.float32, **kwargs})
        if num_searched < 1:
            raise ConfigError(f"num_searched is {num_searched}, expected a positive integer.")
        self.num_searched = num_searched

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_searched": self.num_searched}


class SoftSearch(_Search):
    """Keeps the items with the highest attention scores. Ties go to the latest items.

    Call with `[scores, present]`: scores float32 (N, C, T), of which only the order matters, and present (N, T), 1 at
    items. Returns float32 (N, C, T), 1 at the items to keep: exactly `num_searched`, or all items if there are fewer.
    It has no gradient.
    """

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


class HardSearch(_Search):
    """Keeps the latest items that share a feature with the candidate, such as the category.

    Call with `same`, (N, C, T), 1 at items that do; returns float32 (N, C, T), 1 at items to keep. It has no gradient.
    """

    def call(self, inputs: Any) -> Any:
        return _latest(tf.stop_gradient(tf.cast(inputs, tf.float32)), float(self.num_searched))


def _latest(marks: Any, num_kept: Any) -> Any:
    """Keep the last `num_kept` 1s along the last axis of `marks`, float32 (N, C, T), and set the others to zero."""
    return tf.where(tf.cumsum(marks, axis=-1, reverse=True) <= num_kept, marks, 0.0)
