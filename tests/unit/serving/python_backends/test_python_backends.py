"""Which requests run together, whose scores are whose, and whose fault an error is."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from rankline.serving.python_backends.requests import Candidates, is_client_error
from rankline.workflows.core.errors import RequestError

MAX_SCORES = 1000


def candidates(max_per_row: int = 0, names: tuple[str, ...] = ("item", "category")) -> Candidates:
    """Inputs: user, item, category; outputs: user, score."""
    positions = {"item": 1, "category": 2}
    return Candidates(
        inputs={positions[name]: name for name in names},
        outputs={1: "score"},
        max_per_row=max_per_row,
        max_scores=MAX_SCORES,
    )


def batch(num_rows: int, count: int, number: int = 0) -> list[Any]:
    items = 1000 * number + np.arange(num_rows * count).reshape(num_rows, count)
    return [np.full((num_rows, 1), number), items, -items]


SHAPES = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 100)), min_size=1, max_size=20)


@given(SHAPES)
def test_groups_hold_every_request_once_with_little_padding(shapes: list[tuple[int, int]]) -> None:
    groups = candidates().groups([batch(*shape) for shape in shapes])
    assert sorted(number for group in groups for number in group) == list(range(len(shapes)))
    for group in groups:
        rows, counts = zip(*(shapes[number] for number in group), strict=True)
        scored, wanted = sum(rows) * max(counts), sum(np.multiply(rows, counts))
        assert len(group) == 1 or scored <= min(max(2 * wanted, 256), MAX_SCORES)
        assert len(group) == 1 or 0 not in counts


def test_groups_join_similar_requests() -> None:
    batches = [batch(1, 1), batch(1, 900), batch(1, 3), batch(2, 1), batch(1, 0)]
    assert sorted(candidates().groups(batches)) == [[0, 3, 2], [1], [4]]


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 6)), min_size=2, max_size=5))
def test_requests_get_their_own_columns_back(shapes: list[tuple[int, int]]) -> None:
    of = candidates()
    batches = [batch(*shape, number) for number, shape in enumerate(shapes)]
    aligned: Any = of.aligned(batches)
    widest = max(count for _, count in shapes)
    for (rows, count), given_, wide in zip(shapes, batches, aligned, strict=True):
        assert wide[0] is given_[0]
        for at in (1, 2):
            assert wide[at].shape == (rows, widest)
            assert set(wide[at][:, count:].ravel()) <= set(given_[at][:, -1])  # the last one again
        user, score = of.own([wide[0], wide[1]], count)
        np.testing.assert_array_equal(score, given_[1])
        assert score.flags.c_contiguous
        assert user is wide[0]


def test_strings_and_masks_are_widened() -> None:
    of = Candidates(inputs={0: "item", 1: "item__valid"}, outputs={}, max_per_row=0, max_scores=9)
    words = np.array([[b"a", b"b"]], dtype=object)
    wide, _ = of.aligned([[words, None], [np.array([[b"a", b"b", b"c"]], dtype=object), None]])
    assert wide[1] is None
    assert wide[0] is not None
    assert wide[0].tolist() == [[b"a", b"b", b"b"]]
    masked, _ = of.aligned([[words, np.array([[True, False]])], [words.repeat(2, axis=1), np.ones((1, 4), bool)]])
    assert masked[1] is not None
    assert masked[1].tolist() == [[True, False, False, False]]


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (batch(1, 0), "'item' has no candidates, expected at least one per row"),
        (batch(1, 51), "'item' has 51 candidates per row, expected at most 50"),
        (batch(21, 50), "21 rows have 50 candidates each, expected at most 1000 candidates in total"),
        ([*batch(1, 2)[:2], np.zeros((1, 3))], r"\{'item': 2, 'category': 3\}\. Pass the same number"),
    ],
)
def test_candidates_that_do_not_fit_are_refused(tensors: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        candidates(max_per_row=50).shape_of(tensors)


def test_outputs_without_a_value_per_candidate_are_refused() -> None:
    candidates().check_results([np.zeros((2, 1)), np.zeros((2, 3))], (2, 3))
    with pytest.raises(ValueError, match=r"'score' has shape \[2, 1\], expected \[2, 3\]: one score per candidate"):
        candidates().check_results([np.zeros((2, 1)), np.zeros((2, 1))], (2, 3))


@pytest.mark.parametrize(
    "error",
    [
        RequestError("a column is missing."),
        ValueError("lists longer than their values"),
        IndexError("id 9 is not in the table"),
        tf.errors.InvalidArgumentError(None, None, "indices[0] = 9 is not in [0, 5)"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    ],
)
def test_errors_caused_by_the_request(error: Exception) -> None:
    assert is_client_error(error)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        np._core._exceptions._ArrayMemoryError((1 << 40,), np.dtype(np.int64)),
        OSError(5, "Input/output error"),
        AttributeError("'NoneType' object has no attribute 'run'"),
        tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor"),
        tf.errors.InternalError(None, None, "a kernel failed"),
    ],
)
def test_errors_not_caused_by_the_request(error: Exception) -> None:
    assert not is_client_error(error)
