"""Search in histories against sorting in NumPy."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from rankline.training.models.layers import DotAttention, HardSearch, SmoothedMean, SoftSearch
from rankline.workflows.core.errors import ConfigError
from tests.oracles.tolerance import ROUNDING


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


def test_a_score_far_below_the_others_is_found_still() -> None:
    """Fault 7 of the reference: its softmax is 0, and it took what is above 0."""
    scores = tf.constant([[[-200.0, -300.0, 0.0]]])
    assert tf.nn.softmax(scores)[0, 0, 0] == 0
    np.testing.assert_array_equal(SoftSearch(2)([scores, tf.ones((1, 3))]), [[[1, 0, 1]]])


def test_no_place_without_an_item_is_found_whatever_it_scores() -> None:
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


def test_what_is_found_attends_as_a_list_of_it_would() -> None:
    """The mask in place of gathered items, and their gradients."""
    rng = np.random.default_rng(0)
    targets, history = (tf.constant(rng.normal(size=shape).astype(np.float32)) for shape in ((2, 3, 4), (2, 8, 4)))
    present = tf.constant((np.arange(8) >= [[1], [6]]).astype(np.float32))
    scores = tf.matmul(targets, history, transpose_b=True)

    def by_mask() -> Any:
        found = SoftSearch(5)([scores, present])
        return tf.concat([DotAttention()([targets, history, found])[0], SmoothedMean()([history, found])], -1)

    def by_list() -> Any:
        masked = tf.where(present[:, None] > 0, scores, tf.float32.min)
        highest, places = tf.math.top_k(masked, 5)
        items = tf.gather(tf.repeat(history[:, None], 3, axis=1), places, batch_dims=2)
        is_item = highest > tf.float32.min
        shares = tf.nn.softmax(tf.where(is_item, tf.einsum("ncd,nckd->nck", targets, items), tf.float32.min))
        mean = tf.reduce_sum(tf.where(is_item[..., None], items, 0), axis=2)
        mean /= 1 + tf.reduce_sum(tf.cast(is_item, tf.float32), axis=2)[..., None]
        return tf.concat([tf.einsum("nck,nckd->ncd", shares, items), mean], -1)

    results = []
    for make in (by_mask, by_list):
        with tf.GradientTape() as tape:
            tape.watch([targets, history])
            result = make()
            loss = tf.reduce_sum(result**2)
        results.append([result, *tape.gradient(loss, [targets, history])])
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, **ROUNDING)


def test_a_search_takes_half_precision() -> None:
    scores, present = arrays([3, 8], 2, 8, seed=1)
    got = SoftSearch(2)([tf.cast(scores, tf.float16), tf.cast(present, tf.bfloat16)])
    assert got.dtype == tf.float32
    np.testing.assert_array_equal(got, SoftSearch(2)([scores, present]))
    assert HardSearch(2)(tf.cast(present[:, None], tf.float16)).dtype == tf.float32


@pytest.mark.parametrize("make", [SoftSearch, HardSearch])
def test_configs_round_trip_and_numbers_below_one_are_refused(make: Any) -> None:
    assert make.from_config(make(7, name="x").get_config()).get_config() == make(7, name="x").get_config()
    with pytest.raises(ConfigError, match="num_searched is 0"):
        make(0)
