import numpy as np
import pytest

from rankline.training.evaluation import first_rows
from rankline.training.evaluation.first_rows import FirstRows
from tests.factories.workers import OneOfTwo


def test_the_first_rows_are_kept_in_their_order_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_rows, "MOST_ROWS", 25)
    kept = FirstRows()
    labels, scores = np.arange(40) % 2, np.arange(80).reshape(40, 2)
    for begin in range(0, 40, 10):
        batch = slice(begin, begin + 10)
        kept.add(labels[batch], scores[batch])
    assert sum(len(part) for part, _ in kept._parts) == 25  # more would only take memory
    found = kept.gathered()
    np.testing.assert_array_equal(found[0], labels[:25])
    np.testing.assert_array_equal(found[1], scores[:25])


def test_a_batch_that_is_used_again_changes_nothing() -> None:
    kept, batch = FirstRows(), np.zeros(4)
    kept.add(batch, batch)
    batch += 1
    assert not kept.gathered()[0].any()


def test_the_shares_of_workers_follow_one_another_up_to_the_same_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_rows, "MOST_ROWS", 3)
    kept = FirstRows()
    kept.add(np.array([0, 1]), np.array([0.1, 0.9]))
    world = OneOfTwo([np.array([1, 0]), np.array([0.8, 0.2])])
    assert [part.tolist() for part in kept.gathered(world)] == [[0, 1, 1], [0.1, 0.9, 0.8]]


def test_a_million_rows_are_kept() -> None:
    assert first_rows.MOST_ROWS == 1_000_000
    kept, batch = FirstRows(), np.zeros(400_000, np.int8)
    for _ in range(4):
        kept.add(batch, batch)
    labels, scores = kept.gathered()
    assert len(labels) == len(scores) == 1_000_000
