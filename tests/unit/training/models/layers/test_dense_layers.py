"""Interactions against their formulas in NumPy."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from hypothesis import given
from hypothesis import strategies as st

from rankline.training.models.config import StepConfig
from rankline.training.models.layers import Cross, DotProductInteraction
from rankline.training.models.layers.interactions import PeriodicNumbers
from rankline.training.models.layers.mlp import Dense
from rankline.training.models.tabular import MLPConfig
from rankline.workflows.schema.feature_spec import Feature, FeatureSpec
from tests.oracles.tolerance import ROUNDING


def random(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


@given(
    num_rows=st.integers(0, 3),
    num_vectors=st.integers(2, 6),
    width=st.integers(1, 5),
    self_interaction=st.booleans(),
    beside=st.integers(0, 3),
    pad_to=st.integers(1, 16),
)
def test_interaction_is_each_pairs_product_then_what_is_beside_then_zeros(
    num_rows: int, num_vectors: int, width: int, self_interaction: bool, beside: int, pad_to: int
) -> None:
    vectors, dense = random(num_rows, num_vectors, width), random(num_rows, beside)
    layer = DotProductInteraction(self_interaction=self_interaction, pad_to=pad_to)
    out = layer(tf.constant(vectors), beside=tf.constant(dense) if beside else None).numpy()
    pairs = [(i, j) for i in range(num_vectors) for j in range(i + self_interaction)]
    expected = np.stack([(vectors[:, i] * vectors[:, j]).sum(axis=1) for i, j in pairs], axis=1)
    assert out.shape[1] % pad_to == 0
    assert 0 <= out.shape[1] - len(pairs) - beside < pad_to
    np.testing.assert_allclose(out[:, : len(pairs)], expected, **ROUNDING)
    np.testing.assert_array_equal(out[:, len(pairs) : len(pairs) + beside], dense)
    assert not out[:, len(pairs) + beside :].any()


def test_its_gradient_is_that_of_the_products() -> None:
    vectors, factors = tf.constant(random(4, 3, 2)), random(4, 3)
    with tf.GradientTape() as tape:
        tape.watch(vectors)
        loss = tf.reduce_sum(DotProductInteraction()(vectors) * factors)
    a, b, c = np.moveaxis(vectors.numpy(), 1, 0)
    ab, ac, bc = factors.T[:, :, None]
    expected = np.stack([ab * b + ac * c, ab * a + bc * c, ac * a + bc * b], axis=1)
    np.testing.assert_allclose(tape.gradient(loss, vectors), expected, **ROUNDING)


@pytest.mark.parametrize("rank", [0, 2])
def test_cross_layer_is_its_formula(rank: int) -> None:
    start, x = random(4, 3), random(4, 3) + 1
    layer = Cross(rank)
    layer([start, x])
    assert [tuple(weight.shape) for weight in layer.weights] == ([(3, 2), (2, 3)] if rank else [(3, 3)]) + [(3,)]
    layer.set_weights([random(*weight.shape) for weight in layer.weights])
    *matrices, bias = layer.get_weights()
    matrix = np.linalg.multi_dot(matrices) if rank else matrices[0]
    np.testing.assert_allclose(layer([start, x]), start * (x @ matrix + bias) + x, **ROUNDING)


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


def test_dense_is_that_of_keras_in_float32() -> None:
    x = tf.random.stateless_normal((50, 3), (1, 2))
    ours, theirs = Dense(4, activation="relu"), keras.layers.Dense(4, activation="relu")
    for got, expected in zip(weights_and_gradients(ours, x), weights_and_gradients(theirs, x), strict=True):
        np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(ours(x), theirs(x))


@pytest.mark.parametrize("use_bias", [True, False])
def test_dense_gradients_of_a_large_batch_add_up_in_bfloat16(use_bias: bool) -> None:
    x = tf.ones((20_000, 3))
    half = Dense(4, activation="relu", use_bias=use_bias, dtype="mixed_bfloat16")
    single = keras.layers.Dense(4, activation="relu", use_bias=use_bias, dtype=tf.float32)
    gradients = zip(weights_and_gradients(half, x), weights_and_gradients(single, x), strict=True)
    for got, expected in gradients:
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, expected, rtol=0.01)
    assert half(x).dtype == tf.bfloat16
    np.testing.assert_allclose(tf.cast(half(x), tf.float32), single(x), rtol=0.01)


NUMBERS = np.array([[0.0, 1.0], [2.0, -0.5], [0.25, 3.0]], np.float32)


def test_periodic_embedding_maps_each_number_to_its_own_waves() -> None:
    layer = PeriodicNumbers(dimension=3, frequencies=4, scale=0.5)
    vectors = layer(NUMBERS).numpy().reshape(3, 2, 3)
    for number in range(2):
        phase = 2 * np.pi * NUMBERS[:, number : number + 1] * layer.rates.numpy()[number]
        waves = np.concatenate([np.cos(phase), np.sin(phase)], axis=1)
        expected = np.maximum(waves @ layer.kernel.numpy()[number] + layer.bias.numpy()[number], 0)
        np.testing.assert_allclose(vectors[:, number], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ids", [(), ("city",)])
def test_perceptron_sees_the_vectors_beside_numbers_and_ids(ids: tuple[str, ...]) -> None:
    spec = FeatureSpec(
        features=(
            Feature(name="city", dtype="int64", cardinality=9, embedding_dim=4),
            Feature(name="age", dtype="float32"),
            Feature(name="sold", dtype="float32"),
        ),
        channels={"categorical": ids, "continuous": ("age",), "label": ("sold",)},
    )
    model = MLPConfig(number_dim=5, hidden=(8,), embedding_dim=2).build(spec, StepConfig())
    kernel = next(weight for weight in model.weights if weight.shape[-1] == 8 and len(weight.shape) == 2)
    assert kernel.shape[0] == 1 + 5 + 2 * len(ids)
    inputs = {"city": tf.constant([[3], [4]], tf.int64), "age": tf.constant([[0.5], [2.0]])}
    assert model({name: inputs[name] for name in model.input}).shape == (2, 1)
