"""The model of `rankline.training.models.auto`: the learners that were chosen, as one blend."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rankline.training.models.auto import CATBOOST, LIGHTGBM, LINEAR, REALMLP, PortfolioConfig
from rankline.training.models.auto.learner import Deadline, Fitted, Learner
from rankline.training.models.auto.linear import Linear
from rankline.training.models.auto.realmlp import RealMLP
from rankline.training.models.auto.rows import Ints, Rows
from rankline.training.models.auto.selection import Choice, chosen
from rankline.training.models.auto.trees import CatBoost, LightGBM
from rankline.training.models.config import StepConfig
from rankline.training.models.matrix import FeatureMatrix, Matrix
from rankline.workflows.schema.feature_spec import FeatureSpec
from rankline.workflows.schema.targets import output_names

if TYPE_CHECKING:
    from onnx import ModelProto

_LEARNERS: dict[str, type[Learner]] = {LINEAR: Linear, LIGHTGBM: LightGBM, CATBOOST: CatBoost, REALMLP: RealMLP}
_SHARE_OF_COMPARISON = 0.8  # of the time, for the progress bar


class Portfolio:
    def __init__(self, spec: FeatureSpec, model: PortfolioConfig, _: StepConfig | None = None) -> None:
        self.heads, self._model = spec.heads, model
        self._features = FeatureMatrix(spec, model.list_ids)
        self.matrix, self.width, self.row_dtype = self._features.of, self._features.width, np.float32
        self.say: Callable[[str, float], None] = lambda _, __: None
        self.choice: Choice | None = None
        self._fitted: Sequence[tuple[float, Fitted]] = ()

    def begin(
        self, rows: Matrix, labels: Any, seed: int, *, in_order: bool = False, first_rows: Ints | None = None
    ) -> None:
        """Take the rows to learn. Folds follow the split.

        Args:
            in_order: whether the rows are in the order of time and split by time.
            first_rows: the number of each group's first row, if they are split by group.
        """
        groups = None if first_rows is None else np.searchsorted(first_rows, np.arange(len(rows)), side="right")
        self._rows = Rows(
            matrix=rows,
            labels=labels.astype(np.float64),
            head=self.heads[0],
            num_ids=self._features.id_columns,
            groups=groups,
            in_order=in_order,
            seed=seed,
        )

    def learn(self, _: float) -> None:
        learners = {name: _LEARNERS[name]() for name in self._model.learners}
        deadline = Deadline.after(self._model.limit_s(self._rows.matrix.size))
        self.choice = chosen(list(learners.values()), self._rows, deadline, self._compared)
        weights, fitted = self.choice.weights, list[tuple[float, Fitted]]()
        for name, weight in weights.items():
            done = len(fitted) / len(weights)
            self.say(f"training {name}", _SHARE_OF_COMPARISON + (1 - _SHARE_OF_COMPARISON) * done)
            fitted.append((weight, learners[name].fit(self._rows)))
        self._fitted = fitted

    def _compared(self, note: str, share: float) -> None:
        self.say(note, _SHARE_OF_COMPARISON * share)

    @property
    def num_parameters(self) -> int:
        return sum(fitted.num_parameters for _, fitted in self._fitted)

    def scores(self, rows: Matrix) -> Matrix:
        parts = [weight * fitted.scores(rows) for weight, fitted in self._fitted]
        blended: Matrix = np.sum(parts, axis=0).astype(np.float32)
        return blended

    def to_onnx(self) -> "ModelProto":
        from rankline.workflows.onnx.graph import Graph

        graph = Graph()
        matrix = self._features.add_to(graph)
        parts = []
        for weight, fitted in self._fitted:
            scores = fitted.add_to(graph, matrix)
            parts.append(graph.add("Mul", scores, graph.constant(weight, np.float32)) if weight != 1 else scores)
        (name,) = output_names(self.heads)
        graph.add("Sum", *parts, output=name)
        graph.give(name, self.heads[0].width)
        return graph.model("portfolio")
