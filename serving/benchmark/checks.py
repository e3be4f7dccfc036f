"""Scores that come back under load are compared with the expected ones: a fast wrong answer is no answer."""

import base64
import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2

from serving.benchmark.again import Resent
from serving.client.grpc import place_of
from workflows.errors import ServingError
from workflows.tensors import Tensor, apart, side_by_side

_MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class Answered:
    """A request, and what came back.

    Attributes:
        number: of the request, which is its id.
        process: client process that sent it.
        rows: that it asks for.
        sent, body: both as they were on the wire.
    """

    number: int
    process: int
    rows: npt.NDArray[np.int64]
    sent: bytes
    body: bytes


class ScoreCheck:
    """Compares answers, and keeps how many there were and how far off the worst was.

    Args:
        expected: [num_rows], what the model scores each row; None compares nothing.
        outputs: the tensors that hold the scores.
        tolerance: largest difference that passes; of scores above 1 as a share of them.
        version: of the ensemble that is to answer; None for any.
        send_again: sends a request again, to tell what is wrong under load from what always is. None sends nothing.
    """

    def __init__(
        self,
        expected: npt.NDArray[Any] | None,
        outputs: Sequence[Tensor],
        tolerance: float,
        *,
        version: int | None = None,
        send_again: Callable[[bytes], Resent] | None = None,
    ) -> None:
        self._expected, self._outputs, self._tolerance = expected, outputs, tolerance
        self._version, self._send_again = version, send_again
        self.num_checked = 0
        self.max_abs_error = 0.0

    def compare(self, answers: Iterable[Answered]) -> None:
        """Look at some answers.

        Raises:
            ServingError: one is off by more than the tolerance, holds other rows than were asked for, or is the answer
                to another request or of another version.
        """
        if self._expected is None:
            return
        wrong: list[tuple[float, Answered, int, float, float]] = []
        for answer in answers:
            response = service_pb2.ModelInferResponse.FromString(answer.body)
            self._check_whose(answer, response)
            scores, expected = self._scores(response, len(answer.rows)), self._expected[answer.rows].reshape(-1)
            if scores.size != expected.size:
                raise ServingError(f"a response under load has {scores.size} scores, expected {expected.size}.")
            errors = apart(scores, expected)
            self.num_checked += scores.size
            self.max_abs_error = max(self.max_abs_error, float(errors.max()))
            for i in np.flatnonzero(self._are_wrong(errors)):
                row = int(answer.rows[i * len(answer.rows) // scores.size])
                wrong.append((abs(float(scores[i] - expected[i])), answer, row, float(scores[i]), float(expected[i])))
        if wrong:
            _, answer, row, score, right = max(wrong, key=lambda entry: entry[0])
            raise ServingError(
                f"{len(wrong):,} of {self.num_checked:,} scores compared under load are wrong: "
                f"row {row} got {score:.6g}, expected {right:.6g}, tolerance {self._tolerance:g}. "
                f"{self._kept(answer)}{self._whose(score)} Export the ensemble again."
            )

    def _check_whose(self, answer: Answered, response: Any) -> None:
        if response.id != str(answer.number):
            where = _keep(_evidence(answer, response))
            raise ServingError(
                f"request {answer.number} of process {answer.process} got the answer of request {response.id!r}. "
                f"Both are in {where}."
            )
        if self._version is not None and response.model_version != str(self._version):
            raise ServingError(
                f"version {response.model_version} answered under load, expected version {self._version}. "
                "Measure a server that does not change it."
            )

    def _are_wrong(self, errors: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = ~(errors <= self._tolerance)  # so that NaN is wrong too
        return found

    def _scores(self, response: Any, num_rows: int) -> npt.NDArray[Any]:
        """All values of an answer, row after row."""
        contents = ((response.raw_output_contents[place_of(response, o.name)], o.numpy_dtype) for o in self._outputs)
        parts = [np.frombuffer(content, dtype) for content, dtype in contents]
        return parts[0] if len(parts) == 1 else side_by_side([part.reshape(num_rows, -1) for part in parts]).reshape(-1)

    def _kept(self, answer: Answered) -> str:
        """Write down all that is known of a wrong answer, and what the same bytes get when they are sent again."""
        assert self._expected is not None
        expected = self._expected[answer.rows].reshape(-1)
        evidence = _evidence(answer, service_pb2.ModelInferResponse.FromString(answer.body))
        evidence["expected"] = expected.tolist()
        words = ""
        if self._send_again is not None:
            try:
                resent = self._send_again(answer.sent)
            except ServingError as error:
                words = f"It could not be sent again ({error}) "
            else:
                alone, among = (
                    [self._scores(service_pb2.ModelInferResponse.FromString(body), len(answer.rows)) for body in bodies]
                    for bodies in (resent.alone, resent.among_others)
                )
                evidence["alone"], evidence["among_others"] = ([s.tolist() for s in part] for part in (alone, among))
                num_alone, num_among = (
                    sum(bool(self._are_wrong(apart(scores, expected)).any()) for scores in part)
                    for part in (alone, among)
                )
                words = (
                    f"The same bytes sent again were answered wrongly {num_alone} of {len(alone)} times alone and "
                    f"{num_among} of {len(among)} times among others. "
                )
        return f"{words}All of it is in {_keep(evidence)}. "

    def _whose(self, score: float) -> str:
        """Which rows a wrong score would be right for: another one's, if the server mixes them up."""
        assert self._expected is not None
        near = np.abs(self._expected - score) <= self._tolerance
        rows = np.flatnonzero(near.any(axis=1) if near.ndim > 1 else near)
        named = ", ".join(map(str, rows[:_MOST_NAMED])) + (" and more" if rows.size > _MOST_NAMED else "")
        return f"{score:.6g} is the expected score of {f'row {named}' if rows.size else 'no row'}."


def _evidence(answer: Answered, response: Any) -> dict[str, Any]:
    return {
        "process": answer.process,
        "request_id": str(answer.number),
        "answer_id": response.id,
        "model_version": response.model_version,
        "rows": answer.rows.tolist(),
        "sent": base64.b64encode(answer.sent).decode(),
        "got": base64.b64encode(answer.body).decode(),
    }


def _keep(evidence: dict[str, Any]) -> Path:
    """A file with what is known of a wrong answer, which stays."""
    path = Path(tempfile.mkdtemp(prefix="rankline-wrong-answer-"), "answer.json")
    path.write_text(json.dumps(evidence, indent=2) + "\n", encoding="utf-8")
    return path
