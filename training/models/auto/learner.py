"""What the selection knows of a learner."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from rankline.training.models.auto.rows import Floats, Fold, Rows
from rankline.training.models.matrix import Matrix
from rankline.workflows.core.errors import RanklineError
from rankline.workflows.data.auc import exact_auc
from rankline.workflows.schema.targets import BINARY, MULTICLASS, REGRESSION, Head

if TYPE_CHECKING:
    from rankline.workflows.onnx.graph import Graph

_MIN_PROBABILITY = 1e-12


class LearnerError(RanklineError):
    """A learner cannot learn from the rows, or not within the time limit."""


@dataclass(frozen=True, kw_only=True)
class Deadline:
    at_s: float  # of `time.monotonic()`

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        return cls(at_s=monotonic() + seconds)

    @property
    def left_s(self) -> float:
        return self.at_s - monotonic()

    def check(self, needed_s: float) -> None:
        if needed_s > self.left_s:
            more = f"it needs {needed_s:.0f} s more" if needed_s >= 1 else "it needs more time"
            raise LearnerError(f"{more}, which the time limit does not allow.")


class Fitted(ABC):
    """A fitted learner."""

    @property
    @abstractmethod
    def num_parameters(self) -> int: ...

    @abstractmethod
    def scores(self, matrix: Matrix) -> Floats:
        """Return probabilities or predictions, (N, outputs of the head)."""

    @abstractmethod
    def add_to(self, graph: "Graph", matrix: str) -> str:
        """Add the model to a graph and return the name of its scores, float32 (N, outputs of the head)."""


class Learner(ABC):
    name: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ()
    """Modules that must be installed."""
    max_rows: ClassVar[int | None] = None
    """Number of rows above which the learner is not compared, because its time grows too much; None for no limit."""

    @abstractmethod
    def held_out_scores(self, rows: Rows, folds: Sequence[Fold], deadline: Deadline) -> Floats:
        """Return the scores of all rows, each by a model that did not learn from its fold; NaN for the rows of no fold.
        If the deadline is too close for all folds, only the first ones are held out.

        Also chooses the size of the model that `fit` trains.

        Raises:
            LearnerError: the deadline is too close, or the learner does not accept the rows.
        """

    @abstractmethod
    def fit(self, rows: Rows) -> Fitted: ...


def error_of(head: Head, labels: Floats, scores: Floats) -> float:
    """Return what the learner is judged by, lower is better: RMSE, logloss of the classes, or 1 - AUC."""
    if head.task == REGRESSION:
        return float(np.sqrt(np.mean(np.square(scores[:, 0] - labels))))
    if head.task == MULTICLASS:
        of_label = scores[np.arange(len(labels)), labels.astype(np.int64)]
        return float(-np.mean(np.log(np.clip(of_label, _MIN_PROBABILITY, 1))))
    return 1 - exact_auc(labels, scores[:, 0]) if 0 < labels.sum() < len(labels) else 0.5


def activated(head: Head, logits: Floats) -> Floats:
    """Convert logits to probabilities; predictions of a regression stay as they are."""
    if head.task == BINARY:
        return 1 / (1 + np.exp(-np.clip(logits, -80, 80)))
    if head.task == MULTICLASS:
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return powers / powers.sum(axis=-1, keepdims=True)  # type: ignore[no-any-return]
    return logits


def add_activation(graph: "Graph", head: Head, logits: str) -> str:
    if head.task == BINARY:
        return graph.add("Sigmoid", logits)
    return graph.add("Softmax", logits, axis=-1) if head.task == MULTICLASS else logits
