"""Generated data of each dataset: its reader takes all of it, and no model ranks it better than its truth."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.data.amazon.generator import generate_amazon
from rankline.workflows.data.amazon.reader import read_amazon
from rankline.workflows.data.auc import exact_auc
from rankline.workflows.data.criteo.generator import generate_criteo
from rankline.workflows.data.criteo.reader import CATEGORIES, NUMBERS, read_criteo
from rankline.workflows.data.movielens.generator import generate_movielens
from rankline.workflows.data.movielens.reader import read_movielens
from rankline.workflows.preprocess.raw import RawData, StreamedRows
from rankline.workflows.preprocess.splits import random_split
from tests.examples import examples

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Generator:
    generate: Callable[..., Any]
    read: Callable[[Path], RawData]
    max_rows: int
    """How many rows a property test generates at most."""

    scales: tuple[float, ...]


GENERATORS = {
    "movielens": Generator(generate=generate_movielens, read=read_movielens, max_rows=12_000, scales=(1.0,)),
    "criteo": Generator(generate=generate_criteo, read=read_criteo, max_rows=9_000, scales=(0.01,)),
    "amazon": Generator(generate=generate_amazon, read=read_amazon, max_rows=2_000, scales=(0.1, 1.0, 100.0)),
}
each_generator = pytest.mark.parametrize("name", GENERATORS)


def table_of(raw: RawData) -> pa.Table:
    return pa.Table.from_batches(raw.rows.batches()) if isinstance(raw.rows, StreamedRows) else raw.rows


def codes_of(table: pa.Table, name: str) -> Array:
    """The distinct values of a column as numbers, missing ones together."""
    column = table[name].combine_chunks()
    codes = (column.fill_null("") if column.null_count else column).dictionary_encode().indices
    return np.asarray(codes)


def smoothed_means(groups: Array, labels: Array, train: Array, prior: tuple[int, int]) -> Array:
    """The mean label of each row's group, as the train rows know it."""
    positives = np.bincount(groups[train], weights=labels[train], minlength=groups.max() + 1)
    counts = np.bincount(groups[train], minlength=groups.max() + 1)
    return ((positives + prior[0]) / (counts + prior[1]))[groups]


@each_generator
@examples(1 / 4)
@given(draw=st.data(), seed=st.integers(0, 2**32))
def test_generated_files_of_any_size_are_read_back_whole(
    tmp_path_factory: pytest.TempPathFactory, name: str, draw: st.DataObject, seed: int
) -> None:
    generator, directory = GENERATORS[name], tmp_path_factory.mktemp("any")
    num_rows = draw.draw(st.integers(1_000, generator.max_rows))
    scale = draw.draw(st.sampled_from(generator.scales))
    truth = generator.generate(directory, num_rows=num_rows, seed=seed, cardinality_scale=scale)
    raw = generator.read(directory)
    assert (table_of(raw).num_rows, raw.dropped, raw.noticed) == (num_rows, {}, {})
    assert json.loads((directory / "truth.json").read_text()) == asdict(truth)
    if name == "criteo":
        assert len(raw.rows.periods) == 5
        assert raw.rows.periods[-1] >= num_rows / 5 > raw.rows.periods[-1] - 1
    if name == "amazon":
        lengths = raw.rows["user_id"].value_counts().field("counts").to_numpy()
        assert len(lengths) == truth.num_users
        assert lengths.min() >= 5
        assert lengths.mean() > 100


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        *((name, {"num_rows": 999}, "at least 1000") for name in GENERATORS),
        *((name, {"seed": -1}, "seed is -1") for name in GENERATORS),
        *((name, {"cardinality_scale": value}, f"cardinality_scale is {value}")
          for name in ("criteo", "amazon") for value in (0.0, math.nan, math.inf)),
        ("criteo", {"cardinality_scale": 548.0}, "at most 547"),
        ("movielens", {"num_rows": 100_000, "cardinality_scale": 0.01}, "0.01 leaves 97 movies"),
    ],
)  # fmt: skip
def test_generator_refuses_numbers_out_of_range(
    tmp_path: Path, name: str, changed: dict[str, Any], message: str
) -> None:
    choices = {"num_rows": 1_000, "seed": 1, "cardinality_scale": 1.0} | changed
    with pytest.raises(ConfigError, match=message):
        GENERATORS[name].generate(tmp_path / "new", **choices)
    assert not (tmp_path / "new").exists()


