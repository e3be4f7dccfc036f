"""Requests with several candidates per row, and the distinction between client and server errors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rankline.workflows.core.errors import RequestError

Array = npt.NDArray[Any]

# Padding is scored like real candidates, so a request with many candidates must not widen others too much.
_MAX_PADDING = 2  # computed scores per requested score
_FEW_SCORES = 256

_NOT_OF_THE_REQUEST = (MemoryError, OSError, ImportError, AttributeError, NameError, AssertionError)
_NAMES = {"ResourceExhaustedError", "OutOfMemoryError", "InternalError", "UnknownError", "FailedPreconditionError"}
"""Names of framework exceptions, to avoid importing the frameworks."""


def is_client_error(error: Exception) -> bool:
    """Whether `error` was caused by the request itself, for example by invalid values or shapes.

    Lack of memory, unreadable files and bugs are errors of the server.
    """
    return not isinstance(error, _NOT_OF_THE_REQUEST) and not _NAMES & {kind.__name__ for kind in type(error).__mro__}


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The positions of a step's per-candidate tensors, and limits on the number of candidates.

    `max_scores` limits the candidates over all rows of a run, `max_per_row` those of one row, unless it is 0.
    """

    inputs: Mapping[int, str]
    outputs: Mapping[int, str]
    max_per_row: int
    max_scores: int

    def shape_of(self, batch: Sequence[Array | None]) -> tuple[int, int]:
        """Return the number of rows in a request and the number of candidates per row.

        Raises:
            RequestError: there are no candidates, too many, or different numbers for different inputs.
        """
        shapes = {name: array.shape for at, name in self.inputs.items() if (array := batch[at]) is not None}
        name, (num_rows, count) = next(iter(shapes.items()))
        if len(set(shapes.values())) > 1:
            found = {name: shape[1] for name, shape in shapes.items()}
            raise RequestError(
                f"columns differ in the number of candidates per row: {found}. Pass the same number in each column."
            )
        if not count:
            raise RequestError(f"{name!r} has no candidates, expected at least one per row.")
        if self.max_per_row and count > self.max_per_row:
            raise RequestError(
                f"{name!r} has {count} candidates per row, expected at most {self.max_per_row}. Send fewer "
                "candidates at a time."
            )
        if num_rows * count > self.max_scores:
            raise RequestError(
                f"{num_rows} rows have {count} candidates each, expected at most {self.max_scores} candidates in "
                "total. Send fewer rows at a time."
            )
        return num_rows, count

    def groups(self, batches: Sequence[Sequence[Array | None]]) -> list[list[int]]:
        """Group the indices of requests with similar candidate counts, so that each group can run as one batch.

        An invalid request forms its own group.
        """
        shapes, groups = [], []
        for number, batch in enumerate(batches):
            try:
                num_rows, count = self.shape_of(batch)
                shapes.append((count, number, num_rows))
            except RequestError:
                groups.append([number])
        together: list[int] = []
        all_rows = wanted = 0
        for count, number, num_rows in sorted(shapes):
            all_rows, wanted = all_rows + num_rows, wanted + num_rows * count
            if together and all_rows * count > min(max(_MAX_PADDING * wanted, _FEW_SCORES), self.max_scores):
                groups.append(together)
                together, all_rows, wanted = [], num_rows, num_rows * count
            together.append(number)
        return [*groups, together] if together else groups

    def aligned(self, batches: Sequence[Sequence[Array | None]]) -> list[list[Array | None]]:
        """Pad all requests to the maximum number of candidates by repeating the last candidate of each row.

        Repeated candidates are valid wherever the request itself is.
        """
        most = max(self.shape_of(batch)[1] for batch in batches)
        return [
            [_widened(array, most) if at in self.inputs else array for at, array in enumerate(batch)]
            for batch in batches
        ]

    def own(self, results: Sequence[Array], count: int) -> list[Array]:
        """Remove padding candidates from the outputs of a request with `count` candidates per row."""
        return [
            np.ascontiguousarray(result[:, :count]) if at in self.outputs else result
            for at, result in enumerate(results)
        ]

    def check_results(self, results: Sequence[Array], shape: tuple[int, int]) -> None:
        """Raise ValueError unless the model's outputs have one score per candidate."""
        for at, name in self.outputs.items():
            if results[at].shape != shape:
                raise ValueError(
                    f"{name!r} has shape {list(results[at].shape)}, expected {list(shape)}: one score per candidate"
                )


def _widened(array: Array | None, width: int) -> Array | None:
    if array is None or array.shape[1] == width:
        return array
    widened: Array = array.take(np.minimum(np.arange(width), array.shape[1] - 1), axis=1)
    return widened
