import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from rankline.serving.loadtest.measurement import Answered, ScoreCheck
from rankline.workflows.core.errors import ServingError
from rankline.workflows.schema.tensors import Tensor

SCORE = (Tensor(name="score", dtype="float32", dims=(1,)),)
EXPECTED = np.asarray([0.1, 0.2, 0.3], np.float32)


def answered(rows: list[int], *scores: float, id: str = "7", version: str = "") -> Answered:
    content = np.asarray(scores, np.float32).tobytes()
    response = service_pb2.ModelInferResponse(id=id, model_version=version, raw_output_contents=[content])
    return Answered(number=7, process=1, rows=np.asarray(rows), body=response.SerializeToString())


def test_right_scores_are_counted_and_the_largest_difference_kept() -> None:
    check = ScoreCheck(EXPECTED, SCORE, tolerance=1e-3)
    check.compare([answered([2, 0], 0.3, 0.1), answered([1], 0.2005)])
    assert check.num_checked == 3
    assert check.max_abs_error == pytest.approx(5e-4, rel=1e-3)


def test_the_answer_to_another_request_or_of_another_version_is_refused() -> None:
    check = ScoreCheck(EXPECTED, SCORE, tolerance=1e-3, version=4)
    check.compare([answered([0], 0.1, version="4")])
    with pytest.raises(ServingError, match=r"request 7 of process 1 got the answer of request '9'\."):
        check.compare([answered([0], 0.1, id="9", version="4")])
    with pytest.raises(ServingError, match="version 5 answered under load, expected version 4"):
        check.compare([answered([0], 0.1, version="5")])


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ((0.3, 0.2), "1 of 2 scores .* wrong, the worst by 0.1: row 0 got 0.2, expected 0.1, tolerance 0.001"),
        ((0.35, 0.2), "2 of 2 scores .* wrong, the worst by 0.1: row 0 got 0.2, expected 0.1"),
        ((0.5, 0.2), "2 of 2 scores .* wrong, the worst by 0.2: row 2 got 0.5, expected 0.3"),
        ((0.9, float("nan")), "2 of 2 scores .* the worst by inf: row 0 got nan, expected 0.1"),
        ((0.3,), "has 1 scores, expected 2"),
    ],
)
def test_wrong_scores_are_refused(scores: tuple[float, ...], message: str) -> None:
    with pytest.raises(ServingError, match=message):
        ScoreCheck(EXPECTED, SCORE, tolerance=1e-3).compare([answered([2, 0], *scores)])


def test_without_expected_scores_nothing_is_compared() -> None:
    check = ScoreCheck(None, SCORE, tolerance=0)
    check.compare([answered([0], 0.7)])
    assert check.num_checked == 0
