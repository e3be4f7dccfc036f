import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.data.amazon.generator import AmazonTruth, generate_amazon
from rankline.workflows.data.amazon.reader import read_amazon
from rankline.workflows.data.auc import exact_auc
from tests.examples import examples

NUM_ROWS = 150_000
Histories = list[np.ndarray[Any, Any]]


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, AmazonTruth]:
    directory = tmp_path_factory.mktemp("generated")
    return directory, generate_amazon(directory, num_rows=NUM_ROWS, seed=1)


@pytest.fixture(scope="module")
def histories(generated: tuple[Path, AmazonTruth]) -> Histories:
    """Items of each user as numbers, by the catalogue."""
    raw = read_amazon(generated[0])
    assert raw.catalog is not None
    numbers = {name: number for number, name in enumerate(raw.catalog["item_id"].to_pylist())}
    items = np.array([numbers[name] for name in raw.rows["item_id"].to_pylist()])
    users = raw.rows["user_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    return np.split(items, np.flatnonzero(np.diff(users)) + 1)


@pytest.fixture(scope="module")
def categories(generated: tuple[Path, AmazonTruth]) -> np.ndarray[Any, Any]:
    """Category of each item of the catalogue, as a number."""
    raw = read_amazon(generated[0])
    assert raw.catalog is not None
    codes = raw.catalog["category"].combine_chunks().dictionary_encode().indices.to_numpy()
    return np.asarray(codes)


def test_what_is_written_is_read_back_whole_and_all_items_are_described(generated: tuple[Path, AmazonTruth]) -> None:
    directory, truth = generated
    raw = read_amazon(directory)
    assert raw.catalog is not None
    assert len(raw.rows) == NUM_ROWS
    assert (raw.dropped, raw.noticed) == ({}, {})
    assert len(raw.rows["user_id"].unique()) == truth.num_users
    assert len(raw.catalog) == truth.num_items
    assert len(raw.catalog["category"].unique()) == truth.num_categories
    assert raw.catalog.column_names == ["item_id", "parent", "category"]
    assert json.loads((directory / "truth.json").read_text()) == {
        "best_auc": truth.best_auc,
        "num_users": truth.num_users,
        "num_items": truth.num_items,
        "num_categories": truth.num_categories,
    }


def test_lines_are_those_of_amazon_in_the_order_of_the_items(generated: tuple[Path, AmazonTruth]) -> None:
    lines = [json.loads(line) for line in (generated[0] / "reviews.json").read_text().splitlines()]
    assert set(lines[0]) == {"reviewerID", "asin", "unixReviewTime"}
    items = [line["asin"] for line in lines]
    assert sum(one != other for one, other in pairwise(items)) == len(set(items)) - 1
    assert all(line["unixReviewTime"] % 86_400 == 0 for line in lines[:100])
    with gzip.open(generated[0] / "meta.json.gz", "rt") as stream:
        assert len(json.loads(stream.readline())["categories"][0]) == 3


def test_histories_are_long_and_nobody_chooses_an_item_twice(histories: Histories) -> None:
    lengths = np.array([len(items) for items in histories])
    assert lengths.min() >= 5
    assert np.mean(lengths > 100) > 0.5
    assert lengths.max() > 2 * lengths.mean()
    assert all(len(np.unique(items)) == len(items) for items in histories)


def test_some_items_are_much_more_popular_than_others(histories: Histories) -> None:
    counts = np.sort(np.bincount(np.concatenate(histories)))[::-1]
    assert counts[: len(counts) // 10].sum() > 0.25 * NUM_ROWS


def test_a_category_comes_from_the_latest_choices_or_from_long_ago(
    histories: Histories, categories: np.ndarray[Any, Any]
) -> None:
    long = [categories[items] for items in histories if len(items) > 100]
    same = np.array(
        [np.mean([np.mean(kinds[99:] == kinds[99 - lag : -lag]) for kinds in long]) for lag in range(1, 100)]
    )
    by_chance = np.sum((np.bincount(categories[np.concatenate(histories)]) / NUM_ROWS) ** 2)
    # What lies some choices back is not taken up, what lies further back is.
    assert same[0] > same[1] > same[2] > 2 * same[6:10].mean()
    assert same[20:].mean() > 1.2 * same[6:10].mean() > 1.2 * by_chance
    assert same[-20:].mean() > 2 * by_chance


def best_auc_of(histories: Histories, categories: np.ndarray[Any, Any], weights: np.ndarray[Any, Any]) -> float:
    """AUC on each user's last item of a score that sees categories only: `weights` of lag 1, 2, … where alike."""
    rng = np.random.default_rng(5)
    pool = np.concatenate(histories)
    share = np.bincount(categories[pool]) / len(pool)
    scores, labels = [], []
    for items in histories:
        negatives = rng.choice(pool, 12)
        candidates = np.append(items[-1], negatives[~np.isin(negatives, items)][:4])
        before = categories[items[-2::-1]][: len(weights)]
        alike = (before[:, None] == categories[candidates]) * weights[: len(before), None]
        scores.append(alike.sum(axis=0) / share[categories[candidates]])
        labels.append(np.arange(len(candidates)) == 0)
    return exact_auc(np.concatenate(labels), np.concatenate(scores))


def test_only_the_order_of_the_latest_choices_and_those_of_long_ago_together_reach_the_best_auc(
    generated: tuple[Path, AmazonTruth], histories: Histories, categories: np.ndarray[Any, Any]
) -> None:
    best = generated[1].best_auc
    latest, bag = np.zeros(10), np.ones(100)
    latest[:2] = 0.4 * np.array([0.8, 0.2])
    both = np.concatenate((latest, np.zeros(90)))
    both[10:99] = 0.4 / 89
    reached = {
        name: best_auc_of(histories, categories, weights)
        for name, weights in (("latest", latest), ("bag", bag), ("both", both))
    }
    assert reached["both"] == pytest.approx(best, abs=0.02)
    assert reached["latest"] < best - 0.1
    assert reached["bag"] < best - 0.03


def test_cardinality_is_scaled(generated: tuple[Path, AmazonTruth], tmp_path: Path) -> None:
    truth = generated[1]
    scaled = generate_amazon(tmp_path, num_rows=NUM_ROWS, seed=1, cardinality_scale=2)
    assert scaled.num_users == truth.num_users
    assert scaled.num_items == 2 * truth.num_items
    assert scaled.num_categories == pytest.approx(2 * truth.num_categories, abs=1)


@examples(1 / 4)
@given(num_rows=st.integers(1_000, 2_000), seed=st.integers(0, 2**32), scale=st.sampled_from([0.1, 1.0, 100.0]))
def test_every_size_gives_exactly_so_many_rows_and_long_histories(
    tmp_path_factory: pytest.TempPathFactory, num_rows: int, seed: int, scale: float
) -> None:
    directory = tmp_path_factory.mktemp("any")
    truth = generate_amazon(directory, num_rows=num_rows, seed=seed, cardinality_scale=scale)
    raw = read_amazon(directory)
    counts = raw.rows["user_id"].value_counts().field("counts").to_numpy()
    assert (len(raw.rows), len(counts)) == (num_rows, truth.num_users)
    assert counts.min() >= 5
    assert counts.mean() > 100
    assert 0 <= truth.best_auc <= 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_rows": 999}, "at least 1000"),
        ({"seed": -1}, "seed is -1"),
        ({"cardinality_scale": 0.0}, "cardinality_scale is 0.0, expected a finite number above 0"),
        ({"cardinality_scale": float("nan")}, "cardinality_scale is nan"),
        ({"cardinality_scale": float("inf")}, "cardinality_scale is inf"),
    ],
)
def test_numbers_out_of_range_are_refused_and_nothing_is_written(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        generate_amazon(tmp_path / "new", **({"num_rows": 1_000, "seed": 1, "cardinality_scale": 1.0} | changed))
    assert not (tmp_path / "new").exists()
