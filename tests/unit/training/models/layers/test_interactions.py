"""Interactions against their formulas in NumPy."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from hypothesis import given
from hypothesis import strategies as st

from rankline.training.models.layers import Cross, DotProductInteraction
from rankline.workflows.core.errors import ConfigError
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
def test_it_is_each_pairs_product_then_what_is_beside_then_zeros(
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


def test_the_documents_vector_of_359_is_padded_to_368() -> None:
    vectors, dense = keras.Input((27, 8)), keras.Input((8,))
    assert tuple(DotProductInteraction()(vectors).shape) == (None, 351)
    assert tuple(DotProductInteraction()(vectors, beside=dense).shape) == (None, 359)
    assert tuple(DotProductInteraction(pad_to=16)(vectors, beside=dense).shape) == (None, 368)


def test_its_gradient_is_that_of_the_products() -> None:
    vectors, factors = tf.constant(random(4, 3, 2)), random(4, 3)
    with tf.GradientTape() as tape:
        tape.watch(vectors)
        loss = tf.reduce_sum(DotProductInteraction()(vectors) * factors)
    a, b, c = np.moveaxis(vectors.numpy(), 1, 0)
    ab, ac, bc = factors.T[:, :, None]
    expected = np.stack([ab * b + ac * c, ab * a + bc * c, ac * a + bc * b], axis=1)
    np.testing.assert_allclose(tape.gradient(loss, vectors), expected, **ROUNDING)


def test_a_padding_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="pad_to is 0"):
        DotProductInteraction(pad_to=0)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_cross_layer_is_its_formula(rank: int) -> None:
    start, x = random(4, 3), random(4, 3) + 1
    layer = Cross(rank)
    layer([start, x])
    assert [tuple(weight.shape) for weight in layer.weights] == ([(3, 2), (2, 3)] if rank else [(3, 3)]) + [(3,)]
    layer.set_weights([random(*weight.shape) for weight in layer.weights])
    *matrices, bias = layer.get_weights()
    matrix = np.linalg.multi_dot(matrices) if rank else matrices[0]
    np.testing.assert_allclose(layer([start, x]), start * (x @ matrix + bias) + x, **ROUNDING)


@pytest.mark.parametrize(
    "make", [lambda: DotProductInteraction(self_interaction=True, pad_to=8, name="x"), lambda: Cross(3, name="x")]
)
def test_config_round_trip_gives_an_equal_layer(make: Any) -> None:
    layer = make()
    assert type(layer).from_config(layer.get_config()).get_config() == layer.get_config()