def test_movielens_means_of_users_and_movies_rank_below_the_truth(tmp_path: Path) -> None:
    truth = generate_movielens(tmp_path, num_rows=100_000, seed=1)
    rows = read_movielens(tmp_path).rows
    assert (truth.num_users, truth.num_movies) == pytest.approx((605, 9_715), abs=5)  # as ml-latest-small has them
    labels = rows["rating"].to_numpy() > 3
    assert truth.positive_rate == pytest.approx(labels.mean(), abs=1e-12)
    train, valid = random_split(len(labels), 0.2, 0)
    scores = sum(smoothed_means(codes_of(rows, name), labels, train, (2, 4)) for name in ("userId", "movieId"))
    assert 0.68 < exact_auc(labels[valid], scores[valid]) < truth.best_auc
    assert 0.80 <= truth.best_auc <= 0.83


def test_criteo_means_of_ids_and_counts_rank_below_the_truth(tmp_path: Path) -> None:
    truth = generate_criteo(tmp_path, num_rows=60_000, seed=2, cardinality_scale=0.01)
    table = table_of(read_criteo(tmp_path))
    labels = table["label"].to_numpy()
    assert truth.positive_rate == labels.mean() == pytest.approx(0.25, abs=0.01)
    assert truth.best_auc == pytest.approx(0.80, abs=0.015)
    groups = [codes_of(table, name) for name in CATEGORIES]
    for name in NUMBERS:
        groups.append(np.rint(2 * np.log1p(np.maximum(table[name].fill_null(-1).to_numpy(), -0.9))).astype(int) + 5)
    train = np.arange(len(labels)) < len(labels) * 4 // 5
    rates = [smoothed_means(group, labels, train, (5, 20)) for group in groups]
    scores = np.sum([np.log(rate / (1 - rate)) for rate in rates], axis=0)
    assert 0.65 < exact_auc(labels[~train], scores[~train]) < truth.best_auc - 0.02


def amazon_auc(histories: list[Array], categories: Array, weights: Array) -> float:
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


def test_amazon_best_auc_takes_the_latest_choices_and_those_of_long_ago(tmp_path: Path) -> None:
    best = generate_amazon(tmp_path, num_rows=150_000, seed=1).best_auc
    raw = read_amazon(tmp_path)
    assert raw.catalog is not None
    numbers = {name: number for number, name in enumerate(raw.catalog["item_id"].to_pylist())}
    items = np.array([numbers[name] for name in raw.rows["item_id"].to_pylist()])
    histories = np.split(items, np.flatnonzero(np.diff(codes_of(raw.rows, "user_id"))) + 1)
    assert all(len(np.unique(items)) == len(items) for items in histories)
    latest = np.zeros(10)
    latest[:2] = 0.4 * np.array([0.8, 0.2])
    both = np.concatenate((latest, np.zeros(90)))
    both[10:99] = 0.4 / 89
    categories = codes_of(raw.catalog, "category")
    assert amazon_auc(histories, categories, both) == pytest.approx(best, abs=0.02)
    assert amazon_auc(histories, categories, latest) < best - 0.1


def auc_by_definition(labels, scores):
    positives = [score for label, score in zip(labels, scores, strict=True) if label]
    negatives = [score for label, score in zip(labels, scores, strict=True) if not label]
    wins = sum((p > n) + 0.5 * (p == n) for p in positives for n in negatives)
    return wins / (len(positives) * len(negatives))


@given(st.lists(st.tuples(st.booleans(), st.integers(-5, 5)), min_size=2, max_size=60))
def test_auc_is_the_share_of_pairs_in_the_right_order(rows):
    labels, scores = zip(*rows, strict=True)
    if len(set(labels)) == 2:
        assert exact_auc(labels, scores) == pytest.approx(auc_by_definition(labels, scores), abs=1e-12)


@pytest.mark.parametrize(
    ("labels", "scores", "message"),
    [
        ([1, 1], [0.1, 0.2], "both classes, got 2 positives and 0 negatives"),
        ([], [], "both classes"),
        ([0, 1], [0.1], "arrays of equal length"),
        ([0, 1], [0.1, np.nan], "NaN"),
        ([0, 0.5, 1], [0.1, 0.2, 0.3], "other than 0 and 1"),
    ],
)
def test_auc_refuses_a_single_class(labels, scores, message):
    with pytest.raises(ValueError, match=message):
        exact_auc(labels, scores)
