"""The auxiliary loss of DIEN (Zhou et al. 2019, arXiv:1809.03672): each state should predict the next item."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from rankline.training.models.layers.mlp import SIGMOID, Mlp, product
from rankline.workflows.core.errors import ConfigError


def auxiliary_loss(clicked: Any, not_clicked: Any, present: Any, *, over_all: bool = False) -> Any:
    """Binary cross-entropy of the logits of chosen and not chosen items, finite for all logits.

    Args:
        clicked: logits (N, T) of chosen items.
        not_clicked: logits (N, T) of the others.
        present: (N, T), 1 at the cells that count.
        over_all: divide by the number of all cells, as the reference does, instead of the cells that count.

    Returns:
        A float32 scalar; 0 if no cell counts.
    """
    clicked, not_clicked, present = (tf.cast(x, tf.float32) for x in (clicked, not_clicked, present))
    losses = tf.where(present > 0, tf.nn.softplus(-clicked) + tf.nn.softplus(not_clicked), 0.0)
    num_cells = tf.cast(tf.size(losses), tf.float32) if over_all else tf.reduce_sum(present)
    return tf.math.divide_no_nan(tf.reduce_sum(losses), num_cells)


class AuxiliaryLoss(keras.layers.Layer):  # type: ignore[misc]  # tensorflow has no types
    """Adds `auxiliary_loss` to the model's losses during training.

    From a state and an item, a network with sigmoid layers computes the logit that the item is the next one. The
    weights of the network are not used after training.

    Call with `[x, states, items, negatives, present]`: any tensor, (N, T, H), (N, T, D), (N, T, D) and (N, T), where T
    is at least 1. Returns x unchanged.

    Args:
        units: units of the hidden layers of the network, at least one layer.
        weight: factor on the loss.
        reference: include the step from padding to the first item, and divide by all cells, as NVIDIA's SIM does.
    """

    def __init__(
        self,
        units: Sequence[int],
        weight: float = 1.0,
        reference: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not units:
            raise ConfigError("aux_hidden has no units, expected at least one hidden layer. Or set aux_weight to 0.")
        self.units, self.weight, self.reference = tuple(units), weight, reference
        self._hidden = Mlp(self.units[1:], SIGMOID)
        self._logit = keras.layers.Dense(1, dtype=tf.float32)

    def build(self, input_shape: Any) -> None:
        self._sizes = [input_shape[1][-1], input_shape[2][-1]]
        shape = (sum(self._sizes), self.units[0])
        self._kernel = self.add_weight("kernel", shape, initializer="glorot_uniform")
        self._bias = self.add_weight("bias", shape[1:], initializer="zeros")
        self._hidden.build((None, self.units[0]))
        self._logit.build((None, self.units[-1]))
        super().build(input_shape)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        x, states, items, negatives, present = inputs
        if training:
            of_state, of_item = tf.split(self._kernel, self._sizes)
            steps = states.shape[1]
            # Splits instead of slices, whose gradients are as large as the whole tensor and must be summed.
            before, _ = tf.split(states, [steps - 1, 1], axis=1)
            followers = (tf.split(x, [1, steps - 1], axis=1)[1] for x in (items, negatives))
            by_state = product(before, of_state, self._bias)
            clicked, not_clicked = (
                tf.squeeze(self._logit(self._hidden(tf.sigmoid(by_state + product(follower, of_item)))), axis=-1)
                for follower in followers
            )
            present = present[:, 1:] if self.reference else present[:, 1:] * present[:, :-1]
            loss = auxiliary_loss(clicked, not_clicked, tf.stop_gradient(present), over_all=self.reference)
            self.add_loss(self.weight * loss)
        return x

    def get_config(self) -> dict[str, Any]:
        config = {"units": self.units, "weight": self.weight, "reference": self.reference}
        return {**super().get_config(), **config}
