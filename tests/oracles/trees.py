"""Forests as they are served, beside what their framework says of them."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import lightgbm
import numpy as np
import onnxruntime
import xgboost
from numpy.typing import NDArray

from rankline.serving.export.parity import SCORE_TOLERANCE
from rankline.serving.importers import ForeignModel
from rankline.serving.importers import lightgbm as lightgbm_importer
from rankline.serving.importers import xgboost as xgboost_importer
from rankline.serving.importers.input_binding import Encoded, match
from rankline.workflows.schema.targets import MULTICLASS, REGRESSION, Head

NAMES = ("a", "b", "c", "d")


def random_rows(rng: np.random.Generator, count: int) -> NDArray[np.float32]:
    """Numbers of four kinds: plain, large ones, ids, and those of which most are zero; a tenth is missing."""
    rows = np.stack(
        [
            rng.normal(size=count),
            1e6 + rng.integers(0, 50, count),
            rng.integers(0, 9, count),
            rng.normal(size=count) * (rng.random(count) < 0.3),
        ],
        axis=1,
    ).astype(np.float32)
    rows[:, :3][rng.random((count, 3)) < 0.1] = np.nan  # the last one lacks none
    return rows


def signal_of(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """What can be learned of the rows, above 0."""
    known = np.nan_to_num(rows.astype(np.float64))
    return np.exp(known[:, 0] / 2) + (known[:, 2] > 4) + (known[:, 3] > 0) + 0.1


def tried_rows(rng: np.random.Generator, rows: NDArray[Any], thresholds: Sequence[tuple[int, float]]) -> Any:
    """Rows with values at and beside thresholds (column, value), and with those that are none or awkward."""
    awkward = [np.nan, 0.0, -0.0, np.inf, -np.inf, 1e-40, -1e-40, 1e-35, -1e-35, 3e38, -3e38]
    values = [(column, value) for column in range(rows.shape[1]) for value in awkward]
    dtype = rows.dtype.type
    for column, threshold in thresholds:
        with np.errstate(over="ignore"):  # a threshold above all float32
            near = dtype(threshold)
        values += [(column, near + dtype(0))]
        values += [(column, np.nextafter(near, dtype(side))) for side in (-np.inf, np.inf)]
    tried = rows[rng.integers(0, len(rows), len(values))]
    for row, (column, value) in zip(tried, values, strict=True):
        row[column] = value
    return tried


def head_of(width: int) -> Head:
    """One that has so many scores."""
    return Head("score", MULTICLASS, tuple(map(str, range(width)))) if width > 1 else Head("score", REGRESSION)


def both_scores(
    model: ForeignModel, rows: NDArray[Any], directory: Path, columns: Sequence[str] = NAMES
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Scores of the framework and of the ONNX model that is written, for rows of these columns in that order."""
    (feed,) = feeds = match(model.inputs, [Encoded(name=name, dtype="float32") for name in columns], {})
    rows = rows.astype(feed.dtype)
    matrix = rows[:, [list(columns).index(name) for name in feed.columns]]
    expected = model.run({feed.input.name: matrix})["score"]
    assert expected.dtype == np.float32
    head = head_of(expected.shape[1] if expected.ndim == 2 else 1)
    model.write(feeds, (head,), directory / "model.onnx")
    session = onnxruntime.InferenceSession(directory / "model.onnx")
    (output,) = session.get_outputs()
    assert (output.name, output.shape) == ("score", ["rows", head.width])
    (made,) = session.run(None, {name: rows[:, [number]] for number, name in enumerate(columns)})
    return expected.reshape(made.shape), made


_XGBOOST_OPTIONS: Mapping[str, dict[str, Any]] = {
    "reg:quantileerror": {"quantile_alpha": 0.6},
    "reg:expectileerror": {"expectile_alpha": 0.6},
    "multi:softprob": {"num_class": 3},
}
_LIGHTGBM_OPTIONS: Mapping[str, dict[str, Any]] = {
    "quantile": {"alpha": 0.7},
    "binary": {"sigmoid": 1.7},
    "multiclass": {"num_class": 3},
    "multiclassova": {"num_class": 3, "sigmoid": 0.6},
}
"""Objective → the options that go with it."""


@dataclass(frozen=True)
class Framework:
    """A framework of forests.

    `train(rows, objective, trees=10, names=NAMES, **options)` makes a model; its thresholds are (column, value).
    """

    importer: ModuleType
    objectives: Sequence[str]
    train: Callable[..., Any]
    thresholds: Callable[[Any], Sequence[tuple[int, float]]]
    save: Callable[[Any, Path], Path]
    predict: Callable[[Any, NDArray[Any]], NDArray[Any]]
    takes_infinity: bool

    def check(self, booster: Any, rows: NDArray[np.float32], rng: np.random.Generator, directory: Path) -> None:
        """Compare the importer's scores with the framework's to the bit, and the ONNX model with both."""
        model = self.importer.Model(self.save(booster, directory))
        tried = tried_rows(rng, rows.astype(model.inputs[0].dtype), self.thresholds(booster))
        expected, made = both_scores(model, tried, directory)
        np.testing.assert_allclose(made, expected, rtol=SCORE_TOLERANCE, atol=2e-6)
        is_predicted = np.full(len(tried), True) if self.takes_infinity else ~np.isinf(tried).any(axis=1)
        theirs = self.predict(booster, tried[is_predicted]).astype(np.float32)
        np.testing.assert_array_equal(expected[is_predicted].ravel(), theirs.ravel())


