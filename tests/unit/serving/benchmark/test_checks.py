import base64
import json
import re
from pathlib import Path

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from serving.benchmark.again import Resent
from serving.benchmark.checks import Answered, ScoreCheck
from workflows.errors import ServerError, ServingError
from workflows.tensors import Tensor

SCORE = (Tensor(name="score", dtype="float32", dims=(1,)),)
EXPECTED = np.asarray([0.1, 0.2, 0.3], np.float32)


@pytest.fixture(autouse=True)
def kept_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def body(*scores: float, id: str = "7", version: str = "") -> bytes:
    content = np.asarray(scores, np.float32).tobytes()
    response = service_pb2.ModelInferResponse(id=id, model_version=version, raw_output_contents=[content])
    return bytes(response.SerializeToString())


def answered(rows: list[int], *scores: float, **fields: str) -> Answered:
    return Answered(number=7, process=1, rows=np.asarray(rows), sent=b"request", body=body(*scores, **fields))


def kept(error: BaseException) -> dict:
    (name,) = re.findall(r"in (\S+answer\.json)\.", str(error))
    return json.loads(Path(name).read_text())


def test_right_scores_are_counted_and_the_largest_difference_kept() -> None:
    check = ScoreCheck(EXPECTED, SCORE, tolerance=1e-3)
    check.compare([answered([2, 0], 0.3, 0.1), answered([1], 0.2005)])
    assert check.num_checked == 3
    assert check.max_abs_error == pytest.approx(5e-4, rel=1e-3)


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (0.3, r"0.3 is .* row 2, 3, 4, 5, 6 and more"),
        (0.2, r"0.2 is the expected score of row 1\."),
        (0.7, r"0.7 is the expected score of no row\."),
    ],
)
def test_a_wrong_answer_is_kept_sent_again_and_looked_up(score: float, message: str) -> None:
    sent: list[bytes] = []

    def send_again(message: bytes) -> Resent:
        sent.append(message)
        return Resent(alone=[body(0.1)] * 3, among_others=[body(0.1), body(score)])

    expected = np.asarray([0.1, 0.2, *[0.3] * 6], np.float32)
    check = ScoreCheck(expected, SCORE, tolerance=1e-3, send_again=send_again)
    with pytest.raises(ServingError, match=f"got {score}, expected 0.1.*{message}") as raised:
        check.compare([answered([0], score, version="4")])
    assert sent == [b"request"]
    assert "wrongly 0 of 3 times alone and 1 of 2 times among others" in str(raised.value)
    found = kept(raised.value)
    assert base64.b64decode(found["sent"]) == b"request"
    assert base64.b64decode(found["got"]) == body(score, version="4")
    assert {key: found[key] for key in ("process", "request_id", "answer_id", "model_version", "rows")} == {
        "process": 1, "request_id": "7", "answer_id": "7", "model_version": "4", "rows": [0],
    }  # fmt: skip
    np.testing.assert_allclose(found["among_others"], [[0.1], [score]], rtol=1e-6)


def test_a_wrong_answer_that_cannot_be_sent_again_is_still_told() -> None:
    def send_again(_message: bytes) -> Resent:
        raise ServerError("nobody answers.")

    check = ScoreCheck(EXPECTED, SCORE, tolerance=1e-3, send_again=send_again)
    with pytest.raises(
        ServingError, match=r"row 0 got 0.3.*not be sent again \(nobody answers\.\).* expected .* row 2"
    ):
        check.compare([answered([0], 0.3)])


def test_the_answer_to_another_request_or_of_another_version_is_refused() -> None:
    check = ScoreCheck(EXPECTED, SCORE, tolerance=1e-3, version=4)
    check.compare([answered([0], 0.1, version="4")])
    with pytest.raises(
        ServingError, match=r"request 7 of process 1 got the answer of request '9'\. Both are in"
    ) as raised:
        check.compare([answered([0], 0.1, id="9", version="4")])
    assert kept(raised.value)["answer_id"] == "9"
    with pytest.raises(ServingError, match="version 5 answered under load, expected version 4"):
        check.compare([answered([0], 0.1, version="5")])


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
        ScoreCheck(EXPECTED, SCORE, tolerance=1e-3).compare([answered([2, 0], *scores)])


def test_without_expected_scores_nothing_is_compared() -> None:
    check = ScoreCheck(None, SCORE, tolerance=0)
    check.compare([answered([0], 0.7)])
    assert check.num_checked == 0
