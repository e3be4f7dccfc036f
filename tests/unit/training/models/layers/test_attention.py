"""Attention against its formulas in NumPy."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from hypothesis import given
from hypothesis import strategies as st

from rankline.training.models.layers import DinAttention, DotAttention, Mlp, SmoothedMean
from rankline.training.models.layers.attention import masked_softmax
from rankline.training.models.layers.mlp import Prelu
from tests.oracles.tolerance import ROUNDING

LENGTHS = (4, 0, 7, 1)
LAYERS = (DotAttention, DinAttention)


def random(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def present(lengths: Any = LENGTHS, num_steps: int | None = None) -> Any:
    """Items at the end of each row."""
    num_steps = num_steps or max(*lengths, 1)
    return (np.arange(num_steps) >= num_steps - np.array(lengths)[:, None]).astype(np.float32)


def example(num_candidates: int = 3, width: int = 5, num_steps: int = 7) -> list[Any]:
    mask = present(num_steps=num_steps)
    history = random(len(LENGTHS), 7, width) * present()[..., None]
    history = np.pad(history, ((0, 0), (num_steps - 7, 0), (0, 0)))
    return [tf.constant(x) for x in (random(len(LENGTHS), num_candidates, width), history, mask)]


def softmax(scores: Any, mask: Any) -> Any:
    """Row by row over what is present; in float64."""
    result = np.zeros(scores.shape)
    for place in np.ndindex(scores.shape[:-1]):
        there = np.broadcast_to(mask, scores.shape)[place] > 0
        shares = np.exp(scores[place][there].astype(np.float64) - scores[place][there].max(initial=-np.inf))
        result[place][there] = shares / shares.sum() if there.any() else 0
    return result


def unit_scores(weights: list[Any], targets: Any, history: Any) -> Any:
    """The concatenation and its dense layers."""
    num_candidates, num_steps = targets.shape[1], history.shape[1]
    q, s = np.repeat(targets[:, :, None], num_steps, 2), np.repeat(history[:, None], num_candidates, 1)
    x = np.concatenate([q, s, q - s, q * s], axis=-1)
    for kernel, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        x = 1 / (1 + np.exp(-(x @ kernel + bias)))
    return (x @ weights[-2] + weights[-1])[..., 0]


@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    num_candidates=st.integers(1, 3),
    scale=st.sampled_from([0.1, 10.0, 1e4]),
    dtype=st.sampled_from([tf.float32, tf.float16, tf.bfloat16]),
)
def test_softmax_is_that_of_what_is_present_and_zero_elsewhere(
    lengths: list[int], num_candidates: int, scale: float, dtype: Any
) -> None:
    mask = present(lengths)
    scores = tf.cast(random(len(lengths), num_candidates, mask.shape[1]) * scale, dtype)
    got = masked_softmax(scores, tf.cast(mask, dtype))
    assert got.dtype == tf.float32
    np.testing.assert_allclose(got, softmax(tf.cast(scores, tf.float32).numpy(), mask[:, None]), **ROUNDING)
    np.testing.assert_array_equal(masked_softmax(scores, tf.repeat(mask[:, None], num_candidates, axis=1)), got)


def test_softmax_keeps_small_weights_in_float16() -> None:
    """Fault 7 of the reference: 50 items whose weights float16 does not know."""
    scores = tf.constant([[[-20.0] * 50 + [0.0]]], tf.float16)
    got = masked_softmax(scores, tf.ones((1, 51)))
    np.testing.assert_allclose(got[0, 0, :50], np.exp(-20), rtol=1e-3)
    assert not np.exp(np.float32(-20)).astype(np.float16)


def test_masked_scores_have_no_gradient_even_if_they_are_not_finite() -> None:
    scores = tf.constant([[[np.inf, 1.0, 2.0]], [[np.nan, np.nan, np.nan]]])
    mask = tf.constant([[0.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    with tf.GradientTape() as tape:
        tape.watch(scores)
        loss = tf.reduce_sum(masked_softmax(scores, mask) * [1.0, 2.0, 3.0])
    slope = np.exp(1) / (1 + np.exp(1)) ** 2
    np.testing.assert_allclose(tape.gradient(loss, scores), [[[0, -slope, slope]], [[0, 0, 0]]], rtol=1e-5)


@pytest.mark.parametrize("make", LAYERS)
@pytest.mark.parametrize("num_candidates", [1, 3])
def test_attention_is_the_weighted_sum_of_what_is_present(make: Any, num_candidates: int) -> None:
    targets, history, mask = example(num_candidates)
    layer = make()
    pooled, scores = layer([targets, history, mask])
    wanted = targets.numpy() @ history.numpy().swapaxes(1, 2)
    if make is DinAttention:
        layer.set_weights([random(*weight.shape) for weight in layer.get_weights()])
        pooled, scores = layer([targets, history, mask])
        wanted = unit_scores(layer.get_weights(), targets.numpy(), history.numpy())
    there = np.broadcast_to(mask[:, None] > 0, scores.shape)
    np.testing.assert_allclose(scores.numpy()[there], wanted[there], **ROUNDING)
    np.testing.assert_allclose(pooled, softmax(wanted, mask[:, None]) @ history.numpy(), **ROUNDING)
    assert not pooled[1].numpy().any()


@pytest.mark.parametrize("make", LAYERS)
def test_candidates_may_have_their_own_items(make: Any) -> None:
    targets, history, mask = example()
    masks = mask[:, None] * tf.constant(np.random.default_rng(0).integers(2, size=(4, 3, 7)), tf.float32)
    layer = make()
    pooled, _ = layer([targets, history, masks])
    for candidate in range(3):
        one, _ = layer([targets[:, candidate : candidate + 1], history, masks[:, candidate]])
        np.testing.assert_allclose(one[:, 0], pooled[:, candidate], **ROUNDING)


@pytest.mark.parametrize("rank", [2, 3])
def test_places_without_items_are_left_out_where_lengths_vary_and_nothing_changes(rank: int) -> None:
    """The same outputs and gradients as with all places."""
    layer, (targets, history, mask) = DinAttention(), example(1)
    mask = mask if rank == 2 else mask[:, None]
    layer([targets, history, mask])
    layer.set_weights([random(*weight.shape) for weight in layer.get_weights()])

    def gradients(targets: Any, history: Any, mask: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([targets, history])
            pooled, _ = layer([targets, history, mask])
            loss = tf.reduce_sum(pooled**2)
        return pooled, tape.gradient(loss, [targets, history, *layer.trainable_variables])

    dynamic = [tf.TensorSpec((None, 1, 5)), tf.TensorSpec((None, None, 5)), tf.TensorSpec((None, None, None)[:rank])]
    packed = tf.function(gradients, input_signature=dynamic)
    assert "Where" in {operation.type for operation in packed.get_concrete_function().graph.get_operations()}
    (got, of_got), (wanted, of_wanted) = packed(targets, history, mask), gradients(targets, history, mask)
    np.testing.assert_allclose(got, wanted, **ROUNDING)
    for one, other in zip(of_got, of_wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


def test_smoothed_mean_is_a_sum_over_one_more_than_there_are() -> None:
    _, history, mask = example()
    wanted = (history.numpy() * mask.numpy()[..., None]).sum(axis=1) / (1 + np.array(LENGTHS))[:, None]
    np.testing.assert_allclose(SmoothedMean()([history, mask])[:, 0], wanted, **ROUNDING)
    of_two = SmoothedMean()([history, tf.stack([mask, 0 * mask], axis=1)])
    np.testing.assert_allclose(of_two, np.stack([wanted, 0 * wanted], axis=1), **ROUNDING)


def test_attention_gradients_of_many_rows_add_up_in_half_precision(half: str) -> None:
    arrays = random(2000, 2, 4) + 1, random(2000, 20, 4) + 1, np.ones((2000, 20), np.float32)
    inputs = [tf.constant(x) for x in arrays]
    of_precision = []
    for dtype in (f"mixed_{half}", "float32"):
        keras.mixed_precision.set_global_policy(dtype)
        layer = DinAttention()
        layer(inputs)
        layer.set_weights([random(*weight.shape) * 0.3 for weight in layer.weights])

        @tf.function(jit_compile=half == "float16", autograph=False)
        def gradients(layer: Any = layer) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.cast(layer(inputs)[0], tf.float32) ** 2)
            return tape.gradient(loss, layer.trainable_variables[:-1])  # the last one's is zero but for rounding

        of_precision.append(gradients())
    for one, other in zip(*of_precision, strict=True):
        assert one.dtype == tf.float32
        assert np.linalg.norm(one - other) < 0.05 * np.linalg.norm(other)


def test_prelu_has_one_share_per_unit_whatever_the_rank() -> None:
    x, layer = tf.constant(random(3, 2, 4)), Prelu()
    np.testing.assert_allclose(layer(x), np.where(x > 0, x, 0.1 * x), rtol=1e-6)
    layer.set_weights([np.arange(4.0)])
    np.testing.assert_allclose(layer(x), np.where(x > 0, x, np.arange(4) * x), rtol=1e-6)


@pytest.mark.parametrize("activation", ["prelu", "sigmoid"])
def test_dense_layers_take_any_rank(activation: str) -> None:
    x, layer = random(3, 2, 4), Mlp((5, 6), activation)
    got = layer(tf.constant(x))
    wanted = x
    weights = layer.get_weights()
    per_layer = len(weights) // 2
    for kernel, bias, *shares in (weights[:per_layer], weights[per_layer:]):
        wanted = wanted @ kernel + bias
        wanted = np.where(wanted > 0, wanted, shares[0] * wanted) if shares else 1 / (1 + np.exp(-wanted))
    np.testing.assert_allclose(got, wanted, **ROUNDING)
    np.testing.assert_allclose(layer(tf.constant(x[:, 0])), got[:, 0], **ROUNDING)
