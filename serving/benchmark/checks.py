"""Scores that come back under load are compared with the expected ones: a fast wrong answer is no answer."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2

from serving.client.grpc import place_of
from workflows.errors import ServingError
from workflows.tensors import Tensor, side_by_side

_MOST_NAMED = 5


class ScoreCheck:
    """Compares answers, and keeps how many there were and how far off the worst was.

    Args:
        expected: [num_rows], what the model scores each row; None compares nothing.
        outputs: the tensors that hold the scores.
        tolerance: largest difference that passes; of scores above 1 as a share of them.
        ask_again: scores one row, alone; tells apart what is wrong under load from what always is. None asks nothing.
    """

    def __init__(
        self,
        expected: npt.NDArray[Any] | None,
        outputs: Sequence[Tensor],
        tolerance: float,
        *,
        ask_again: Callable[[int], float] | None = None,
    ) -> None:
        self._expected, self._outputs, self._tolerance, self._ask_again = expected, outputs, tolerance, ask_again
        self.num_checked = 0
        self.max_abs_error = 0.0

    def compare(self, answers: Iterable[tuple[npt.NDArray[np.int64], bytes]]) -> None:
        """Look at some answers.

        Args:
            answers: rows that were asked for, and the serialised answer.

        Raises:
            ServingError: one is off by more than the tolerance, or holds other rows than were asked for.
        """
        if self._expected is None:
            return
        wrong: list[tuple[int, float, float]] = []
        for rows, body in answers:
            scores = self._scores(service_pb2.ModelInferResponse.FromString(body), len(rows))
            expected = self._expected[rows].reshape(-1)
            if scores.size != expected.size:
                raise ServingError(f"a response under load has {scores.size} scores, expected {expected.size}.")
            errors = np.abs(scores - expected) / np.maximum(np.abs(expected), 1)
            self.num_checked += scores.size
            self.max_abs_error = max(self.max_abs_error, float(errors.max()))
            is_wrong = ~(errors <= self._tolerance)  # so that NaN is wrong too
            wrong += [
                (int(rows[i * len(rows) // scores.size]), float(scores[i]), float(expected[i]))
                for i in np.flatnonzero(is_wrong)
            ]
        if wrong:
            row, score, right = max(wrong, key=lambda entry: abs(entry[1] - entry[2]))
            raise ServingError(
                f"{len(wrong):,} of {self.num_checked:,} scores compared under load are wrong: "
                f"row {row} got {score:.6g}, expected {right:.6g}, tolerance {self._tolerance:g}. "
                f"{self._alone(row)}{self._whose(score)} Export the ensemble again."
            )

    def _scores(self, response: Any, num_rows: int) -> npt.NDArray[Any]:
        """All values of an answer, row after row."""
        contents = ((response.raw_output_contents[place_of(response, o.name)], o.numpy_dtype) for o in self._outputs)
        parts = [np.frombuffer(content, dtype) for content, dtype in contents]
        return parts[0] if len(parts) == 1 else side_by_side([part.reshape(num_rows, -1) for part in parts]).reshape(-1)

    def _alone(self, row: int) -> str:
        if self._ask_again is None:
            return ""
        try:
            return f"Scored again, alone, it got {self._ask_again(row):.6g}. "
        except ServingError as error:
            return f"Scored again, alone, it got no score ({error}) "

    def _whose(self, score: float) -> str:
        """Which rows a wrong score would be right for: another one's, if the server mixes them up."""
        assert self._expected is not None
        near = np.abs(self._expected - score) <= self._tolerance
        rows = np.flatnonzero(near.any(axis=1) if near.ndim > 1 else near)
        named = ", ".join(map(str, rows[:_MOST_NAMED])) + (" and more" if rows.size > _MOST_NAMED else "")
        return f"{score:.6g} is the expected score of {f'row {named}' if rows.size else 'no row'}."
