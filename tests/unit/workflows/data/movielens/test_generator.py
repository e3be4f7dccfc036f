import json

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.data.auc import exact_auc
from rankline.workflows.data.movielens import generator as movielens_generator
from rankline.workflows.data.movielens.generator import generate_movielens
from rankline.workflows.data.movielens.reader import read_movielens
from rankline.workflows.preprocess.splits import random_split
from tests.examples import examples
from tests.factories.recorders import ProgressRecord


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    directory = tmp_path_factory.mktemp("generated")
    truth = generate_movielens(directory, num_rows=100_000, seed=1)
    return directory, truth, read_movielens(directory)


def test_the_files_read_back_whole_without_duplicates_or_unknown_movies(generated):
    _, truth, raw = generated
    assert (raw.rows.num_rows, raw.dropped, raw.noticed) == (100_000, {}, {})
    assert raw.catalog.num_rows == truth.num_movies
    assert pc.count_distinct(raw.rows["userId"]).as_py() == truth.num_users


def test_it_has_the_shape_of_ml_latest_small(generated):
    _, truth, raw = generated
    assert truth.num_users == pytest.approx(605, abs=5)
    assert truth.num_movies == pytest.approx(9_715, abs=5)
    per_user = np.unique(raw.rows["userId"], return_counts=True)[1]
    per_movie = np.unique(raw.rows["movieId"], return_counts=True)[1]
    assert per_user.min() >= 20
    assert per_user.max() > 5 * np.median(per_user)
    assert per_movie.max() > 20 * np.median(per_movie)
    num_genres = pc.list_value_length(raw.catalog["genres"])
    assert set(num_genres.to_pylist()) == {1, 2, 3, 4, 5, 6}
    assert pc.count_distinct(pc.list_flatten(raw.catalog["genres"])).as_py() == 19
    assert set(raw.rows["rating"].to_pylist()) == {half / 2 for half in range(1, 11)}


def test_the_truth_on_disk_is_the_truth_returned_and_fits_the_rows(generated):
    directory, truth, raw = generated
    assert json.loads((directory / "truth.json").read_text()) == {
        "best_auc": truth.best_auc,
        "positive_rate": truth.positive_rate,
        "num_users": truth.num_users,
        "num_movies": truth.num_movies,
    }
    assert truth.positive_rate == pytest.approx(np.mean(raw.rows["rating"].to_numpy() > 3), abs=1e-12)
    assert truth.positive_rate == pytest.approx(0.5, abs=0.03)
    assert 0.80 <= truth.best_auc <= 0.83


def test_means_of_user_and_movie_rank_unseen_rows_well_but_not_better_than_the_truth(generated):
    _, truth, raw = generated
    labels = raw.rows["rating"].to_numpy() > 3
    train, valid = random_split(len(labels), 0.2, 0)
    scores = np.zeros(len(labels))
    for column in ("userId", "movieId"):
        codes = np.unique(raw.rows[column], return_inverse=True)[1]
        positives = np.bincount(codes[train], weights=labels[train], minlength=codes.max() + 1)
        scores += ((positives + 2) / (np.bincount(codes[train], minlength=codes.max() + 1) + 4))[codes]
    assert 0.70 < exact_auc(labels[valid], scores[valid]) < truth.best_auc


def test_the_numbers_of_users_and_movies_are_scaled(generated, tmp_path):
    _, truth, _ = generated
    for scale in (0.5, 3.0):
        scaled = generate_movielens(tmp_path / str(scale), num_rows=100_000, seed=1, cardinality_scale=scale)
        assert scaled.num_users == pytest.approx(truth.num_users * scale, abs=2)
        assert scaled.num_movies == pytest.approx(truth.num_movies * scale, abs=2)
        assert 0.80 <= scaled.best_auc <= 0.83


def test_users_keep_twenty_rows_however_many_are_asked_for(tmp_path):
    truth = generate_movielens(tmp_path, num_rows=10_000, seed=1, cardinality_scale=10.0)
    per_user = np.unique(read_movielens(tmp_path).rows["userId"], return_counts=True)[1]
    assert truth.num_users == 500
    assert set(per_user) == {20}


def test_a_scale_that_leaves_too_few_movies_to_rate_is_refused_and_nothing_is_written(tmp_path):
    message = (
        r"cardinality_scale 0.01 leaves 97 movies, and a user rates \d+ different ones. Give a larger scale, or fe"
    )
    with pytest.raises(ConfigError, match=message):
        generate_movielens(tmp_path / "new", num_rows=100_000, seed=1, cardinality_scale=0.01)
    assert not (tmp_path / "new").exists()


@examples(1 / 4)
@given(num_rows=st.integers(1_000, 12_000), seed=st.integers(0, 2**32))
def test_every_size_gives_exactly_so_many_distinct_pairs(tmp_path_factory, num_rows, seed):
    directory = tmp_path_factory.mktemp("any")
    generate_movielens(directory, num_rows=num_rows, seed=seed)
    raw = read_movielens(directory)
    assert (raw.rows.num_rows, raw.dropped, raw.noticed) == (num_rows, {}, {})


def test_rows_of_several_blocks_are_all_told_and_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(movielens_generator, "_ROWS_PER_BLOCK", 5_000)
    progress = ProgressRecord()
    generate_movielens(tmp_path, num_rows=12_000, seed=1, progress=progress)
    assert len(progress.reports) == 3
    assert progress.reports[-1] == (12_000, 12_000, "ratings")
    raw = read_movielens(tmp_path)
    assert (raw.rows.num_rows, raw.dropped, raw.noticed) == (12_000, {}, {})


@pytest.mark.parametrize(("num_rows", "seed", "message"), [(999, 1, "at least 1000"), (1000, -1, "seed is -1")])
def test_numbers_out_of_range_are_refused_and_nothing_is_written(tmp_path, num_rows, seed, message):
    with pytest.raises(ConfigError, match=message):
        generate_movielens(tmp_path / "new", num_rows=num_rows, seed=seed)
    assert not (tmp_path / "new").exists()
