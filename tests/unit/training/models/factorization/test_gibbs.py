"""Draws of a factorisation machine: what they are draws of."""

import math
from typing import Any

import numpy as np
import pytest

from rankline.training.models.factorization.bayesian_fm import Posterior
from rankline.training.models.factorization.gibbs import Chain, Encoded, _above, _seed, partners


def rows_of(num_rows: int = 4000, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return np.sort(rng.integers(3, 23, num_rows)), rng.integers(3, 15, num_rows)


def chain_of(labels: Any, *, is_binary: bool, seed: int = 0, factors: int = 2) -> Chain:
    users, items = (Encoded.of(ids) for ids in rows_of(len(labels)))
    columns = [users.known(partners(users, items)), items.known(partners(items, users))]
    return Chain(columns, labels, factors=factors, seed=seed, is_binary=is_binary)


def mean_scores(chain: Chain, *, num_discarded: int, num_kept: int) -> Any:
    for _ in range(num_discarded):
        chain.sweep()
    total = 0.0
    for _ in range(num_kept):
        chain.sweep()
        total += chain.scores() / num_kept
    return total


@pytest.mark.parametrize("bound", [-3.0, 0.0, 0.4, 0.6, 2.0, 6.0])
def test_normal_number_above_a_bound_has_the_mean_of_such_numbers(bound: float) -> None:
    _seed(0)
    drawn = np.array([_above(bound) for _ in range(20_000)])
    assert drawn.min() > bound
    density = math.exp(-(bound**2) / 2) / math.sqrt(2 * math.pi)
    mean = density / (math.erfc(bound / math.sqrt(2)) / 2)
    variance = 1 + bound * mean - mean**2
    assert drawn.mean() == pytest.approx(mean, abs=5 * math.sqrt(variance / len(drawn)))
    assert drawn.var() == pytest.approx(variance, rel=0.1)


@pytest.mark.parametrize("is_binary", [True, False])
def test_kept_sums_follow_the_weights(*, is_binary: bool) -> None:
    labels = np.random.default_rng(1).integers(0, 2, 4000).astype(np.float64)
    chain = chain_of(labels, is_binary=is_binary)
    for _ in range(5):
        chain.sweep()
    kept = chain.scores()
    chain._sums = chain._of_rows([of[:-1] for of in chain.groups])
    np.testing.assert_allclose(kept, chain._scores(), atol=1e-9)


def test_numbers_of_a_planted_machine_are_found_to_the_noise() -> None:
    users, items = rows_of()
    rng = np.random.default_rng(2)
    taste, kind = rng.normal(size=(23, 2)), rng.normal(size=(15, 2))
    planted = (taste[users] * kind[items]).sum(axis=1) + rng.normal(size=23)[users]
    labels = planted + rng.normal(scale=0.1, size=len(planted))
    labels = (labels - labels.mean()) / labels.std()
    chain = chain_of(labels, is_binary=False)
    mean = mean_scores(chain, num_discarded=60, num_kept=40)
    expected = (planted - planted.mean()) / planted.std()
    assert np.sqrt(np.mean((mean - expected) ** 2)) < 0.05
    assert 1 / math.sqrt(chain._noise_precision) == pytest.approx(0.1 / planted.std(), rel=0.2)


def test_chances_of_a_planted_machine_are_calibrated() -> None:
    users, _ = rows_of()
    rng = np.random.default_rng(3)
    planted = rng.normal(size=23)[users]
    labels = (planted + rng.normal(size=len(planted)) > 0).astype(np.float64)
    chain = chain_of(labels, is_binary=True, factors=1)
    mean = mean_scores(chain, num_discarded=50, num_kept=100)
    assert np.corrcoef(mean, planted)[0, 1] > 0.97
    assert np.std(mean) == pytest.approx(np.std(planted), rel=0.2)


def test_draws_are_those_of_their_seed() -> None:
    labels = np.random.default_rng(4).integers(0, 2, 500).astype(np.float64)
    first, again, other = (chain_of(labels, is_binary=True, seed=seed) for seed in (7, 7, 8))
    for _ in range(3):
        for chain in (first, again, other):  # in turns: the generator of the loops is one for all
            chain.sweep()
    np.testing.assert_array_equal(first.scores(), again.scores())
    assert np.any(first.scores() != other.scores())


def test_lists_share_alike_and_partners_count_once() -> None:
    lists = Encoded.of_lists(np.array([[5, 7, 0], [0, 0, 0], [5, 7, 0], [7, 0, 0]]))
    assert lists.num_groups == 3
    assert lists.ids.tolist() == [5, 7]
    assert lists.frequencies.tolist() == [2, 3]
    both = lists.groups[0]
    assert sorted(lists.own.weights[lists.own.groups == both]) == [0.5, 0.5]
    users, items = Encoded.of(np.array([4, 4, 4, 9])), Encoded.of(np.array([8, 8, 6, 6]))
    known = partners(users, items)
    assert np.diff(known.starts).tolist() == [2, 1]  # item 6 has both users, item 8 one
    np.testing.assert_allclose(known.weights[known.groups == 0], 1 / math.sqrt(2))


def test_mean_machine_has_the_mean_dot_products_in_memory_that_does_not_grow() -> None:
    rng = np.random.default_rng(5)
    frequencies, shared = rng.integers(1, 9, 30), rng.normal(size=(4, 30))
    posterior, products, linear = Posterior(frequencies, dimensions=6), 0.0, 0.0
    for _ in range(200):
        turn, _ = np.linalg.qr(rng.normal(size=(4, 4)))  # a machine that is turned scores the same
        drawn = np.concatenate([turn @ shared + 0.01 * rng.normal(size=(4, 30)), rng.normal(size=(1, 30))])
        posterior.add(drawn, offset=2.0, scores=np.arange(5.0))
        products = products + drawn[:-1].T @ drawn[:-1] / 200
        linear = linear + drawn[-1] / 200
        assert posterior._vectors.shape[1] <= 8 * 6 + 4
    weights, offset = posterior.mean()
    assert weights.shape == (30, 7)
    found, expected = weights[:, :-1] @ weights[:, :-1].T, np.array(products)
    off = ~np.eye(30, dtype=bool)
    np.testing.assert_allclose(found[off], expected[off], atol=0.02)
    np.testing.assert_allclose(weights[:, -1], linear, atol=1e-6)
    assert offset == pytest.approx(2.0)
    assert posterior.variance() == pytest.approx(0.0, abs=1e-9)
