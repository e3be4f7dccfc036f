"""Search in histories against sorting in NumPy."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from rankline.training.models.layers import HardSearch, SoftSearch
from rankline.training.models.layers.history import DotProductFeatures, NegativeSamplingCorrection, Recency, RecencyMean


def arrays(lengths: list[int], num_candidates: int, num_steps: int, seed: int) -> tuple[Any, Any]:
    """Scores with many ties, and what is present."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(-3, 4, size=(len(lengths), num_candidates, num_steps)).astype(np.float32)
    return scores, (np.arange(num_steps) >= num_steps - np.array(lengths)[:, None]).astype(np.float32)


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=3),
    num_candidates=st.integers(1, 3),
    num_searched=st.integers(1, 10),
    seed=st.integers(0, 99),
)
def test_soft_search_keeps_the_highest_scores_that_are_present_of_equal_ones_the_latest(
    lengths: list[int], num_candidates: int, num_searched: int, seed: int
) -> None:
    scores, present = arrays(lengths, num_candidates, 9, seed)
    got = SoftSearch(num_searched)([tf.constant(scores), tf.constant(present)]).numpy()
    for row, candidate in np.ndindex(got.shape[:2]):
        there = np.flatnonzero(present[row])
        best = sorted(there, key=lambda step: (scores[row, candidate, step], step))[-num_searched:]
        assert set(np.flatnonzero(got[row, candidate])) == set(best)
    assert set(np.unique(got)) <= {0.0, 1.0}


@given(num_searched=st.integers(1, 10), num_steps=st.integers(0, 9), seed=st.integers(0, 99))
def test_hard_search_keeps_the_latest_that_have_the_same(num_searched: int, num_steps: int, seed: int) -> None:
    same = np.random.default_rng(seed).integers(2, size=(3, 2, num_steps)).astype(np.float32)
    got = HardSearch(num_searched)(tf.constant(same)).numpy()
    for row, candidate in np.ndindex(got.shape[:2]):
        wanted = np.flatnonzero(same[row, candidate])[-num_searched:]
        np.testing.assert_array_equal(np.flatnonzero(got[row, candidate]), wanted)


def test_score_far_below_the_others_is_found_still() -> None:
    """Fault 7 of the reference: its softmax is 0, and it took what is above 0."""
    scores = tf.constant([[[-200.0, -300.0, 0.0]]])
    assert tf.nn.softmax(scores)[0, 0, 0] == 0
    np.testing.assert_array_equal(SoftSearch(2)([scores, tf.ones((1, 3))]), [[[1, 0, 1]]])


def test_search_never_returns_padding() -> None:
    scores = tf.constant([[[9.0, np.nan, -5.0, -6.0]], [[9.0, 8.0, 7.0, 6.0]]])
    present = tf.constant([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    for num_searched, wanted in ((1, [0, 0, 1, 0]), (3, [0, 0, 1, 1]), (9, [0, 0, 1, 1])):
        np.testing.assert_array_equal(SoftSearch(num_searched)([scores, present])[:, 0], [wanted, [0] * 4])


@pytest.mark.parametrize("num_steps", [0, 1, 3, 8])
def test_any_number_of_places_known_or_not(num_steps: int) -> None:
    scores, present = arrays([0, 2, 8], 2, 8, seed=1)
    scores, present = tf.constant(scores[..., :num_steps]), tf.constant(present[:, :num_steps])
    layer = SoftSearch(3)
    signature = [tf.TensorSpec((None, None, None)), tf.TensorSpec((None, None))]
    unknown = tf.function(lambda scores, present: layer([scores, present]), input_signature=signature)
    known = layer([scores, present])
    np.testing.assert_array_equal(unknown(scores, present), known)
    np.testing.assert_array_equal(tf.function(lambda: layer([scores, present]), jit_compile=num_steps > 0)(), known)
    same = tf.cast(scores > 0, tf.float32)
    compiled = tf.function(HardSearch(2), jit_compile=num_steps > 0)
    np.testing.assert_array_equal(compiled(same), HardSearch(2)(same))


RNG = np.random.default_rng(0)


def normal(*shape: int) -> tf.Tensor:
    return tf.constant(RNG.normal(size=shape), tf.float32)


def test_latest_place_has_the_same_number_in_histories_of_any_length() -> None:
    recency = Recency(5)
    recency.build((None, None, 3))
    recency.set_weights([np.arange(5, dtype=np.float32)])
    assert recency(normal(2, 5, 3)).numpy().tolist() == [[[0, 1, 2, 3, 4]]]
    assert recency(normal(2, 2, 3)).numpy().tolist() == [[[3, 4]]]


def test_mean_weighs_by_place_and_leaves_out_what_is_not_there() -> None:
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


def test_dot_product_feature_is_that_of_each_feature_with_a_factor_of_its_own() -> None:
    layer, targets, summary = DotProductFeatures(2), normal(3, 4, 6), normal(3, 6)
    products = (targets * summary[:, None]).numpy()
    assert layer([targets, summary]).numpy() == pytest.approx(products.sum(axis=-1), abs=1e-5)
    layer.set_weights([np.array([1, 10, 0], np.float32)])
    expected = products[..., :2].sum(axis=-1) + 10 * products[..., 2:4].sum(axis=-1)
    assert layer([targets, summary]).numpy() == pytest.approx(expected, abs=1e-4)


def test_logits_are_lowered_by_the_odds_of_many_negatives_while_learning_only() -> None:
    logits = normal(3, 2)
    shift = NegativeSamplingCorrection(4)
    assert shift(logits, training=True).numpy() == pytest.approx(logits.numpy() - np.log(4), abs=1e-5)
    assert (shift(logits).numpy() == logits.numpy()).all()
    odds = np.exp(logits.numpy())
    learnt = 1 / (1 + np.exp(-shift(logits, training=True).numpy()))
    assert learnt / (1 - learnt) == pytest.approx(odds / 4, rel=1e-4)
