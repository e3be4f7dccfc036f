"""Boosted trees of CatBoost and LightGBM, which see the matrix and the target statistics of its ids."""

import json
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rankline.training.models.auto.learner import Deadline, Fitted, Learner, LearnerError, activated, add_activation
from rankline.training.models.auto.rows import Floats, Fold, Rows
from rankline.training.models.auto.target_statistics import TargetStatistics
from rankline.training.models.matrix import Matrix
from rankline.workflows.onnx.lightgbm_text import read_forest
from rankline.workflows.onnx.trees import LEAF, LEQ, attributes
from rankline.workflows.schema.targets import BINARY, MULTICLASS, REGRESSION, Head

if TYPE_CHECKING:
    from rankline.workflows.onnx.graph import Graph

_MIN_VALUES_OF_THREADS = 10_000_000
_PATIENCE = 60  # trees without improvement on the held-out rows


@dataclass(frozen=True, kw_only=True)
class TreesModel(Fitted):
    head: Head
    statistics: TargetStatistics
    trees: Mapping[str, Sequence[Any]]  # attributes of the ONNX operator
    bias: Floats  # (outputs,)
    predict: Any  # maps the trees' matrix to logits (N, outputs)

    @property
    def num_parameters(self) -> int:
        """The number of leaf values."""
        return len(self.trees["target_weights"])

    def scores(self, matrix: Matrix) -> Floats:
        logits = self.predict(_with_statistics(matrix, self.statistics.of(matrix)))
        return activated(self.head, np.asarray(logits, np.float64).reshape(len(matrix), -1))

    def add_to(self, graph: "Graph", matrix: str) -> str:
        from rankline.workflows.onnx.graph import TREES_DOMAIN

        statistics = self.statistics.add_to(graph, matrix)
        rows = graph.add("Concat", matrix, statistics, axis=1) if statistics else matrix
        options: dict[str, Any] = {"n_targets": self.head.width, "base_values": self.bias.tolist()}
        options |= {"post_transform": "NONE", "aggregate_function": "SUM", **self.trees}
        total = graph.add("TreeEnsembleRegressor", rows, domain=TREES_DOMAIN, **options)
        return add_activation(graph, self.head, total)


@dataclass(frozen=True, kw_only=True)
class _Held:
    """Rows that are held out while a model learns, and when it must be finished."""

    matrix: Matrix
    labels: Floats
    deadline: Deadline

    def after_iteration(self, _: Any) -> bool:
        """Whether there is time for another tree, as CatBoost asks after each one."""
        return self.deadline.left_s > 0


class Trees(Learner):
    """Boosting whose number of trees is the best one on average over the folds."""

    def __init__(self) -> None:
        self._num_trees = 0
        self._learning_rate: float | None = None

    def held_out_scores(self, rows: Rows, folds: Sequence[Fold], deadline: Deadline) -> Floats:
        models, curves = [], []
        for learned, held in folds:
            began_s = monotonic()
            learning = rows.take(learned)
            statistics = TargetStatistics(learning)
            matrix = _with_statistics(rows.matrix[held], statistics.of(rows.matrix[held]))
            known = _Held(matrix=matrix, labels=rows.labels[held], deadline=deadline)
            model, curve = self._boosted(_learned_matrix(learning, statistics), learning, known)
            models.append((model, matrix, held))
            curves.append(curve)
            fold_s = monotonic() - began_s
            deadline.check(fold_s)  # to train on all rows
            if 2 * fold_s > deadline.left_s:
                break
        longest = max(map(len, curves))
        mean = np.mean([np.pad(curve, (0, longest - len(curve)), mode="edge") for curve in curves], axis=0)
        self._num_trees = int(np.argmin(mean)) + 1
        scores = np.full((len(rows), rows.head.width), np.nan)
        for model, matrix, held in models:
            logits = np.asarray(self._logits(model, matrix, self._num_trees)).reshape(len(held), -1)
            scores[held] = activated(rows.head, logits)
        return scores

    def fit(self, rows: Rows) -> TreesModel:
        statistics = TargetStatistics(rows)
        model, _ = self._boosted(_learned_matrix(rows, statistics), rows, None)
        trees, bias = self._trees(model, rows.head)
        return TreesModel(
            head=rows.head,
            statistics=statistics,
            trees=trees,
            bias=bias,
            predict=lambda matrix: self._logits(model, matrix, 0),
        )

    @abstractmethod
    def _boosted(self, matrix: Matrix, rows: Rows, held: _Held | None) -> tuple[Any, Sequence[float]]:
        """Return a model, and its loss on the held-out rows after each tree; without those, of `_num_trees` trees."""

    @abstractmethod
    def _logits(self, model: Any, matrix: Matrix, num_trees: int) -> Any:
        """Return the sums of the first trees; 0 for all."""

    @abstractmethod
    def _trees(self, model: Any, head: Head) -> tuple[Mapping[str, Sequence[Any]], Floats]:
        """Return the trees as attributes of the ONNX operator, and the bias of each output."""


