from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from rankline.training.models.layers.dense import Dense


@pytest.fixture
def bfloat16() -> Iterator[None]:
    before = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    yield
    keras.mixed_precision.set_global_policy(before)


def weights_and_gradients(layer: keras.layers.Dense, x: tf.Tensor) -> list[np.ndarray]:
    @tf.function(autograph=False)
    def gradients() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            # Small gradients of one sign, as those of a mean over a batch may be.
            loss = tf.reduce_mean(tf.cast(layer(x), tf.float32))
        return tape.gradient(loss, layer.trainable_variables)

    layer.build(x.shape)
    layer.set_weights([np.ones(weight.shape) * 0.1 for weight in layer.weights])
    return [gradient.numpy() for gradient in gradients()]


def test_in_float32_it_is_keras_layer() -> None:
    x = tf.random.stateless_normal((50, 3), (1, 2))
    ours, theirs = Dense(4, activation="relu"), keras.layers.Dense(4, activation="relu")
    for got, expected in zip(weights_and_gradients(ours, x), weights_and_gradients(theirs, x), strict=True):
        np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(ours(x), theirs(x))
    assert Dense.from_config(ours.get_config()).get_config() == ours.get_config()


@pytest.mark.parametrize("use_bias", [True, False])
def test_in_bfloat16_gradients_of_a_large_batch_add_up(bfloat16: None, use_bias: bool) -> None:
    x = tf.ones((20_000, 3))
    half = Dense(4, activation="relu", use_bias=use_bias)
    single = keras.layers.Dense(4, activation="relu", use_bias=use_bias, dtype=tf.float32)
    gradients = zip(weights_and_gradients(half, x), weights_and_gradients(single, x), strict=True)
    for got, expected in gradients:
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, expected, rtol=0.01)
    assert half(x).dtype == tf.bfloat16
    np.testing.assert_allclose(tf.cast(half(x), tf.float32), single(x), rtol=0.01)
