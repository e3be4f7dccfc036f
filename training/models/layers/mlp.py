"""Dense layers for inputs of any rank, whose gradients are accurate in half precision."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from rankline.workflows.core.errors import ConfigError


class Dense(keras.layers.Dense):  # type: ignore[misc]  # tensorflow has no types
    """A Keras dense layer for inputs of shape (N, D), with bias gradients accumulated in float32.

    TensorFlow's CPU kernels accumulate bfloat16 in bfloat16: the gradient of a bias, a sum over the batch, was off by
    45% for 4,000 rows. This layer accumulates it in float32. With float32 it is the same as Keras'.
    """

    def call(self, inputs: Any) -> Any:
        if self.compute_dtype == "float32" or not self.use_bias:
            return super().call(inputs)
        return self.activation(add_bias(tf.matmul(tf.cast(inputs, self.compute_dtype), self.kernel), self.bias))


def add_bias(x: Any, bias: Any) -> Any:
    """Add `bias`, of shape (D,), to `x`, of shape (N, D), accumulating the gradient of the bias in float32."""
    bias = tf.convert_to_tensor(bias)
    if x.dtype == tf.float32:
        return tf.nn.bias_add(x, bias)

    @tf.custom_gradient  # type: ignore[untyped-decorator]  # tensorflow has no types
    def added(x: Any, bias: Any) -> tuple[Any, Any]:
        def gradient(of_sum: Any) -> tuple[Any, Any]:
            return of_sum, tf.cast(tf.reduce_sum(tf.cast(of_sum, tf.float32), axis=0), of_sum.dtype)

        return tf.nn.bias_add(x, bias), gradient

    return added(x, bias)


PRELU, SIGMOID = "prelu", "sigmoid"
ACTIVATIONS = (PRELU, SIGMOID)


class Prelu(keras.layers.Layer):  # type: ignore[misc]  # tensorflow has no types
    """A PReLU activation: x if positive, otherwise x times a learned factor (He et al. 2015, arXiv:1502.01852).

    There is one factor per unit for inputs of any rank. Keras' own layer would also have one per candidate, and it
    accumulates the gradient of the factors in half precision. Call with (…, D); returns the same shape.
    """

    def build(self, input_shape: Any) -> None:
        initializer = keras.initializers.Constant(0.1)
        shape, float32 = (input_shape[-1],), tf.float32
        self._shares = self.add_weight(
            "shares", shape, dtype=float32, initializer=initializer, experimental_autocast=False
        )
        super().build(input_shape)

    def call(self, inputs: Any) -> Any:
        negative = tf.cast(tf.minimum(inputs, 0), tf.float32) * self._shares
        return tf.nn.relu(inputs) + tf.cast(negative, inputs.dtype)


class Mlp(keras.layers.Layer):  # type: ignore[misc]  # tensorflow has no types
    """A sequence of dense layers with activation and dropout.

    Call with (…, D), such as (N, C, D) for C candidates of each of N rows; returns (…, units[-1]).

    Args:
        units: units of each layer; without any, the layer returns its input.
        activation: activation of all layers, one of `ACTIVATIONS`.
        dropout: fraction of each layer's units to drop in training.
    """

    def __init__(self, units: Sequence[int], activation: str = PRELU, dropout: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if activation not in ACTIVATIONS:
            raise ConfigError(f"unknown activation {activation!r}. Available: {', '.join(ACTIVATIONS)}.")
        self.units, self.activation, self.dropout = tuple(units), activation, dropout
        self._layers = []
        for width in self.units:
            self._layers.append(Dense(width, activation=None if activation == PRELU else activation))
            if activation == PRELU:
                self._layers.append(Prelu())
            if dropout:
                self._layers.append(keras.layers.Dropout(dropout))

    def build(self, input_shape: Any) -> None:
        width = input_shape[-1]
        for layer in self._layers:
            layer.build((None, width))
            width = layer.units if isinstance(layer, Dense) else width
        super().build(input_shape)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        x = tf.reshape(inputs, (-1, inputs.shape[-1]))
        for layer in self._layers:
            x = layer(x, training=training) if isinstance(layer, keras.layers.Dropout) else layer(x)
        return with_leading_axes_of(inputs, x)

    def get_config(self) -> dict[str, Any]:
        config = {"units": self.units, "activation": self.activation, "dropout": self.dropout}
        return {**super().get_config(), **config}


def with_leading_axes_of(like: Any, rows: Any) -> Any:
    """Reshape `rows`, of shape (M, U), to the leading axes of `like` followed by U. The product of these leading axes
    must be M.
    """
    return tf.reshape(rows, tf.concat([tf.shape(like)[:-1], [rows.shape[-1]]], axis=0))


def product(x: Any, matrix: Any, bias: Any = None) -> Any:
    """Multiply `x` of shape (…, D) by `matrix` of shape (D, U) as one matrix product, adding `bias` (U,) if given."""
    rows = tf.matmul(tf.reshape(x, (-1, x.shape[-1])), matrix)
    return with_leading_axes_of(x, rows if bias is None else add_bias(rows, bias))