class CatBoost(Trees):
    """CatBoost (Prokhorenkova et al. 2018), with its own learning rate for the number of rows."""

    name: ClassVar[str] = "catboost"
    packages: ClassVar[tuple[str, ...]] = ("catboost",)
    max_rows = 1_000_000
    _LOSSES: ClassVar[dict[str, str]] = {BINARY: "Logloss", REGRESSION: "RMSE", MULTICLASS: "MultiClass"}
    _MAX_TREES = 1000

    def _boosted(self, matrix: Matrix, rows: Rows, held: _Held | None) -> tuple[Any, Sequence[float]]:
        import catboost

        loss = self._LOSSES[rows.head.task]
        options: dict[str, Any] = {
            "iterations": self._MAX_TREES,
            "loss_function": loss,
            "random_seed": rows.seed % (1 << 31),
            "verbose": False,
            "allow_writing_files": False,
        }
        if rows.head.task == MULTICLASS:
            options["classes_count"] = rows.head.width
        if held is None and self._num_trees:
            options |= {"iterations": self._num_trees, "learning_rate": self._learning_rate}
        model = catboost.CatBoost(options)
        watched: dict[str, Any] = {}
        if held:
            watched = {"eval_set": (held.matrix, held.labels), "early_stopping_rounds": _PATIENCE, "callbacks": [held]}
        try:
            model.fit(matrix, rows.labels, use_best_model=False, **watched)
        except catboost.CatBoostError as error:  # for example, all features are constant
            raise LearnerError(
                f"CatBoost cannot learn from the rows: {str(error).partition(': ')[2] or error}."
            ) from None
        if held is None:
            return model, ()
        held.deadline.check(0)
        self._learning_rate = model.get_all_params()["learning_rate"]  # CatBoost's own depends on the number of trees
        return model, model.get_evals_result()["validation"][loss]

    def _logits(self, model: Any, matrix: Matrix, num_trees: int) -> Any:
        return model.predict(
            matrix, prediction_type="RawFormulaVal", ntree_end=min(num_trees, model.tree_count_) if num_trees else 0
        )

    def _trees(self, model: Any, head: Head) -> tuple[Mapping[str, Sequence[Any]], Floats]:
        with TemporaryDirectory() as directory:
            path = Path(directory, "model.json")
            model.save_model(str(path), format="json")
            saved = json.loads(path.read_text(encoding="utf-8"))
        columns = np.array([feature["flat_feature_index"] for feature in saved["features_info"]["float_features"]])
        scale, bias = saved["scale_and_bias"]
        trees = _symmetric_attributes(saved["oblivious_trees"], columns, head.width, scale)
        return trees, np.broadcast_to(np.asarray(bias, np.float64), (head.width,))


def _learned_matrix(rows: Rows, statistics: TargetStatistics) -> Matrix:
    return _with_statistics(rows.matrix, statistics.of_learned(rows))


def _with_statistics(matrix: Matrix, statistics: Matrix) -> Matrix:
    return np.concatenate([matrix, statistics], axis=1)


