"""Scores that come back under load are compared with the expected ones: a fast wrong answer is no answer."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2

from workflows.errors import ServingError
from workflows.tensors import Tensor

_MOST_NAMED = 5


class ScoreCheck:
    """Compares answers, and keeps how many there were and how far off the worst was.

    Args:
        expected: [num_rows], what the model scores each row; None compares nothing.
        output: the tensor that holds the scores.
        tolerance: largest difference that passes.
        ask_again: scores one row, alone; tells apart what is wrong under load from what always is. None asks nothing.
    """

    def __init__(
        self,
        expected: npt.NDArray[Any] | None,
        output: Tensor,
        tolerance: float,
        *,
        ask_again: Callable[[int], float] | None = None,
    ) -> None:
        self._expected, self._output, self._tolerance, self._ask_again = expected, output, tolerance, ask_again
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
            content = service_pb2.ModelInferResponse.FromString(body).raw_output_contents[0]
            scores = np.frombuffer(content, self._output.numpy_dtype)
            expected = self._expected[rows].reshape(-1)
            if scores.size != expected.size:
                raise ServingError(f"a response under load has {scores.size} scores, expected {expected.size}.")
            errors = np.abs(scores - expected)
            self.num_checked += scores.size
            self.max_abs_error = max(self.max_abs_error, float(errors.max()))
            is_wrong = ~(errors <= self._tolerance)  # so that NaN is wrong too
            wrong += [(int(rows[i]), float(scores[i]), float(expected[i])) for i in np.flatnonzero(is_wrong)]
        if wrong:
            row, score, right = max(wrong, key=lambda entry: abs(entry[1] - entry[2]))
            raise ServingError(
                f"{len(wrong):,} of {self.num_checked:,} scores compared under load are wrong: "
                f"row {row} got {score:.6g}, expected {right:.6g}, tolerance {self._tolerance:g}. "
                f"{self._alone(row)}{self._whose(score)} Export the ensemble again."
            )

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
        rows = np.flatnonzero(np.abs(self._expected - score) <= self._tolerance)
        named = ", ".join(map(str, rows[:_MOST_NAMED])) + (" and more" if rows.size > _MOST_NAMED else "")
        return f"{score:.6g} is the expected score of {f'row {named}' if rows.size else 'no row'}."
