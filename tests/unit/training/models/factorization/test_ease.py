"""A linear autoencoder of items: that it is the one of the paper, and what it says of the unknown."""

from typing import Any

import numpy as np
import pytest

from rankline.training.config.train import TrainConfig
from rankline.training.models.factorization import EASEConfig
from rankline.training.models.factorization.ease import EASE
from rankline.workflows.schema.ragged import Ragged
from tests.unit.training.models.factorization.test_bayesian_fm import STRANGER, inputs_of, spec_of

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
def test_scores_are_those_of_the_paper(num_users: int) -> None:
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


def test_users_are_offered_the_rest_of_what_their_group_likes() -> None:
    rng = np.random.default_rng(1)
    pairs = [(user, 3 + user % 2 + 2 * item) for user in range(3, 120) for item in rng.permutation(25)[:15]]
    model = fitted(rows_of(pairs), np.ones(len(pairs)), served_dim=4)
    ours, others = (relevance(model)[4, 3 + group : 53 : 2] for group in (0, 1))
    assert ours.min() > 2 * others.max()


def test_latest_of_repeated_pairs_counts() -> None:
    pairs = [(3, 3), (3, 4), (3, 5), (4, 3), (4, 4), (4, 5), (5, 4), (5, 5)]
    once = relevance(fitted(rows_of(pairs), np.ones(len(pairs)), recency=RECENCY))
    twice = relevance(fitted(rows_of([*pairs, (5, 4)]), np.ones(len(pairs) + 1), recency=RECENCY))
    assert twice[5, 5] > once[5, 5]  # by item 4, which is later now
    np.testing.assert_allclose(twice[[3, 4]], once[[3, 4]], atol=1e-6)


def test_unknown_get_what_is_liked_most() -> None:
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


@pytest.mark.parametrize("labels", [np.zeros(500), np.ones(500)])
def test_ratings_that_are_all_equal_are_no_error(labels: Any) -> None:
    model = fitted(inputs_of(500, seed=1), labels)
    assert np.isfinite(model.scores(model.matrix(inputs_of(100, seed=2)))).all()
    assert relevance(model).any() == labels.any()


def test_items_beyond_the_limit_are_those_that_fewest_like() -> None:
    pairs = [(user, item) for user in range(3, 60) for item in range(3, 8) if user % (item - 2) == 0]
    of_all = relevance(fitted(rows_of(pairs), np.ones(len(pairs)), max_items=3))
    assert np.flatnonzero(of_all.any(axis=0)).tolist() == [3, 4, 5]
