"""Compare scores under load with the expected scores, since latencies of wrong responses are meaningless."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2

from rankline.serving.client.grpc import place_of
from rankline.workflows.core.errors import ServingError
from rankline.workflows.schema.tensors import Tensor, apart, side_by_side


@dataclass(frozen=True, kw_only=True)
class Answered:
    """The response to a request.

    Attributes:
        number: number of the request, which is its id.
        process: client process that sent the request.
        rows: row numbers in the request.
        body: serialized response.
    """

    number: int
    process: int
    rows: npt.NDArray[np.int64]
    body: bytes


class ScoreCheck:
    """Compares responses, and tracks their number and the largest error.

    Args:
        expected: [num_rows], expected score of each row; None disables the comparison.
        outputs: tensors that contain the scores.
        tolerance: maximum accepted difference, relative for scores above 1.
        version: expected version of the ensemble; None for any.
    """

    def __init__(
        self,
        expected: npt.NDArray[Any] | None,
        outputs: Sequence[Tensor],
        tolerance: float,
        *,
        version: int | None = None,
    ) -> None:
        self._expected, self._outputs, self._tolerance = expected, outputs, tolerance
        self._version = version
        self.num_checked = 0
        self.max_abs_error = 0.0

    def compare(self, answers: Iterable[Answered]) -> None:
        """Compare responses.

        Raises:
            ServingError: a score differs by more than the tolerance, or a response has a wrong number of scores, or
                belongs to another request or version.
        """
        if self._expected is None:
            return
        num_wrong, worst_error, worst = 0, -1.0, ""
        for answer in answers:
            response = service_pb2.ModelInferResponse.FromString(answer.body)
            self._check_whose(answer, response)
            scores, expected = self._scores(response, len(answer.rows)), self._expected[answer.rows].reshape(-1)
            if scores.size != expected.size:
                raise ServingError(f"a response under load has {scores.size} scores, expected {expected.size}.")
            errors = apart(scores, expected)
            self.num_checked += scores.size
            self.max_abs_error = max(self.max_abs_error, float(errors.max()))
            wrong = np.flatnonzero(~(errors <= self._tolerance))  # also true for NaN
            num_wrong += wrong.size
            for i in wrong:
                error = np.inf if np.isnan(errors[i]) else float(errors[i])
                if error > worst_error:
                    row = answer.rows[i * len(answer.rows) // scores.size]
                    worst_error = error
                    worst = f"row {row} got {scores[i]:.6g}, expected {expected[i]:.6g}"
        if num_wrong:
            raise ServingError(
                f"{num_wrong:,} of {self.num_checked:,} scores compared under load are wrong, the worst by "
                f"{worst_error:.3g}: {worst}, tolerance {self._tolerance:g}. Export the ensemble again."
            )

    def _check_whose(self, answer: Answered, response: Any) -> None:
        if response.id != str(answer.number):
            raise ServingError(
                f"request {answer.number} of process {answer.process} got the answer of request {response.id!r}. "
                "Report it to whoever runs the server."
            )
        if self._version is not None and response.model_version != str(self._version):
            raise ServingError(
                f"version {response.model_version} answered under load, expected version {self._version}. "
                "Measure a server that does not change it."
            )

    def _scores(self, response: Any, num_rows: int) -> npt.NDArray[Any]:
        contents = ((response.raw_output_contents[place_of(response, o.name)], o.numpy_dtype) for o in self._outputs)
        parts = [np.frombuffer(content, dtype) for content, dtype in contents]
        return parts[0] if len(parts) == 1 else side_by_side([part.reshape(num_rows, -1) for part in parts]).reshape(-1)
