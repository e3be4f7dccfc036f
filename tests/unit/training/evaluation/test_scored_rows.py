import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.training.evaluation import evaluate_heads, score_heads, scored_rows
from rankline.training.evaluation.scored_rows import FirstRows, ScoredRows, Tally
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.schema.targets import MULTICLASS, REGRESSION, Head
from tests.factories.workers import FakeTwoWorkers

BINARY = [Head("label")]
SCORES = [-0.0, 0.0, 1e-30, 0.25, 0.5, 1.0]
ROWS = st.lists(st.tuples(st.booleans(), st.sampled_from(SCORES), st.integers(0, 3)), min_size=1, max_size=60)


def distinct(rows: ScoredRows) -> dict[tuple[float, float, int], int]:
    groups = np.zeros(len(rows.labels)) if rows.groups is None else rows.groups
    columns = (column.tolist() for column in (rows.labels, rows.scores, groups, rows.counts))
    found: dict[tuple[float, float, int], int] = {}
    for *key, count in zip(*columns, strict=True):
        found[tuple(key)] = found.get(tuple(key), 0) + count  # 0 and -0 are one score in two rows
    return found


@given(ROWS, st.lists(st.integers(0, 60), max_size=6), st.booleans())
def test_tally_has_each_row_as_often_as_it_came(
    rows: list[tuple[bool, float, int]], cuts: list[int], has_groups: bool
) -> None:
    labels, scores, groups = (np.array(column) for column in zip(*rows, strict=True))
    scores = scores.astype(np.float32)
    tally = Tally(BINARY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scored_rows, "_PENDING_ROWS", 5)  # so that it counts between batches
        for part in np.split(np.arange(len(rows)), sorted(cut for cut in cuts if cut < len(rows))):
            tally.add(labels[part], scores[part], groups[part] if has_groups else None)
    found, expected = tally.rows(), ScoredRows.of(labels, scores, groups if has_groups else None)
    assert distinct(found) == distinct(expected)
    assert len(found.labels) <= len(rows)


def test_order_of_the_rows_changes_no_bit_of_a_figure() -> None:
    rng = np.random.default_rng(0)
    labels, scores, groups = rng.random(5000) < 0.3, rng.random(5000).astype(np.float32), rng.integers(0, 99, 5000)
    figures = []
    for order in (np.arange(5000), rng.permutation(5000)):
        tally = Tally(BINARY)
        for part in np.array_split(order, 7):
            tally.add(labels[part], scores[part], groups[part])
        figures.append(evaluate_heads(BINARY, tally.rows()))
    assert figures[0] == figures[1]
    assert figures[0] == pytest.approx(score_heads(BINARY, labels, scores, groups))


def test_workers_count_together_what_each_has_scored() -> None:
    rng = np.random.default_rng(0)
    labels, groups = rng.random(400) < 0.3, rng.integers(0, 9, 400)
    scores = (rng.integers(0, 20, 400) / 20).astype(np.float32)
    here, there, whole = Tally(BINARY), Tally(BINARY), Tally(BINARY)
    for tally, rows in ((here, slice(0, 150)), (there, slice(150, 400)), (whole, slice(0, 400))):
        tally.add(labels[rows], scores[rows], groups[rows])
    there.rows()
    found = here.rows(FakeTwoWorkers([there._keys, there._counts]))
    assert evaluate_heads(BINARY, found) == evaluate_heads(BINARY, whole.rows())


@pytest.mark.parametrize(
    "heads",
    [
        [Head("a", task=REGRESSION)],
        [Head("a"), Head("b", task=REGRESSION)],
        [Head("kind", task=MULTICLASS, classes=("a", "b", "c"))],
    ],
    ids=lambda heads: heads[-1].task,
)
def test_rows_of_other_heads_are_held_as_they_are(heads: list[Head]) -> None:
    rng = np.random.default_rng(0)
    labels = (rng.random((50, len(heads))) < 0.5).astype(np.float32).squeeze()
    scores = rng.random((50, sum(head.width for head in heads)), np.float32).squeeze()
    tally = Tally(heads)
    for part in np.array_split(np.arange(50), 3):
        tally.add(labels[part], scores[part])
    assert evaluate_heads(heads, tally.rows()) == score_heads(heads, labels, scores)


@pytest.mark.parametrize("score", [np.nan, np.inf])
def test_score_that_is_no_number_is_refused(score: float) -> None:
    with pytest.raises(FloatingPointError, match=r"^a score is not finite\.$"):
        Tally(BINARY).add(np.array([0.0, 1.0]), np.array([score, 0.5], np.float32))


@pytest.mark.parametrize("score", [-0.01, 1.01])
def test_score_that_is_no_probability_is_refused(score: float) -> None:
    with pytest.raises(ConfigError, match=r"expected probabilities. End its network with a sigmoid"):
        Tally(BINARY).add(np.array([0.0, 1.0]), np.array([score, 0.5], np.float32))


