"""A trial run of `bench quality`, and what it refuses."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from bench import quality
from workflows.datasets.movielens import MOVIELENS
from workflows.datasets.raw import RawData
from workflows.encodings.splits import time_split
from workflows.errors import ConfigError


def test_the_quality_benchmark_reports_its_ratios_of_the_same_users_and_items() -> None:
    peers = {name: grid[:2] for name, grid in quality.PEERS.items()}
    report = quality.run(1, recipe="movielens", num_rows=3_000, peers=peers, train={"epochs": 1})
    ranked = {name: figures for name, figures in report.results.items() if name.endswith(", ranking")}
    assert list(ranked) == [f"{name}, ranking" for name in ("popularity", "als", "item-knn", "movielens")]
    for ratio, figure in (("recall_vs_best_peer", "recall_at_20"), ("ndcg_vs_best_peer", "ndcg_at_20")):
        ours, *others = (ranked[f"{name}, ranking"][figure] for name in ("movielens", "als", "item-knn"))
        assert report.ratios[ratio] == pytest.approx(ours / max(others))
    assert len({figures["users"] for figures in ranked.values()}) == 1
    for side in ("movielens", "bias of user and item"):
        assert 0.6 < report.results[side]["auc"] < 1
        assert {"gauc", "logloss", "calibration_error"} < report.results[side].keys()


def test_a_recipe_without_user_item_and_time_is_refused() -> None:
    with pytest.raises(ConfigError, match="recipe 'criteo-dlrm' has no rows of a user, an item and a time"):
        quality.run(1, recipe="criteo-dlrm")


def test_nobody_is_recommended_what_they_rated_and_later_likes_are_relevant() -> None:
    rows = quality.Interactions(
        users=np.array([0, 0, 1, 2]),
        items=np.array([0, 1, 2, 3]),
        liked=np.array([True, False, True, True]),
        position=np.zeros(4),
        shape=(4, 60),
    )
    later = quality.Interactions(
        users=np.array([0, 0, 1, 3]),
        items=np.array([5, 6, 7, 8]),
        liked=np.array([True, False, True, True]),
        position=np.zeros(4),
        shape=(4, 60),
    )
    assert rows.chosen().toarray().nonzero()[1].tolist() == [0, 2, 3]
    scores = np.arange(60.0)[::-1]  # item 0 first: user 0 has 2, 3, 4 and then 5 before it; user 1 has 7 in place seven
    figures = rows.measure(later, lambda _: scores)
    assert figures["users"] == 2  # 2 likes nothing later, and 3 has rated nothing before
    assert figures["recall_at_20"] == 1
    assert figures["ndcg_at_20"] == pytest.approx((1 / np.log2(5) + 1 / np.log2(8)) / 2)


def test_each_users_latest_rows_validate() -> None:
    users, times = [7, 7, 9, 7, 9, 7, 7, 9, 9, 9], [5, 1, 900, 3, 800, 2, 4, 600, 500, 700]
    rows = pa.table({"userId": users, "timestamp": times})
    dataset = replace(MOVIELENS, read=lambda _: RawData(rows=rows, catalog=None, fingerprint="f"))
    by_position = quality.by_position(dataset)
    positions = by_position.read(Path()).rows[str(by_position.time)].to_numpy()
    train, valid = time_split(positions, 0.2)
    assert sorted(valid.tolist()) == [0, 2]
    assert len(train) == 8
