"""Rows with histories, against the same steps on Python's lists."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.workflows.core.errors import DataError
from rankline.workflows.preprocess import SequenceConfig
from rankline.workflows.preprocess.negative_sampling import TRAIN, VALID, Interactions, Rows, Sequences

NUM_ITEMS = 9
CONFIG = SequenceConfig(min_interactions=3)


def interactions(chosen: Sequence[Sequence[int]], num_items: int = NUM_ITEMS) -> Interactions:
    offsets = np.append(0, np.cumsum([len(items) for items in chosen])).astype(np.int64)
    return Interactions(
        items=np.array([item for items in chosen for item in items], dtype=np.int32),
        offsets=offsets,
        num_items=num_items,
    )


def joined(blocks: Iterator[Rows]) -> list[dict[str, Any]]:
    """The rows of all blocks, one by one."""
    rows = []
    for block in blocks:
        assert block.offsets[0] == 0
        assert block.offsets[-1] == len(block.history)
        for number, (start, stop) in enumerate(zip(block.offsets[:-1], block.offsets[1:], strict=True)):
            rows.append(
                {
                    "user": int(block.users[number]),
                    "item": int(block.items[number]),
                    "label": float(block.labels[number]),
                    "history": block.history[start:stop].tolist(),
                    "negatives": None if block.negatives is None else block.negatives[start:stop].tolist(),
                }
            )
    return rows


def positives(chosen: Sequence[Sequence[int]], config: SequenceConfig, split: str) -> list[dict[str, Any]]:
    """Section A of the reference, step by step: the rows of items that were chosen."""
    rows = []
    pool = pool_of(chosen, config)
    for user, items in enumerate(chosen):
        if len(items) < config.min_interactions or (not config.own_items and pool <= set(items)):
            continue
        held_out = len(items) - (1 if config.holdout == "last" else 2)
        for place in range(held_out) if split == TRAIN else [held_out]:
            if place >= config.min_history:
                history = list(items[max(0, place - config.max_history) : place])
                rows.append({"user": user, "item": items[place], "label": 1.0, "history": history})
    return rows


def pool_of(chosen: Sequence[Sequence[int]], config: SequenceConfig) -> set[int]:
    stop = None if config.holdout == "last" else -1
    return {item for items in chosen if len(items) >= config.min_interactions for item in items[:stop]}


@st.composite
def configs(draw: st.DrawFn) -> SequenceConfig:
    max_history = draw(st.integers(1, 6))
    return SequenceConfig(
        min_interactions=draw(st.integers(3, 6)),
        max_history=max_history,
        min_history=draw(st.integers(1, max_history)),
        negatives=draw(st.integers(1, 3)),
        negative_history=draw(st.booleans()),
        own_items=draw(st.booleans()),
        holdout=draw(st.sampled_from(["last", "second-last"])),
        negative_seed=draw(st.integers(0, 2**40)),
    )


users = st.lists(st.lists(st.integers(0, NUM_ITEMS - 1), min_size=1, max_size=12), min_size=1, max_size=8)


@given(chosen=users, config=configs())
def test_rows_are_those_of_the_steps_on_lists(chosen: list[list[int]], config: SequenceConfig) -> None:
    expected = {split: positives(chosen, config, split) for split in (TRAIN, VALID)}
    if not expected[TRAIN]:
        with pytest.raises(DataError):
            Sequences(interactions(chosen), config)
        return
    sequences, pool = Sequences(interactions(chosen), config), pool_of(chosen, config)
    for split, rows in expected.items():
        made, num_alike = joined(sequences.rows(split)), 1 + (config.negatives if split == TRAIN else 1)
        assert len(made) == sequences.num_rows[split] == len(rows) * num_alike
        for number, row in enumerate(made):
            positive = rows[number // num_alike]
            allowed = pool if config.own_items else pool - set(chosen[row["user"]])
            negatives = row.pop("negatives")
            if config.negative_history:
                assert len(negatives) == len(row["history"])
                assert set(negatives) <= allowed
            else:
                assert negatives is None
            if number % num_alike == 0:
                assert row == positive
            else:
                assert row == {**positive, "item": row["item"], "label": 0.0}
                assert row["item"] in allowed


@given(chosen=users, config=configs(), max_values=st.integers(1, 60))
def test_blocks_of_any_size_give_equal_rows(chosen: list[list[int]], config: SequenceConfig, max_values: int) -> None:
    if not positives(chosen, config, TRAIN):
        return
    sequences = Sequences(interactions(chosen), config)
    for split in (TRAIN, VALID):
        blocks = list(sequences.rows(split, max_values))
        assert joined(iter(blocks)) == joined(sequences.rows(split))
        num_alike = 1 + sequences.num_negatives[split]
        assert all(len(b.history) <= max_values or len(b.users) == num_alike for b in blocks)


@given(chosen=users, config=configs())
def test_dropped_and_fitted_interactions_add_up(chosen: list[list[int]], config: SequenceConfig) -> None:
    if not positives(chosen, config, TRAIN):
        return
    sequences, pool = Sequences(interactions(chosen), config), pool_of(chosen, config)
    few = [items for items in chosen if len(items) < config.min_interactions]
    kept = {user: items for user, items in enumerate(chosen) if len(items) >= config.min_interactions}
    full = [] if config.own_items else [user for user, items in kept.items() if pool <= set(items)]
    assert list(sequences.dropped.values()) == [sum(map(len, few)), sum(len(kept[user]) for user in full)]
    num_after = 1 if config.holdout == "last" else 2
    seen = [(user, item) for user in kept if user not in full for item in kept[user][:-num_after]]
    assert list(zip(*(column.tolist() for column in sequences.training_interactions()), strict=True)) == seen


def test_choosing_by_the_second_last_item_does_not_look_at_the_last() -> None:
    chosen = [[0, 1, 2, 3, 4], [5, 6, 7, 0, 1, 2], [3, 4, 5, 6]]
    config = replace(CONFIG, holdout="second-last", own_items=True)
    one, other = (Sequences(interactions([[*items[:-1], last] for items in chosen]), config) for last in (7, 8))
    for split in (TRAIN, VALID):
        assert joined(one.rows(split)) == joined(other.rows(split))
    assert [row["item"] for row in joined(one.rows(VALID)) if row["label"]] == [3, 1, 5]


@pytest.mark.parametrize("own_items", [True, False])
def test_items_are_drawn_as_often_as_they_were_chosen_among_those_that_are_allowed(own_items: bool) -> None:
    shares = {0: 0.4, 1: 0.3, 2: 0.2, 3: 0.1}
    rng = np.random.default_rng(0)
    others = rng.choice(4, size=(2000, 4), p=list(shares.values())).tolist()
    chosen = [[0] + [4] * 3000, *others]  # the first user holds item 0, and one that nobody else does
    config = SequenceConfig(min_interactions=4, max_history=3, negatives=4, own_items=own_items)
    counts = Counter(item for items in chosen for item in items)
    allowed = counts if own_items else {item: counts[item] for item in (1, 2, 3)}
    rows = [row for row in joined(Sequences(interactions(chosen), config).rows(TRAIN)) if row["user"] == 0]
    for drawn in ([r["item"] for r in rows if not r["label"]], [i for r in rows for i in r["negatives"]]):
        for item, count in Counter(drawn).items():
            assert count / len(drawn) == pytest.approx(allowed[item] / sum(allowed.values()), abs=0.015)


def test_draws_are_independent_of_each_other() -> None:
    chosen = [[0, 1, 2, 3, 4, 5, 6, 7] * 40] * 10
    config = replace(CONFIG, own_items=True, max_history=4)
    rows = [row for row in joined(Sequences(interactions(chosen), config).rows(TRAIN)) if len(row["history"]) == 4]
    drawn = np.array([row["negatives"] for row in rows])
    pairs = Counter(zip(drawn[:, 0].tolist(), drawn[:, 1].tolist(), strict=True))
    repeats = Counter(zip(drawn[:-1, 0].tolist(), drawn[1:, 0].tolist(), strict=True))
    for counts in (pairs, repeats):
        assert len(counts) == 64
        expected = counts.total() / 64
        assert sum((count - expected) ** 2 / expected for count in counts.values()) < 110  # p = 0.0002 for 63 degrees


def test_users_who_chose_every_item_are_left_out_and_counted() -> None:
    chosen = [[0, 1, 2, 0], [0, 1, 1], [2, 2, 0]]
    sequences = Sequences(interactions(chosen), CONFIG)
    assert sequences.dropped["of users who chose every item"] == 4
    assert {row["user"] for split in (TRAIN, VALID) for row in joined(sequences.rows(split))} == {1, 2}
    assert Sequences(interactions(chosen), replace(CONFIG, own_items=True)).num_rows[VALID] == 6


@pytest.mark.parametrize(
    ("chosen", "changes", "message"),
    [
        ([[0, 1], [2, 3, 4]], {}, r"none of 2 users has 5 interactions or more; the maximum is 3\. Lower"),
        ([[7] * 6, [7] * 5], {}, "all 2 users chose every item.*own_items"),
        ([[0, 1, 2, 3, 4], [5, 6, 7, 8, 0]], {"min_history": 4}, r"more than 4 items before.*min_history is 4"),
    ],
)
def test_sequences_reject_data_that_leave_no_rows(
    chosen: list[list[int]], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        Sequences(interactions(chosen), SequenceConfig(**{**asdict(SequenceConfig()), **changes}))
