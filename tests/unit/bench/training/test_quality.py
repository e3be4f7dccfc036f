"""Which rows the benchmark of quality lets models and peers learn from, and what it counts as found."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from bench.training import quality
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.data.movielens.dataset import MOVIELENS
from rankline.workflows.preprocess.raw import RawData
from rankline.workflows.preprocess.splits import time_split


def interactions(users: list[int], items: list[int], liked: list[bool]) -> quality.Interactions:
    return quality.Interactions(
        users=np.array(users), items=np.array(items), liked=np.array(liked), position=np.zeros(4), shape=(4, 60)
    )


def test_items_rated_before_are_not_ranked_and_later_likes_are_relevant() -> None:
    rows = interactions([0, 0, 1, 2], [0, 1, 2, 3], [True, False, True, True])
    later = interactions([0, 0, 1, 3], [5, 6, 7, 8], [True, False, True, True])
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
    _, valid = time_split(positions, 0.2)
    assert sorted(valid.tolist()) == [0, 2]


def test_recipe_without_user_item_and_time_is_rejected() -> None:
    with pytest.raises(ConfigError, match="recipe 'criteo-dlrm' has no rows of a user, an item and a time"):
        quality.run(1, recipe="criteo-dlrm")
