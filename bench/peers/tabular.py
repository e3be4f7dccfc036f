"""Other libraries' models for a table, with their defaults: `python tabular.py PEER FOLDER`.

The folder contains `task.json` (the task and the number of classes), `train.parquet`, `labels.npy` and `rows.parquet`.
Writes `scores.npy`, float64 (N, outputs): numbers, or probabilities of the second class or of all classes. Categories
are strings. Imports nothing from Rankline, since some peers need an environment of their own.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

REGRESSION, BINARY, MULTICLASS = "regression", "binary", "multiclass"
_AUTOGLUON_S = 60


def main(peer: str, folder: Path) -> None:
    task = json.loads((folder / "task.json").read_text())
    train, rows = (pd.read_parquet(folder / f"{name}.parquet") for name in ("train", "rows"))
    labels = np.load(folder / "labels.npy")
    labels = labels if task["task"] == REGRESSION else labels.astype(np.int64)
    scores, classes = PEERS[peer](train, labels, rows, folder, **task)
    if task["task"] == MULTICLASS:  # with a column for every class, and not only those with rows
        whole = np.zeros((len(rows), task["width"]))
        whole[:, np.asarray(classes, np.int64)] = scores
        scores = whole
    elif task["task"] == BINARY:
        scores = scores[:, -1]
    np.save(folder / "scores.npy", np.asarray(scores, np.float64).reshape(len(rows), -1))


def lightgbm(train: Any, labels: Any, rows: Any, _: Path, *, task: str, width: int) -> tuple[Any, Any]:  # noqa: ARG001
    from lightgbm import LGBMClassifier, LGBMRegressor

    for name in train.select_dtypes("object"):
        known = pd.CategoricalDtype(sorted(train[name].unique()))
        train[name], rows[name] = train[name].astype(known), rows[name].astype(known)
    model = (LGBMRegressor if task == REGRESSION else LGBMClassifier)(verbosity=-1).fit(train, labels)
    return _scores(model, rows, task)


def catboost(train: Any, labels: Any, rows: Any, _: Path, *, task: str, width: int) -> tuple[Any, Any]:  # noqa: ARG001
    from catboost import CatBoostClassifier, CatBoostRegressor

    model = (CatBoostRegressor if task == REGRESSION else CatBoostClassifier)(verbose=False, allow_writing_files=False)
    model.fit(train, labels, cat_features=list(train.select_dtypes("object")))
    return _scores(model, rows, task)


def realmlp(train: Any, labels: Any, rows: Any, _: Path, *, task: str, width: int) -> tuple[Any, Any]:  # noqa: ARG001
    from pytabkit import RealMLP_TD_Classifier, RealMLP_TD_Regressor  # type: ignore[import-not-found]

    for_probabilities = {"val_metric_name": "cross_entropy", "use_ls": False}  # as its authors advise
    if task == REGRESSION:
        model = RealMLP_TD_Regressor(device="cpu", random_state=0)
    else:
        model = RealMLP_TD_Classifier(device="cpu", random_state=0, **for_probabilities)
    return _scores(model.fit(train, labels, cat_col_names=list(train.select_dtypes("object"))), rows, task)


def autogluon(train: Any, labels: Any, rows: Any, folder: Path, *, task: str, width: int) -> tuple[Any, Any]:  # noqa: ARG001
    from autogluon.tabular import TabularPredictor  # type: ignore[import-not-found]

    metric = {REGRESSION: "root_mean_squared_error", BINARY: "roc_auc", MULTICLASS: "log_loss"}[task]
    label = "the label"
    predictor = TabularPredictor(label, problem_type=task, eval_metric=metric, path=folder / "autogluon", verbosity=0)
    predictor.fit(train.assign(**{label: labels}), presets="medium_quality", time_limit=_AUTOGLUON_S)
    if task == REGRESSION:
        return predictor.predict(rows).to_numpy(), ()
    scores = predictor.predict_proba(rows)
    return scores.to_numpy(), scores.columns


PEERS = {one.__name__: one for one in (lightgbm, catboost, realmlp, autogluon)}


def _scores(model: Any, rows: Any, task: str) -> tuple[Any, Any]:
    return (model.predict(rows), ()) if task == REGRESSION else (model.predict_proba(rows), model.classes_)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
