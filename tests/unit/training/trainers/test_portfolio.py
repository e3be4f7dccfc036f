"""The models of `rankline.training.models.auto`, trained and published."""

import re
from pathlib import Path

import mlflow
import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from sklearn.metrics import roc_auc_score

from rankline.terminal.summary import print_comparison
from rankline.training.config.train import TrainConfig
from rankline.training.export.onnx import _load_pyfunc
from rankline.training.models.auto import (
    AutoConfig,
    CatBoostConfig,
    LinearConfig,
    PortfolioConfig,
    RealMLPConfig,
    realmlp,
    trees,
)
from rankline.training.models.auto.portfolio import Portfolio
from rankline.training.models.auto.rows import fold_numbers
from rankline.training.models.config import ModelConfig
from rankline.training.run.train import train
from rankline.training.tracking import TrackingConfig
from rankline.workflows.core.errors import ConfigError, MissingExtraError
from rankline.workflows.schema.model_artifact import TrainedModel
from tests.factories.training.heads import HEADS, make_prepared
from tests.factories.training.ratings import make_spec


@pytest.fixture(autouse=True)
def _small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_HIDDEN": (16, 16), "_MIN_STEPS": 200, "_MAX_STEPS": 200, "_NUM_CHECKS": 2}.items():
        monkeypatch.setattr(realmlp, name, value)
    for learner in (trees.CatBoost, trees.LightGBM):
        monkeypatch.setattr(learner, "_MAX_TREES", 40)


def trained(model: ModelConfig, directory: Path, number: int = 0) -> TrainedModel:
    prepared = make_prepared(directory / "prepared", (HEADS[number],))
    tracking = TrackingConfig(directory=directory, experiment="portfolio")
    return train(prepared, directory / "model", TrainConfig(model=model), tracking=tracking)


def test_choice_is_published_recorded_and_shown(tmp_path: Path, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = trained(AutoConfig(time_limit=600), tmp_path)  # a busy machine compares all, too
    compared = model.manifest.details["compared"]
    candidates = {one["name"]: one for one in compared["candidates"]}
    assert list(candidates) == ["linear", "lightgbm", "catboost", "realmlp"]
    assert sum(one["weight"] for one in candidates.values()) == pytest.approx(1)
    best = max(candidates.values(), key=lambda one: one["weight"])
    assert best["name"] in compared["reason"]
    assert 0.7 < best["score"] < 1
    assert model.metrics["valid_auc"] > 0.7
    run = mlflow.MlflowClient(model.tracking_uri).get_run(model.run_id)
    assert run.data.metrics[f"compared_{best['name']}_auc"] == pytest.approx(best["score"])
    assert compared["reason"] in run.data.tags["mlflow.note.content"]
    print_comparison(model, Console(width=80))
    shown = capsys.readouterr().out
    assert all(re.search(rf"{name} +0\.\d{{4}} ± 0\.\d{{4}}", shown) for name in candidates)
    assert f"chosen: {compared['reason']}" in shown
    assert {"epochs", "batch_size", "learning_rate"}.isdisjoint(run.data.params)
    assert int(run.data.params["num_parameters.other"]) > 0


@pytest.mark.parametrize(
    ("config", "number"), [(CatBoostConfig(), 0), (CatBoostConfig(), 1), (LinearConfig(), 1), (RealMLPConfig(), 2)]
)
def test_pinned_model_is_published_as_onnx_with_the_scores_of_the_run(
    config: PortfolioConfig, number: int, tmp_path: Path, work: Path
) -> None:
    model = trained(config, tmp_path, number)
    rows = pq.read_table(tmp_path / "prepared" / "valid" / "part_0.parquet").to_pandas()
    labels = rows[HEADS[number].column].to_numpy()
    made = _load_pyfunc(str(model.path / "model.onnx")).predict(rows)
    assert "compared" not in model.manifest.details
    values = made.iloc[:, 0].to_numpy()
    if number == 1:
        assert np.sqrt(np.mean(np.square(values - labels))) == pytest.approx(model.metrics["valid_rmse"], rel=1e-4)
    elif number == 2:
        of_label = np.stack(list(values))[np.arange(len(labels)), labels.astype(int)]
        assert -np.mean(np.log(of_label)) == pytest.approx(model.metrics["valid_logloss"], rel=1e-4)
    else:
        assert roc_auc_score(labels, values) == pytest.approx(model.metrics["valid_auc"], abs=1e-5)


def test_several_labels_are_refused(tmp_path: Path) -> None:
    prepared = make_prepared(tmp_path / "prepared", HEADS)
    tracking = TrackingConfig(directory=tmp_path, experiment="portfolio")
    with pytest.raises(Exception, match=r"model 'auto' supports one label.*Choose one of"):
        train(prepared, tmp_path / "model", TrainConfig(model=AutoConfig()), tracking=tracking)


def test_options_of_epochs_are_refused() -> None:
    with pytest.raises(ConfigError, match="model 'auto' does not use epochs. Omit it"):
        TrainConfig(model=AutoConfig()).check_read(["epochs"])


def test_missing_catboost_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankline.workflows.core.optional_packages.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match="catboost"):
        CatBoostConfig().check_packages()
    AutoConfig().check_packages()  # it leaves out what is missing


def test_folds_of_rows_split_by_group_hold_out_whole_groups() -> None:
    portfolio = Portfolio(make_spec(), CatBoostConfig())
    portfolio.begin(
        np.zeros((10, portfolio.width), np.float32), np.arange(10.0), 0, first_rows=np.array([0, 3, 4, 7, 9])
    )
    of_rows = fold_numbers(portfolio._rows, 5)
    assert [len(set(of_rows[rows])) for rows in (slice(0, 3), slice(4, 7), slice(7, 9))] == [1, 1, 1]
    assert len(set(of_rows)) == 5
