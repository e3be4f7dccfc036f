"""A linear autoencoder of items: that it is the one of the paper, and what it says of the unknown."""

from typing import Any

import numpy as np
import pytest

from rankline.training.config.train import TrainConfig
from rankline.training.models.factorization.ease import EASEConfig
from rankline.training.models.factorization.ease.network import EASE
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.data.auc import exact_auc
from rankline.workflows.schema.ragged import Ragged
from tests.unit.training.models.factorization.bayesian_fm.test_bayesian_fm import STRANGER, inputs_of, planted, spec_of

RECENCY, REGULARIZATION = 1.5, 3.0


def rows_of(pairs: Any) -> dict[str, Any]:
    users, items = np.asarray(pairs).T
    return {"user": users, "item": items, "genres": Ragged.of_rows([[]] * len(users))}


def fitted(inputs: dict[str, Any], labels: Any, **choices: Any) -> EASE:
    config = EASEConfig(**{"regularization": REGULARIZATION, "served_dim": 80, **choices})
    model: EASE = config.build(spec_of(), TrainConfig(model=config))
    model.begin(model.matrix(inputs), np.asarray(labels, np.float32), seed=1)
    return model


def relevance(model: EASE) -> Any:
    """What stands behind the scores, of all users and items."""
    users, _, items = model.tables
    return users[:, :-1] @ items[:, :-1].T / 4


def expected(inputs: dict[str, Any], labels: Any) -> Any:
    """Equation 8 of the paper, dense; of rows in the order of time, no pair twice."""
    chosen, weighted = np.zeros((2, 123, 63))
    for user in np.unique(inputs["user"]):
        rows = np.flatnonzero(inputs["user"] == user)
        for place, row in enumerate(rows):
            chosen[user, inputs["item"][row]] = labels[row]
            after = (len(rows) - 1 - place) / len(rows)
            weighted[user, inputs["item"][row]] = labels[row] * np.exp(-RECENCY * after)
    inverse = np.linalg.inv(chosen.T @ chosen + REGULARIZATION * np.eye(63))
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0)
    return weighted @ weights


@pytest.mark.parametrize("num_users", [20, 115])  # fewer users than items, and more
def test_the_scores_are_those_of_the_paper(num_users: int) -> None:
    rng = np.random.default_rng(0)
    pairs = np.array([(user + 3, item + 3) for user in range(num_users) for item in rng.permutation(55)[:20]])
    inputs, labels = rows_of(rng.permutation(pairs)), rng.random(len(pairs)) < 0.6
    model, wanted = fitted(inputs, labels, recency=RECENCY), expected(inputs, labels)
    known = np.unique(inputs["user"])
    np.testing.assert_allclose(relevance(model)[known], wanted[known], atol=1e-4)
    scores = model.scores(model.matrix(inputs))[:, 0]
    by_relevance = np.argsort(wanted[inputs["user"], inputs["item"]])
    assert np.all(np.diff(scores[by_relevance]) > -1e-4)
    assert np.all((scores > 0) & (scores < 1))


def test_who_likes_what_a_group_likes_is_offered_the_rest_of_it() -> None:
    rng = np.random.default_rng(1)
    pairs = [(user, 3 + user % 2 + 2 * item) for user in range(3, 120) for item in rng.permutation(25)[:15]]
    model = fitted(rows_of(pairs), np.ones(len(pairs)), served_dim=4)
    ours, others = (relevance(model)[4, 3 + group : 53 : 2] for group in (0, 1))
    assert ours.min() > 2 * others.max()


def test_of_a_pair_that_comes_twice_the_latest_counts() -> None:
    pairs = [(3, 3), (3, 4), (3, 5), (4, 3), (4, 4), (4, 5), (5, 4), (5, 5)]
    once = relevance(fitted(rows_of(pairs), np.ones(len(pairs)), recency=RECENCY))
    twice = relevance(fitted(rows_of([*pairs, (5, 4)]), np.ones(len(pairs) + 1), recency=RECENCY))
    assert twice[5, 5] > once[5, 5]  # by item 4, which is later now
    np.testing.assert_allclose(twice[[3, 4]], once[[3, 4]], atol=1e-6)


def test_the_unknown_get_what_is_liked_most() -> None:
    """A user without rows, and one who has liked nothing; an item without rows is the last."""
    pairs = [(user, item) for user in range(3, 40) for item in range(3, 12) if user % (item - 1) == 0] + [(50, 3)]
    model = fitted(rows_of(pairs), [user != 50 for user, _ in pairs])
    of_all = relevance(model)
    users, *_ = model.tables
    np.testing.assert_array_equal(users[STRANGER], users[50])  # of their products, kernels may round two rows apart
    np.testing.assert_allclose(
        of_all[STRANGER], of_all[np.unique([user for user, _ in pairs[:-1]])].mean(axis=0), atol=1e-6
    )
    assert np.argmax(of_all[STRANGER]) == 3
    assert not of_all[:, STRANGER].any()


def test_a_user_of_one_rating_and_one_of_all_items() -> None:
    pairs = [(3, 3), *((4, item) for item in range(3, 63)), *((user, item) for user in (5, 6) for item in (3, 4, 5))]
    of_all = relevance(fitted(rows_of(pairs), np.ones(len(pairs))))
    assert np.isfinite(of_all).all()
    assert np.argmax(of_all[3]) in (4, 5)


@pytest.mark.parametrize("labels", [np.zeros(500), np.ones(500)])
def test_ratings_that_are_all_equal_are_no_error(labels: Any) -> None:
    model = fitted(inputs_of(500, seed=1), labels)
    assert np.isfinite(model.scores(model.matrix(inputs_of(100, seed=2)))).all()
    assert relevance(model).any() == labels.any()


def test_noise_is_not_learned() -> None:
    """20,000 rows: the AUC of noise has a deviation of 0.004."""
    rng = np.random.default_rng(3)
    labels, rows = rng.random(28_000) < 0.5, inputs_of(28_000, seed=4)
    train, valid = (
        {name: rows[name][part] for name in ("user", "item")} for part in (slice(8_000), slice(8_000, None))
    )
    nothing = {"genres": Ragged.of_rows([[]] * 8_000)}
    model = fitted(train | nothing, labels[:8_000], recency=RECENCY)
    scores = model.scores(model.matrix(valid | {"genres": Ragged.of_rows([[]] * 20_000)}))[:, 0]
    # Pairs that come again are known by their label of then, which is noise as well.
    assert exact_auc(labels[8_000:], scores) == pytest.approx(0.5, abs=0.02)
    assert exact_auc(planted(valid) > 0, scores) == pytest.approx(0.5, abs=0.05)


def test_items_beyond_the_limit_are_those_that_fewest_like() -> None:
    pairs = [(user, item) for user in range(3, 60) for item in range(3, 8) if user % (item - 2) == 0]
    of_all = relevance(fitted(rows_of(pairs), np.ones(len(pairs)), max_items=3))
    assert np.flatnonzero(of_all.any(axis=0)).tolist() == [3, 4, 5]


@pytest.mark.parametrize("choices", [{"regularization": 0.0}, {"recency": -1.0}, {"max_items": 0}, {"served_dim": 0}])
def test_choices_out_of_range_are_refused(choices: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(choices))):
        EASEConfig(**choices)