def _train_xgboost(
    rows: NDArray[np.float32],
    objective: str = "reg:squarederror",
    trees: int = 10,
    names: Sequence[str] | None = NAMES,
    categories: bool = False,
    **options: Any,
) -> xgboost.Booster:
    signal = signal_of(rows)
    labels = {
        "reg:logistic": np.clip(signal / 4, 0, 1),
        "count:poisson": np.round(signal),
        "multi:softprob": np.digitize(signal, [1, 2]),
        "multi:softmax": np.digitize(signal, [1, 2]),
    }.get(objective, signal > 1.5 if objective.startswith(("binary", "rank")) else signal)
    data = xgboost.DMatrix(
        rows,
        labels,
        feature_names=None if names is None else list(names),
        feature_types=["q", "q", "c", "q"] if categories else None,
        enable_categorical=categories,
    )
    if objective.startswith("rank"):
        data.set_group([len(rows) // 10] * 10)
    if objective == "survival:aft":
        data.set_float_info("label_lower_bound", signal)
        data.set_float_info("label_upper_bound", signal + 1)
    usual = {"objective": objective, "max_depth": 3, "min_child_weight": 0, "verbosity": 0, "nthread": 1}
    return xgboost.train(usual | _XGBOOST_OPTIONS.get(objective, {}) | options, data, trees)


def save_xgboost(booster: xgboost.Booster, directory: Path, kind: str = "ubj") -> Path:
    """As a file of a kind, `json` or `ubj`."""
    booster.save_model(directory / f"model.{kind}")
    return directory / f"model.{kind}"


def xgboost_document(booster: xgboost.Booster) -> Any:
    """What its JSON says."""
    return json.loads(bytes(booster.save_raw("json")))


def trees_in(document: Any) -> Any:
    """The trees of an XGBoost document."""
    part = document["learner"]["gradient_booster"]
    return part.get("gbtree", part)["model"]["trees"]


def _xgboost_thresholds(booster: xgboost.Booster) -> list[tuple[int, float]]:
    found = {
        (feature, threshold)
        for tree in trees_in(xgboost_document(booster))
        for left, feature, threshold in zip(
            tree["left_children"], tree["split_indices"], tree["split_conditions"], strict=True
        )
        if left != -1
    }
    return sorted(found)


def _train_lightgbm(
    rows: NDArray[np.float32],
    objective: Any = "regression",
    trees: int = 10,
    names: Sequence[str] | None = NAMES,
    categories: Any = "auto",
    **options: Any,
) -> lightgbm.Booster:
    labels = signal = signal_of(rows)
    is_rank = objective in ("lambdarank", "rank_xendcg")
    if objective in ("multiclass", "multiclassova"):
        labels = np.digitize(signal, [1, 2]).astype(float)
    elif objective == "binary" or is_rank:
        labels = (signal > 1.5).astype(float)
    elif str(objective).startswith("cross"):
        labels = np.clip(signal / 4, 0, 1)
    data = lightgbm.Dataset(
        rows,
        labels,
        group=[len(rows) // 10] * 10 if is_rank else None,
        feature_name="auto" if names is None else list(names),
        categorical_feature=categories,
    )
    usual = {"objective": objective, "num_leaves": 8, "min_data_in_leaf": 5, "verbosity": -1, "num_threads": 1}
    return lightgbm.train(usual | _LIGHTGBM_OPTIONS.get(str(objective), {}) | options, data, trees)


def _save_lightgbm(booster: lightgbm.Booster, directory: Path) -> Path:
    booster.save_model(directory / "model.txt")
    return directory / "model.txt"


def _lightgbm_thresholds(booster: lightgbm.Booster) -> list[tuple[int, float]]:
    found, waiting = [], [tree["tree_structure"] for tree in booster.dump_model()["tree_info"]]
    for node in waiting:
        if "threshold" in node:
            found.append((node["split_feature"], node["threshold"]))
            waiting += [node["left_child"], node["right_child"]]
    return sorted(set(found))


XGBOOST = Framework(
    importer=xgboost_importer,
    objectives=(
        *("reg:squarederror", "reg:squaredlogerror", "reg:pseudohubererror", "reg:absoluteerror"),
        *("reg:logistic", "reg:gamma", "reg:tweedie", "count:poisson", "survival:cox", "survival:aft"),
        *("binary:logistic", "binary:logitraw", "rank:pairwise", "rank:ndcg", "rank:map"),
        *_XGBOOST_OPTIONS,
    ),
    train=_train_xgboost,
    thresholds=_xgboost_thresholds,
    save=save_xgboost,
    predict=lambda booster, rows: booster.predict(xgboost.DMatrix(rows, feature_names=booster.feature_names)),
    takes_infinity=False,
)
LIGHTGBM = Framework(
    importer=lightgbm_importer,
    objectives=(
        *("regression", "regression_l1", "huber", "fair", "mape", "poisson", "gamma", "tweedie"),
        *("cross_entropy", "cross_entropy_lambda", "lambdarank", "rank_xendcg"),
        *_LIGHTGBM_OPTIONS,
    ),
    train=_train_lightgbm,
    thresholds=_lightgbm_thresholds,
    save=_save_lightgbm,
    predict=lambda booster, rows: booster.predict(rows),
    takes_infinity=True,
)
