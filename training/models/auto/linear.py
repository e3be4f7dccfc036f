"""Logistic or ridge regression on standardized numbers and one weight per id."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar
from warnings import catch_warnings, simplefilter

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge

from rankline.training.models.auto.learner import Deadline, Fitted, Learner, activated, add_activation, error_of
from rankline.training.models.auto.rows import Floats, Fold, Ints, Rows
from rankline.training.models.matrix import Matrix, add_places
from rankline.workflows.schema.targets import BINARY, REGRESSION, Head

if TYPE_CHECKING:
    from rankline.workflows.onnx.graph import Graph

_PENALTIES = (0.3, 3.0, 30.0)  # weights of the squared coefficients, to choose among
_MAX_DEVIATIONS = 4.0  # numbers further from the mean count as that far
_MAX_STEPS = 200


@dataclass(frozen=True, kw_only=True)
class _Design:
    """The terms of the linear model: numbers, then one column per id of each feature."""

    numbers: Ints  # columns of the matrix
    mean: Floats
    deviation: Floats
    ids: Ints  # columns of the matrix
    begins: Ints  # first term of each id column, counted from the first one
    num_ids: int

    @classmethod
    def of(cls, rows: Rows) -> "_Design":
        ids = np.array(list(rows.num_ids), np.int64)
        numbers = np.setdiff1d(np.arange(rows.matrix.shape[1]), ids)
        values = rows.matrix[:, numbers].astype(np.float64)
        deviation = values.std(axis=0)
        begins = np.cumsum([0, *rows.num_ids.values()])
        return cls(
            numbers=numbers,
            mean=values.mean(axis=0),
            deviation=np.where(deviation > 0, deviation, 1.0),
            ids=ids,
            begins=begins[:-1],
            num_ids=int(begins[-1]),
        )

    def terms(self, matrix: Matrix) -> Any:
        scaled = (matrix[:, self.numbers] - self.mean) / self.deviation
        places = matrix[:, self.ids].astype(np.int64) + self.begins
        rows = np.repeat(np.arange(len(matrix)), len(self.ids))
        hot = sparse.csr_matrix(
            (np.ones(places.size), (rows, places.ravel())), shape=(len(matrix), self.num_ids), dtype=np.float64
        )
        return sparse.hstack([sparse.csr_matrix(np.clip(scaled, -_MAX_DEVIATIONS, _MAX_DEVIATIONS)), hot], "csr")


@dataclass(frozen=True, kw_only=True)
class LinearModel(Fitted):
    head: Head
    design: _Design
    weights: Floats  # (terms, outputs)
    bias: Floats  # (outputs,)

    @property
    def num_parameters(self) -> int:
        return self.weights.size + self.bias.size

    def scores(self, matrix: Matrix) -> Floats:
        return activated(self.head, self.design.terms(matrix) @ self.weights + self.bias)

    def add_to(self, graph: "Graph", matrix: str) -> str:
        design, total = self.design, graph.constant(self.bias[None], np.float32)
        of_numbers, of_ids = np.split(self.weights, [len(design.numbers)])
        if len(design.numbers):
            taken = graph.add("Gather", matrix, graph.constant(design.numbers), axis=1)
            centered = graph.add("Sub", taken, graph.constant(design.mean, np.float32))
            scaled = graph.add("Div", centered, graph.constant(design.deviation, np.float32))
            limits = (graph.constant(limit, np.float32) for limit in (-_MAX_DEVIATIONS, _MAX_DEVIATIONS))
            product = graph.add("MatMul", graph.add("Clip", scaled, *limits), graph.constant(of_numbers, np.float32))
            total = graph.add("Add", product, total)
        if len(design.ids):
            places = add_places(graph, matrix, design.ids, design.begins)
            found = graph.add("Gather", graph.constant(of_ids, np.float32), places)  # (N, columns, outputs)
            total = graph.add("Add", graph.add("ReduceSum", found, graph.constant([1]), keepdims=0), total)
        return add_activation(graph, self.head, total)


class Linear(Learner):
    name: ClassVar[str] = "linear"

    def __init__(self) -> None:
        self._penalty = _PENALTIES[1]

    def held_out_scores(self, rows: Rows, folds: Sequence[Fold], deadline: Deadline) -> Floats:
        scores = np.full((len(_PENALTIES), len(rows), rows.head.width), np.nan)
        for learned, held in folds:
            learning, matrix = rows.take(learned), rows.matrix[held]
            for number, penalty in enumerate(_PENALTIES):
                scores[number, held] = _fitted(learning, penalty).scores(matrix)
                deadline.check(0)
        is_held = ~np.isnan(scores[0, :, 0])
        best = int(np.argmin([error_of(rows.head, rows.labels[is_held], of_one[is_held]) for of_one in scores]))
        self._penalty = _PENALTIES[best]
        return scores[best]  # type: ignore[no-any-return]

    def fit(self, rows: Rows) -> LinearModel:
        return _fitted(rows, self._penalty)


def _fitted(rows: Rows, penalty: float) -> LinearModel:
    design, head = _Design.of(rows), rows.head
    terms = design.terms(rows.matrix)
    if head.task == REGRESSION:
        mean, deviation = rows.labels.mean(), rows.labels.std() or 1.0
        ridge = Ridge(alpha=penalty, solver="sparse_cg").fit(terms, (rows.labels - mean) / deviation)
        weights, bias = ridge.coef_[:, None] * deviation, np.array([ridge.intercept_ * deviation + mean])
        return LinearModel(head=head, design=design, weights=weights, bias=bias)
    with catch_warnings():
        simplefilter("ignore", ConvergenceWarning)  # the last of some hundred steps hardly matters
        model = LogisticRegression(C=1 / penalty, max_iter=_MAX_STEPS).fit(terms, rows.labels)
    if head.task == BINARY:
        return LinearModel(head=head, design=design, weights=model.coef_.T, bias=model.intercept_)
    # A class without rows gets the lowest probability.
    weights, bias = np.zeros((terms.shape[1], head.width)), np.full(head.width, -12.0)
    present = model.classes_.astype(int)
    two = len(present) == 2  # then there is one logit for the second class
    weights[:, present] = np.concatenate([np.zeros_like(model.coef_), model.coef_]).T if two else model.coef_.T
    bias[present] = np.concatenate([[0.0], model.intercept_]) if two else model.intercept_
    return LinearModel(head=head, design=design, weights=weights, bias=bias)