def _symmetric_attributes(
    trees: Sequence[Mapping[str, Any]], columns: NDArray[np.int64], width: int, scale: float
) -> dict[str, list[Any]]:
    """Return the ONNX attributes of CatBoost's trees, in which all nodes of a depth share a split.

    The last split of a tree belongs to its root. Node n has the children 2 n + 1 and 2 n + 2.
    """
    parts: dict[str, list[Any]] = defaultdict(list)
    for number, tree in enumerate(trees):
        splits = tree["splits"][::-1]
        num_leaves = 1 << len(splits)
        depths = np.repeat(np.arange(len(splits)), 1 << np.arange(len(splits)))
        features = columns[np.array([split["float_feature_index"] for split in splits], np.int64)]
        borders = np.array([split["border"] for split in splits])
        inner, places, at_leaves = np.arange(num_leaves - 1), np.arange(2 * num_leaves - 1), np.zeros(num_leaves, int)
        parts["nodes_nodeids"].append(places)
        parts["nodes_treeids"].append(np.full(len(places), number))
        parts["nodes_featureids"] += [features[depths], at_leaves]
        parts["nodes_modes"].append(np.repeat([LEQ, LEAF], [num_leaves - 1, num_leaves]))
        parts["nodes_values"] += [borders[depths], at_leaves]
        parts["nodes_truenodeids"] += [2 * inner + 1, at_leaves]
        parts["nodes_falsenodeids"] += [2 * inner + 2, at_leaves]
        parts["nodes_missing_value_tracks_true"] += [np.ones(num_leaves - 1, int), at_leaves]
        parts["target_ids"].append(np.tile(np.arange(width), num_leaves))
        parts["target_nodeids"].append(np.repeat(places[num_leaves - 1 :], width))
        parts["target_treeids"].append(np.full(width * num_leaves, number))
        parts["target_weights"].append(scale * np.array(tree["leaf_values"]))
    return {name: np.concatenate(of_trees).tolist() for name, of_trees in parts.items()}


class LightGBM(Trees):
    """LightGBM (Ke et al. 2017), with smaller and slower trees than its defaults, on samples of rows and features."""

    name: ClassVar[str] = "lightgbm"
    packages: ClassVar[tuple[str, ...]] = ("lightgbm",)
    _MAX_TREES = 1500

    def _boosted(self, matrix: Matrix, rows: Rows, held: _Held | None) -> tuple[Any, Sequence[float]]:
        import lightgbm

        from rankline.training.models.lightgbm.network import OBJECTIVES

        options: dict[str, Any] = {
            "objective": OBJECTIVES[rows.head.task],
            "learning_rate": 0.03,
            "num_leaves": 16,
            "min_data_in_leaf": min(20, max(1, len(rows) // 40)),
            "feature_fraction": 0.7,
            "bagging_fraction": 0.8,
            "bagging_freq": 1,
            "seed": rows.seed % (1 << 31),
            "deterministic": True,
            "force_col_wise": True,
            # For a small matrix, threads of OpenMP that wait for each other can take several times as long as one.
            "num_threads": 1 if matrix.size < _MIN_VALUES_OF_THREADS else 0,
            "verbosity": -1,
        } | ({"num_class": rows.head.width} if rows.head.task == MULTICLASS else {})
        data, curve = lightgbm.Dataset(matrix, rows.labels), dict[str, Any]()
        if held is None:
            return lightgbm.train(options, data, self._num_trees or self._MAX_TREES), ()
        calls: list[Any] = [lightgbm.record_evaluation(curve), lightgbm.early_stopping(_PATIENCE, verbose=False)]
        calls.append(lambda _: held.deadline.check(0))
        valid = [lightgbm.Dataset(held.matrix, held.labels, reference=data)]
        model = lightgbm.train(options, data, self._MAX_TREES, valid_sets=valid, callbacks=calls)
        ((_, by_metric),) = curve.items()
        return model, next(iter(by_metric.values()))

    def _logits(self, model: Any, matrix: Matrix, num_trees: int) -> Any:
        return model.predict(matrix, raw_score=True, num_iteration=num_trees or -1)

    def _trees(self, model: Any, head: Head) -> tuple[Mapping[str, Sequence[Any]], Floats]:
        forest = read_forest(model.model_to_string(num_iteration=-1), f"the forest of {head.column!r}")
        return attributes(forest.trees), np.zeros(head.width)
