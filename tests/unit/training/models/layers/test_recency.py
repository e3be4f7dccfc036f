"""Places of a history by how long ago they are, its dot products with a candidate, and the odds of many negatives."""

import numpy as np
import pytest
import tensorflow as tf

from rankline.training.models.layers.recency import DotProductFeatures, PriorShift, Recency, RecencyMean

RNG = np.random.default_rng(0)


def normal(*shape: int) -> tf.Tensor:
    return tf.constant(RNG.normal(size=shape), tf.float32)


def test_the_latest_place_has_the_same_number_in_histories_of_any_length() -> None:
    recency = Recency(5)
    recency.build((None, None, 3))
    recency.set_weights([np.arange(5, dtype=np.float32)])
    assert recency(normal(2, 5, 3)).numpy().tolist() == [[[0, 1, 2, 3, 4]]]
    assert recency(normal(2, 2, 3)).numpy().tolist() == [[[3, 4]]]


def test_a_mean_weighs_by_place_and_leaves_out_what_is_not_there() -> None:
    layer = RecencyMean(4)
    history, present = normal(3, 4, 2), tf.constant([[1, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 0]], tf.float32)
    before = layer([history, present]).numpy()
    assert before[0] == pytest.approx(history[0].numpy().mean(axis=0), abs=1e-5)
    assert before[1] == pytest.approx(history[1, 2:].numpy().mean(axis=0), abs=1e-5)
    assert (before[2] == 0).all()
    layer.set_weights([np.array([0, 0, 0, 100], np.float32)])
    assert layer([history, present]).numpy()[:2] == pytest.approx(history[:2, -1].numpy(), abs=1e-5)


def test_padding_in_front_changes_no_mean() -> None:
    layer = RecencyMean(6)
    history, present = normal(2, 3, 2), tf.ones((2, 3))
    padded = [tf.pad(history, [[0, 0], [3, 0], [0, 0]]), tf.pad(present, [[0, 0], [3, 0]])]
    layer.build([(2, 3, 2), (2, 3)])
    layer.set_weights([RNG.normal(size=6).astype(np.float32)])
    short = layer([history, present])
    assert layer(padded).numpy() == pytest.approx(short.numpy(), abs=1e-5)


def test_a_dot_product_feature_is_that_of_each_feature_with_a_factor_of_its_own() -> None:
    layer, targets, summary = DotProductFeatures(2), normal(3, 4, 6), normal(3, 6)
    products = (targets * summary[:, None]).numpy()
    assert layer([targets, summary]).numpy() == pytest.approx(products.sum(axis=-1), abs=1e-5)
    layer.set_weights([np.array([1, 10, 0], np.float32)])
    expected = products[..., :2].sum(axis=-1) + 10 * products[..., 2:4].sum(axis=-1)
    assert layer([targets, summary]).numpy() == pytest.approx(expected, abs=1e-4)


def test_logits_are_lowered_by_the_odds_of_many_negatives_while_learning_only() -> None:
    logits = normal(3, 2)
    shift = PriorShift(4)
    assert shift(logits, training=True).numpy() == pytest.approx(logits.numpy() - np.log(4), abs=1e-5)
    assert (shift(logits).numpy() == logits.numpy()).all()
    odds = np.exp(logits.numpy())
    learnt = 1 / (1 + np.exp(-shift(logits, training=True).numpy()))
    assert learnt / (1 - learnt) == pytest.approx(odds / 4, rel=1e-4)
