"""The recurrent layers of DIEN (Zhou et al. 2019, arXiv:1809.03672), which model how interests evolve.

Shapes as in `rankline.training.models.layers.attention`. The loop over the T steps is unrolled, so T must be static.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from rankline.training.models.layers.attention import DinUnit, masked_softmax
from rankline.training.models.layers.mlp import SIGMOID, Mlp, product
from rankline.workflows.core.errors import ConfigError


class _Recurrent(keras.layers.Layer):  # type: ignore[misc]  # tensorflow has no types
    """Base class of GRUs whose update gates are multiplied by given rates."""

    def __init__(self, units: int, reference: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units, self.reference = units, reference

    def build(self, input_shape: Any) -> None:
        shape = input_shape[0]
        if shape[1] is None:
            raise ConfigError(
                f"{type(self).__name__} got histories of unknown length, expected a fixed length. Pad or truncate them."
            )
        self._kernel = self.add_weight("kernel", (shape[-1], 3 * self.units), initializer="glorot_uniform")
        self._recurrent = self.add_weight("recurrent_kernel", (self.units, 3 * self.units), initializer="orthogonal")
        self._bias = self.add_weight("bias", (3 * self.units,), initializer=_open_gates)
        super().build(input_shape)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units, "reference": self.reference}

    def _states(self, history: Any, rates: Any) -> list[Any]:
        """Return the state after each step, as T tensors of shape (N, C, units).

        Args:
            history: (N, T, D).
            rates: factors on the update gates, (N, C, T).
        """
        by_step, rates = tf.transpose(history, (1, 0, 2)), tf.cast(rates, tf.float32)
        projected = tf.expand_dims(product(by_step, self._kernel, self._bias), 2)
        parts = zip(*(tf.unstack(part, history.shape[1]) for part in tf.split(projected, 3, axis=-1)), strict=True)
        num_rows, num_candidates = tf.shape(rates)[0], rates.shape[1] or tf.shape(rates)[1]

        def times(state: Any, matrix: Any) -> Any:
            rows = tf.matmul(tf.reshape(state, (-1, self.units)), matrix)
            return tf.reshape(rows, (-1, num_candidates, matrix.shape[1]))

        recurrent = tf.convert_to_tensor(self._recurrent)
        state = tf.zeros(tf.stack([num_rows, num_candidates, self.units]), history.dtype)
        states = []
        for of_item, rate in zip(parts, tf.unstack(rates[..., None], history.shape[1], axis=2), strict=True):
            state = self._next(state, of_item, recurrent, times, rate)
            states.append(state)
        return states

    def _next(self, state: Any, of_item: Any, recurrent: Any, times: Callable[[Any, Any], Any], rate: Any) -> Any:
        """Return the state after a step.

        Args:
            state: state before the step, (N, C, units).
            of_item: contributions of the item to reset gate, update gate and candidate state, (N, 1, units) each.
            recurrent: weights of the state for the same three, (units, 3 · units).
            times: multiplies states by a part of `recurrent`.
            rate: float32 (N, C, 1).
        """
        reset, update, new = tf.split(times(state, recurrent), 3, axis=-1)
        new = tf.tanh(of_item[2] + tf.sigmoid(of_item[0] + reset) * new)
        return state + _scaled(rate, tf.sigmoid(of_item[1] + update)) * (new - state)


class Gru(_Recurrent):
    """The GRU of the paper: r, u = σ(Wx + Us + b), c = tanh(Wx + r∘Us + b), s ← (1 − u)∘s + u∘c.

    Call with `[history, present]`: (N, T, D) and (N, T). Returns the state after each step, (N, T, units). The initial
    state is zero; padding does not change the state.

    Args:
        units: width of the state.
        reference: let padding, whose input is zero, change the state, as NVIDIA's SIM does.
    """

    def call(self, inputs: Any) -> Any:
        history, present = inputs
        rates = tf.stop_gradient(tf.ones_like(present) if self.reference else present)
        return tf.concat(self._states(history, rates[:, None]), axis=1)


class Augru(_Recurrent):
    """A GRU whose update gates are multiplied by attention weights: u ← a·u. A zero weight leaves the state unchanged.

    Call with `[history, attention]`: (N, T, D), and weights (N, C, T) in [0, 1]. Returns the last state, (N, C, units).
    The projections of the history are computed once for all candidates.

    Args:
        units: width of the state.
        reference: the form of NVIDIA's SIM: r, u = σ(Wx + Us + b), c = tanh(Wx + U(r∘s) + b), u ← (1 − a)u,
            s ← u∘s + (1 − u)∘c, in which every step changes the state.
    """

    def call(self, inputs: Any) -> Any:
        history, attention = inputs
        return self._states(history, attention)[-1]

    def _next(self, state: Any, of_item: Any, recurrent: Any, times: Callable[[Any, Any], Any], rate: Any) -> Any:
        if not self.reference:
            return super()._next(state, of_item, recurrent, times, rate)
        of_gates, of_candidate = tf.split(recurrent, [2 * self.units, self.units], axis=1)
        reset, keep = tf.split(times(state, of_gates), 2, axis=-1)
        new = tf.tanh(of_item[2] + times(tf.sigmoid(of_item[0] + reset) * state, of_candidate))
        return new + _scaled(1 - rate, tf.sigmoid(of_item[1] + keep)) * (state - new)


class DienBlock(keras.layers.Layer):  # type: ignore[misc]  # tensorflow has no types
    """A GRU over the history, followed by each candidate's attention over the GRU's states and an AUGRU over them.

    The attention is a `DinUnit` of the states and a PReLU layer on the candidate.

    Call with `[targets, history, present]`: (N, C, D), (N, T, D) and (N, T). Returns the last state of the AUGRU,
    (N, C, units), and the states of the GRU, (N, T, units), for the auxiliary loss.
    """

    def __init__(self, units: int, reference: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units, self.reference = units, reference
        self._interests, self._evolution = Gru(units, reference), Augru(units, reference)
        self._query = Mlp([units])
        self._unit = DinUnit()

    def build(self, input_shape: Any) -> None:
        targets, history, _ = (tuple(shape) for shape in input_shape)
        states = (*history[:2], self.units)
        self._interests.build([history])
        self._query.build(targets)
        self._unit.build([(*targets[:2], self.units), states])
        self._evolution.build([states])
        super().build(input_shape)

    def call(self, inputs: Any) -> tuple[Any, Any]:
        targets, history, present = inputs
        states = self._interests([history, present])
        attention = masked_softmax(self._unit([self._query(targets), states, present]), present)
        return self._evolution([states, attention]), states

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units, "reference": self.reference}


def _scaled(rate: Any, gate: Any) -> Any:
    """Multiply `rate`, of shape (N, C, 1), by `gate` in float32, because the gradient of `rate` is a sum over units."""
    return tf.cast(rate * tf.cast(gate, tf.float32), gate.dtype)


def _open_gates(shape: Any, dtype: Any = tf.float32, **_: Any) -> Any:
    """Initialize the biases of the reset and update gates with ones, and those of the candidate state with zeros."""
    third = shape[0] // 3
    return tf.concat([tf.ones(2 * third, dtype), tf.zeros(third, dtype)], axis=0)


def auxiliary_loss(clicked: Any, not_clicked: Any, present: Any, *, over_all: bool = False) -> Any:
    """Return the binary cross-entropy of chosen and unchosen items from their logits, finite for all finite logits.

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

    def __init__(self, units: Sequence[int], weight: float = 1.0, reference: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not units:
            raise ConfigError(
                "aux_hidden is empty, expected at least one hidden layer. Add one, or set aux_weight to 0."
            )
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