def test_labels_and_groups_that_cannot_be_counted_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^labels contain values other than 0 and 1\.$"):
        Tally(BINARY).add(np.array([0.0, 0.5]), np.array([0.1, 0.5], np.float32))
    for groups in ([-1, 4], [0, 2**31]):
        expected = rf"^groups range from {groups[0]} to {groups[1]}, expected ids from 0 to 2147483647\.$"
        with pytest.raises(ValueError, match=expected):
            Tally(BINARY).add(np.array([0.0, 1.0]), np.array([0.1, 0.5], np.float32), np.array(groups))


def test_largest_group_and_the_smallest_scores_come_back_as_they_were() -> None:
    labels, scores = np.array([1, 0, 1]), np.array([0.0, 1.0, 1e-45], np.float32)
    groups = np.array([2**31 - 1, 0, 5], np.int32)
    tally = Tally(BINARY)
    tally.add(labels, scores, groups)
    found = tally.rows()
    assert found.groups is not None
    order = np.argsort(found.groups)
    assert found.groups[order].tolist() == [0, 5, 2**31 - 1]
    assert found.scores[order].tolist() == [1.0, scores[2], 0.0]
    assert found.labels[order].tolist() == [0, 1, 1]
    assert (found.labels.dtype, found.scores.dtype, found.counts.dtype) == ("float32", "float32", "int64")


def test_groups_that_are_texts_are_held() -> None:
    tally = Tally(BINARY)
    tally.add(np.array([1, 0]), np.array([0.5, 0.25], np.float32), np.array(["b", "a"]))
    found = tally.rows()
    assert found.groups is not None
    assert (found.groups.tolist(), found.labels.tolist(), found.counts.tolist()) == (["b", "a"], [1, 0], [1, 1])


def test_tally_of_no_rows_is_empty() -> None:
    tally = Tally(BINARY)
    assert len(tally.rows().labels) == 0
    assert tally.rows().groups is None
    tally.add(np.zeros(1), np.zeros(1, np.float32))
    assert tally.rows().groups is None
    tally = Tally(BINARY)
    tally.add(np.zeros(0), np.zeros(0, np.float32), np.zeros(0, np.int64))
    found = tally.rows()
    assert found.groups is not None
    assert len(found.labels) == len(found.groups) == 0


def test_rows_are_counted_as_soon_as_more_wait_than_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scored_rows, "_PENDING_ROWS", 4)
    tally = Tally(BINARY)
    waiting = []
    for scores in ([0.1, 0.2, 0.3, 0.4], [0.5], [0.1, 0.2, 0.3], [0.4, 0.5], [0.6]):
        tally.add(np.zeros(len(scores)), np.array(scores, np.float32))
        waiting.append((tally._num_pending, len(tally._keys)))
    assert waiting == [(4, 0), (0, 5), (3, 5), (5, 5), (0, 6)]
    assert tally.rows().counts.tolist() == [2, 2, 2, 2, 2, 1]


def test_mean_counts_each_row_as_often_as_it_came() -> None:
    rows = ScoredRows(labels=np.zeros(2), scores=np.zeros(2), counts=np.array([3, 1]))
    assert rows.mean(np.array([1, 5])) == 2
    assert rows.mean(np.array([True, False])) == 0.75
    assert ScoredRows.of(np.zeros(2), np.zeros(2)).counts.dtype == np.int64


def test_first_rows_are_kept_in_their_order_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scored_rows, "MAX_ROWS", 25)
    kept = FirstRows()
    labels, scores = np.arange(40) % 2, np.arange(80).reshape(40, 2)
    for begin in range(0, 40, 10):
        batch = slice(begin, begin + 10)
        kept.add(labels[batch], scores[batch])
    assert sum(len(part) for part, _ in kept._parts) == 25  # more would only take memory
    found = kept.gathered()
    np.testing.assert_array_equal(found[0], labels[:25])
    np.testing.assert_array_equal(found[1], scores[:25])


def test_batch_that_is_used_again_changes_nothing() -> None:
    kept, batch = FirstRows(), np.zeros(4)
    kept.add(batch, batch)
    batch += 1
    assert not kept.gathered()[0].any()


def test_shares_of_workers_follow_one_another_up_to_the_same_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scored_rows, "MAX_ROWS", 3)
    kept = FirstRows()
    kept.add(np.array([0, 1]), np.array([0.1, 0.9]))
    world = FakeTwoWorkers([np.array([1, 0]), np.array([0.8, 0.2])])
    assert [part.tolist() for part in kept.gathered(world)] == [[0, 1, 1], [0.1, 0.9, 0.8]]


def test_million_rows_are_kept() -> None:
    assert scored_rows.MAX_ROWS == 1_000_000
    kept, batch = FirstRows(), np.zeros(400_000, np.int8)
    for _ in range(4):
        kept.add(batch, batch)
    labels, scores = kept.gathered()
    assert len(labels) == len(scores) == 1_000_000
