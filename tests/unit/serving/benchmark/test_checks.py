import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from serving.benchmark.checks import ScoreCheck
from workflows.errors import ServerError, ServingError
from workflows.tensors import Tensor

SCORE = (Tensor(name="score", dtype="float32", dims=(1,)),)
EXPECTED = np.asarray([0.1, 0.2, 0.3], np.float32)


def answer(*scores: float) -> bytes:
    content = np.asarray(scores, np.float32).tobytes()
    return bytes(service_pb2.ModelInferResponse(raw_output_contents=[content]).SerializeToString())


def test_right_scores_are_counted_and_the_largest_difference_kept() -> None:
    check = ScoreCheck(EXPECTED, SCORE, tolerance=1e-3)
    check.compare([(np.asarray([2, 0]), answer(0.3, 0.1)), (np.asarray([1]), answer(0.2005))])
    assert check.num_checked == 3
    assert check.max_abs_error == pytest.approx(5e-4, rel=1e-3)


@pytest.mark.parametrize(
    ("score", "alone", "message"),
    [
        (
            0.3,
            0.1,
            "got 0.3, expected 0.1.* Scored again, alone, it got 0.1. 0.3 is .* row 2, 3, 4, 5, 6 and more",
        ),
        (0.2, 0.2, "Scored again, alone, it got 0.2. 0.2 is the expected score of row 1\\."),
        (0.7, 0.1, "it got 0.1. 0.7 is the expected score of no row."),
    ],
)
def test_a_wrong_score_is_asked_again_and_looked_up(score: float, alone: float, message: str) -> None:
    asked: list[int] = []

    def ask_again(row: int) -> float:
        asked.append(row)
        return alone

    check = ScoreCheck(np.asarray([0.1, 0.2, *[0.3] * 6], np.float32), SCORE, tolerance=1e-3, ask_again=ask_again)
    with pytest.raises(ServingError, match=message):
        check.compare([(np.asarray([0]), answer(score))])
    assert asked == [0]


def test_a_wrong_score_that_cannot_be_asked_again_is_still_told() -> None:
    def ask_again(row: int) -> float:
        raise ServerError("nobody answers.")

    check = ScoreCheck(EXPECTED, SCORE, tolerance=1e-3, ask_again=ask_again)
    with pytest.raises(
        ServingError, match=r"row 0 got 0.3.*no score \(nobody answers\.\) 0.3 is the expected .* row 2"
    ):
        check.compare([(np.asarray([0]), answer(0.3))])


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ((0.3, 0.2), "1 of 2 scores .* row 0 got 0.2, expected 0.1"),
        ((0.3, float("nan")), "row 0 got nan, expected 0.1"),
        ((0.3,), "has 1 scores, expected 2"),
    ],
)
def test_wrong_scores_are_refused(scores: tuple[float, ...], message: str) -> None:
    with pytest.raises(ServingError, match=message):
        ScoreCheck(EXPECTED, SCORE, tolerance=1e-3).compare([(np.asarray([2, 0]), answer(*scores))])


def test_without_expected_scores_nothing_is_compared() -> None:
    check = ScoreCheck(None, SCORE, tolerance=0)
    check.compare([(np.asarray([0]), b"whatever")])
    assert check.num_checked == 0
