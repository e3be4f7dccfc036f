"""Label statistics of a split, computed and checked while its files are written."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankline.workflows.core.errors import DataError
from rankline.workflows.schema.targets import BINARY, MULTICLASS, REGRESSION, Head

_MAX_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Labels:
    num_rows: int = 0  # number of rows that have the label
    mean: float = 0.0  # mean of the labels
    squares: float = 0.0  # sum of squared differences from `mean`
    classes: frozenset[float] = frozenset()  # distinct labels; empty for `regression`

    @classmethod
    def of(cls, head: Head, values: NDArray[Any], *, may_lack: bool) -> "Labels":
        """Check labels of shape (N,), in which NaN means missing, and compute their statistics.

        Rows may lack a label if they have labels of other heads.

        Raises:
            DataError: a label does not fit the task.
        """
        values = values.astype(np.float64)
        missing = np.isnan(values)
        present = values[~missing]
        odd = [str(label) for label in np.unique(present[misfits(head, present)])[: _MAX_SHOWN + 1]]
        if odd or (missing.any() and not may_lack):
            raise _misfit(head, odd + ["missing"] * bool(missing.any() and not may_lack))
        if not len(present):
            return cls()
        mean = float(present.mean())
        return cls(
            num_rows=len(present),
            mean=mean,
            squares=float(np.square(present - mean).sum()),
            classes=frozenset() if head.task == REGRESSION else frozenset(np.unique(present).tolist()),
        )

    def __add__(self, other: "Labels") -> "Labels":
        """Combine the statistics of two label sets (Chan et al. 1979, "Updating formulae and a pairwise algorithm")."""
        num_rows = self.num_rows + other.num_rows
        difference, share = other.mean - self.mean, other.num_rows / max(num_rows, 1)
        return Labels(
            num_rows=num_rows,
            mean=self.mean + difference * share,
            squares=self.squares + other.squares + difference * difference * self.num_rows * share,
            classes=self.classes | other.classes,
        )

    def check_split(self, head: Head, split: str) -> None:
        """Raise `DataError` if a model cannot be trained or evaluated on the split's labels."""
        remedy = "Provide more rows, or use another split or share."
        if not self.num_rows:
            raise DataError(f"no row of the {split} split has a value for label {head.column!r}. {remedy}")
        if head.task == REGRESSION:
            if not self.squares > 0:
                raise DataError(f"label {head.column!r} is {self.mean:g} in the whole {split} split. {remedy}")
        elif len(self.classes) < 2:
            needed = "both classes" if head.task == BINARY else "several classes"
            raise DataError(
                f"every label in the {split} split is {next(iter(self.classes))}, but a model needs {needed}. {remedy}"
            )

    def fitted(self, head: Head) -> Head:
        if head.task != REGRESSION:
            return head
        return replace(head, mean=self.mean, deviation=math.sqrt(self.squares / self.num_rows))


def merge_stats(parts: Sequence[Sequence[Labels]]) -> list[Labels]:
    return [sum(of_head, Labels()) for of_head in zip(*parts, strict=True)]


def expected_labels(head: Head) -> str:
    return {BINARY: "0 or 1", MULTICLASS: f"0 to {len(head.classes) - 1}", REGRESSION: "finite numbers"}[head.task]


def misfits(head: Head, values: NDArray[np.float64]) -> NDArray[np.bool_]:
    if head.task == REGRESSION:
        return ~(np.abs(values) <= np.finfo(np.float32).max)
    limit = 1 if head.task == BINARY else len(head.classes) - 1
    wrong: NDArray[np.bool_] = (values < 0) | (values > limit) | (values != np.floor(values))
    return wrong


def _misfit(head: Head, found: list[str]) -> DataError:
    shown = found if len(found) <= _MAX_SHOWN else [*found[:_MAX_SHOWN], "…"]
    remedy = {
        BINARY: "Convert it to 0 or 1 in the dataset's graph (for example with GreaterThan), use another task",
        MULTICLASS: f"List all classes ({len(head.classes)} are listed)",
        REGRESSION: "Fix these labels",
    }[head.task]
    return DataError(
        f"the label {head.column!r} is {', '.join(shown)} in some rows, expected {expected_labels(head)}. "
        f"{remedy}, or remove these rows."
    )
