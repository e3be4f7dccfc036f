"""Features for the recency of items, and for the similarity of the candidate to a summary of the history.

Shapes as in `rankline.training.models.layers.attention`. These layers improve DIN, DIEN and SIM on Amazon's reviews of
beauty products. On generated reviews, DIN without them does not see the order, and DIEN sees the order of only the
latest items, which explains most of SIM's lead.
"""

from typing import Any

import tensorflow as tf
import tf_keras as keras

from rankline.training.models.layers.attention import masked_softmax


class Recency(keras.layers.Layer):  # type: ignore[misc]  # tensorflow has no types
    """A learned number per position of a history, by the number of items chosen since.

    Call with a tensor (N, T, …), T at most `max_items`; returns float32 (1, 1, T). The numbers are initially zero.
    """

    def __init__(self, max_items: int, **kwargs: Any) -> None:
        super().__init__(**{"dtype": tf.float32, **kwargs})
        self.max_items = max_items

    def build(self, input_shape: Any) -> None:
        """Create the numbers, oldest position first."""
        self._numbers = self.add_weight("numbers", (self.max_items,), initializer="zeros")
        super().build(input_shape)

    def call(self, inputs: Any) -> Any:
        return self._numbers[None, None, self.max_items - tf.shape(inputs)[1] :]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "max_items": self.max_items}


class RecencyMean(keras.layers.Layer):  # type: ignore[misc]  # tensorflow has no types
    """The items of the history, weighted by the softmax of `Recency`, independent of the candidate.

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
    """The sum over features of the dot product of the candidate and a summary of the history, times a learned factor.

    Call with `[targets, summary]`: (N, C, D), and (N, C, D) or (N, D). Returns float32 (N, C), to add to a logit.

    Args:
        dimension: width of each feature; D is a multiple of it.
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


class PriorShift(keras.layers.Layer):  # type: ignore[misc]  # tensorflow has no types
    """Lowers logits during training to correct for more than one negative per positive.

    With k negatives per positive, a model learns odds that are k times too low. Training subtracts log k from the
    logit, so that the unshifted logit, which scoring uses, has the odds of one negative per positive (King & Zeng 2001,
    "Logistic regression in rare events data").

    Call with logits of any shape; returns the same shape.

    Args:
        num_negatives: k, at least 1.
    """

    def __init__(self, num_negatives: int, **kwargs: Any) -> None:
        super().__init__(**{"dtype": tf.float32, **kwargs})
        self.num_negatives = num_negatives

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        return inputs - tf.math.log(float(self.num_negatives)) if training else inputs

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_negatives": self.num_negatives}
