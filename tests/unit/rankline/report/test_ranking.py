from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from rankline.report.ranking import NDCG, RECALL, rank_items
from rankline.workflows.data.movielens.dataset import MOVIELENS
from rankline.workflows.preprocess import RowsConfig
from rankline.workflows.preprocess.config import PrepareConfig
from rankline.workflows.preprocess.prepare import prepare
from rankline.workflows.preprocess.prepared_data import PreparedData

NUM_USERS, NUM_MOVIES = 20, 100


def earlier(user: int) -> list[int]:
    """Movies that everyone rates in training: 1 to 8, or 1 to 9."""
    return list(range(1, 9 + user % 2))


def later(user: int) -> tuple[int, int]:
    """The movie that the user likes after training, and the one that the user does not like."""
    return 50 + user, 80 + user % 10


@pytest.fixture(scope="module")
def ratings(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    directory = tmp_path_factory.mktemp("movies")
    lines = [
        f"{user},{movie},{1.0 if movie == 1 else 5.0},{user}" for user in range(NUM_USERS) for movie in earlier(user)
    ]
    for user in range(NUM_USERS):
        liked, disliked = later(user)
        lines += [f"{user},{liked},5.0,1000", f"{user},{disliked},1.0,1000"]
    (directory / "ratings.csv").write_text("\n".join(["userId,movieId,rating,timestamp", *lines]) + "\n")
    movies = [f"{movie},Movie {movie},Drama" for movie in range(1, NUM_MOVIES + 1)]
    (directory / "movies.csv").write_text("\n".join(["movieId,title,genres", *movies]) + "\n")
    encoding = RowsConfig(split="time", valid_share=2 * NUM_USERS / len(lines))
    raw = MOVIELENS.read(directory)
    return prepare(MOVIELENS, raw, directory / "prepared", PrepareConfig(), encoding, source="a test")


def test_model_that_knows_what_users_like_is_perfect(ratings: PreparedData) -> None:
    asked: set[tuple[int, int]] = set()

    def score(rows: pa.Table) -> np.ndarray:
        pairs = list(zip(rows["userId"].to_pylist(), rows["movieId"].to_pylist(), strict=True))
        asked.update(pairs)
        return np.array([float(later(user)[0] == movie) for user, movie in pairs])

    rows = ratings.heldout()
    found = rank_items(ratings, rows, rows["rating"].to_numpy(), score)
    assert found is not None
    assert found.num_users == NUM_USERS
    assert found.model[RECALL] == found.model[NDCG] == 1
    # Users have 91 new movies that nobody rated, which are equally popular; half of them have movie 9 before these.
    assert found.popular[RECALL] == pytest.approx((20 / 91 + 19 / 91) / 2)
    assert asked == {
        (user, movie) for user in range(NUM_USERS) for movie in range(1, NUM_MOVIES + 1) if movie not in earlier(user)
    }


def test_only_rows_that_follow_training_are_ranked(ratings: PreparedData) -> None:
    rows = ratings.heldout()
    labels = rows["rating"].to_numpy()
    details = {**ratings.manifest.details, "config": {"split": "random"}}
    at_random = replace(ratings, manifest=replace(ratings.manifest, details=details))
    assert rank_items(at_random, rows, labels, lambda rows: np.zeros(len(rows))) is None
    few = rows.slice(0, 10)
    assert rank_items(ratings, few, labels[:10], lambda rows: np.zeros(len(rows))) is None
