"""Several labels, of every task, some of them missing, through both trainers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
import torch
from sklearn import metrics as sklearn_metrics

from rankline.training.config.train import SessionConfig, TrainConfig
from rankline.training.evaluation import losses_of, metric_names, objective_of, quality, score_heads
from rankline.training.models.tabular import MLPConfig, MMoEConfig, TorchMLPConfig
from rankline.training.models.tabular.torch_mlp import loss_of as torch_loss_of
from rankline.training.run.observers import Observer
from rankline.training.run.train import train
from rankline.training.tracking import TrackingConfig
from rankline.training.trainers.keras import loss_of
from rankline.workflows.schema.targets import MULTICLASS, REGRESSION, Head
from tests.factories.training.heads import HEADS, make_prepared


@pytest.fixture(scope="module")
def prepared_heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_prepared(tmp_path_factory.mktemp("heads") / "prepared", HEADS)


@pytest.mark.slow
@pytest.mark.parametrize("model", [MLPConfig(), MMoEConfig(), TorchMLPConfig()], ids=lambda model: model.name)
def test_heads_learn_from_rows_with_their_label(prepared_heads: Path, tmp_path: Path, work: Path, model: Any) -> None:
    config = TrainConfig(model=model, batch_size=64, epochs=3, learning_rate=3e-3)
    tracking = TrackingConfig(directory=work, experiment="heads")
    trained = train(prepared_heads, tmp_path / "model", config, tracking=tracking)
    assert trained.metrics["valid_rating_auc"] > 0.7
    assert trained.metrics["valid_price_____rmse"] < 12  # of a deviation of 14 without a model
    assert trained.metrics["valid_price_____r2"] > 0.3
    assert trained.metrics["valid_kind_accuracy"] > 0.6
    mlflow.set_tracking_uri(trained.tracking_uri)
    logged = mlflow.pyfunc.load_model(f"runs:/{trained.run_id}/model")
    mlflow.set_tracking_uri(None)  # it is in the environment, too, where commands of other tests would find it
    valid = pq.read_table(prepared_heads / "valid")
    scored = logged.predict(valid.drop([head.column for head in HEADS]).to_pandas())
    assert set(scored.columns) == {head.column for head in HEADS}
    scores = np.column_stack([scored["rating"], scored["price, €?"], np.stack(scored["kind"].tolist())])
    labels = np.column_stack([valid[head.column].to_numpy() for head in HEADS])
    again = score_heads(HEADS, labels, scores, valid["userId"].to_numpy())
    assert {f"valid_{name}": pytest.approx(figure, rel=1e-3) for name, figure in again.items()} == {
        name: figure for name, figure in trained.metrics.items() if name != "epoch"
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "number", "better", "best"),
    [(MLPConfig(), 1, "valid_rmse", 12), (TorchMLPConfig(), 2, "valid_logloss", 0.9)],
    ids=["a number by mlp", "a class by torch_mlp"],
)
def test_single_head_is_evaluated_by_its_task(
    tmp_path: Path, work: Path, model: Any, number: int, better: str, best: float
) -> None:
    prepared = make_prepared(tmp_path / "prepared", HEADS[number : number + 1])
    config = TrainConfig(model=model, batch_size=64, epochs=2, learning_rate=3e-3)
    trained = train(prepared, tmp_path / "model", config, tracking=TrackingConfig(directory=work, experiment="one"))
    assert trained.metrics[better] < best
    assert "valid_auc" not in trained.metrics


def test_losses_agree_across_frameworks_and_ignore_missing_labels() -> None:
    rng = np.random.default_rng(0)
    labels = np.array([[1, 90, 2], [0, np.nan, 1], [np.nan, 120, np.nan]], np.float32)
    logits = rng.normal(size=(3, 5)).astype(np.float32)
    chances = np.exp(logits[:, 2:]) / np.exp(logits[:, 2:]).sum(axis=1, keepdims=True)
    score = 1 / (1 + np.exp(-logits[:, 0]))
    expected = [
        -(np.log(score[0]) + np.log(1 - score[1])) / 3,
        ((90 - 100) / 20 - logits[0, 1]) ** 2 / 3 + ((120 - 100) / 20 - logits[2, 1]) ** 2 / 3,
        -(np.log(chances[0, 2]) + np.log(chances[1, 1])) / 3,
    ]
    total = np.average(expected, weights=[head.weight for head in HEADS])
    outputs = [score[:, None], logits[:, 1:2] * 20 + 100, chances]
    assert float(loss_of(HEADS, tf.constant(labels), list(map(tf.constant, outputs)))) == pytest.approx(total, 1e-4)
    assert float(torch_loss_of(HEADS, torch.tensor(labels), torch.tensor(logits))) == pytest.approx(total, 1e-5)


@pytest.mark.parametrize("number", range(3))
def test_batch_without_any_label_of_a_head_has_a_finite_gradient(number: int) -> None:
    labels = np.ones((4, 3), np.float32)
    labels[:, number] = np.nan
    logits = torch.zeros((4, 5), requires_grad=True)
    torch_loss_of(HEADS, torch.tensor(labels), logits).backward()
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())
    with tf.GradientTape() as tape:
        raw = tf.Variable(tf.zeros((4, 5)))
        outputs = [tf.sigmoid(raw[:, :1]), raw[:, 1:2], tf.nn.softmax(raw[:, 2:])]
        loss = loss_of(HEADS, tf.constant(labels), outputs)
    assert np.isfinite(tape.gradient(loss, raw).numpy()).all()


def test_figures_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(3)
    price, guess = rng.normal(size=200), rng.normal(size=200)
    assert quality(price, guess, task=REGRESSION) == {
        "rmse": pytest.approx(sklearn_metrics.root_mean_squared_error(price, guess)),
        "mae": pytest.approx(sklearn_metrics.mean_absolute_error(price, guess)),
        "r2": pytest.approx(sklearn_metrics.r2_score(price, guess)),
    }
    kind, chances = rng.integers(0, 4, 200), rng.dirichlet(np.ones(5), 200)  # class 4 is guessed, and no row has it
    figures = quality(kind.astype(np.float32), chances, task=MULTICLASS)
    said = chances.argmax(axis=1)
    assert figures["logloss"] == pytest.approx(sklearn_metrics.log_loss(kind, chances, labels=range(5)))
    assert figures["accuracy"] == pytest.approx(sklearn_metrics.accuracy_score(kind, said))
    assert figures["macro_f1"] == pytest.approx(sklearn_metrics.f1_score(kind, said, average="macro"))
    clicks, scores = rng.integers(0, 2, 200), rng.random(200)
    figures = quality(clicks, scores)
    assert figures["auc"] == pytest.approx(sklearn_metrics.roc_auc_score(clicks, scores))
    assert figures["logloss"] == pytest.approx(sklearn_metrics.log_loss(clicks, scores))


def test_class_number_beyond_the_classes_cannot_be_measured() -> None:
    with pytest.raises(ValueError, match="labels contain values other than the indices of the 3 classes"):
        quality(np.array([0.0, 3.0]), np.full((2, 3), 1 / 3), task=MULTICLASS)
    with pytest.raises(ValueError, match="^no rows have a label"):
        score_heads(HEADS, np.full((2, 3), np.nan), np.zeros((2, 5)))


def test_loss_of_heads_is_the_mean_by_their_weights_and_that_of_a_number_is_of_the_standardised_label() -> None:
    labels = np.array([[1, 90, 2], [0, np.nan, 1], [np.nan, 120, np.nan]])
    scores = np.array([[0.8, 95, 0.1, 0.2, 0.7], [0.4, 0, 0.3, 0.6, 0.1], [0, 100, 0, 0, 1]])
    squares = ((90 - 95) ** 2 + (120 - 100) ** 2) / 2
    losses = [-np.log([0.8, 0.6]).mean(), squares / HEADS[1].deviation ** 2, -np.log([0.7, 0.6]).mean()]
    expected = np.average(losses, weights=[head.weight for head in HEADS])
    figures = score_heads(HEADS, labels, scores, np.zeros(3, np.int64))
    assert figures["loss"] == pytest.approx(expected)
    assert losses_of(HEADS, labels, scores) == pytest.approx(expected)
    assert losses_of(HEADS[:1], labels[:2, 0], scores[:2, 0]) == pytest.approx(losses[0])
    assert set(metric_names(HEADS)) == set(figures) - {"loss"}
    gauc = next(name for name in figures if name.endswith("gauc"))
    assert figures[gauc] == 1


def test_better_of_two_figures_goes_by_the_objective() -> None:
    auc, rmse = objective_of(HEADS[:1]), objective_of(HEADS[1:2])
    assert (auc.is_better(0.8, 0.7), auc.is_better(0.7, 0.7), auc.is_better(0.6, 0.7)) == (True, False, False)
    assert (rmse.is_better(0.8, 0.7), rmse.is_better(0.7, 0.7), rmse.is_better(0.6, 0.7)) == (False, False, True)


def test_names_tell_heads_apart_and_one_head_needs_none() -> None:
    assert list(metric_names(HEADS[1:2])) == ["rmse", "mae", "r2"]
    assert list(metric_names([Head("Likes"), Head("a!", task=REGRESSION)]))[-3:] == ["a__rmse", "a__mae", "a__r2"]
    assert next(iter(metric_names([Head("Likes"), Head("b")]))) == "Likes_auc"
    names = list(metric_names([Head("a?"), Head("a!")]))
    assert ("a__0_auc" in names, "a__1_auc" in names) == (True, True)
    assert [objective_of(HEADS[:1]).name, objective_of(HEADS[1:2]).name, objective_of(HEADS).name] == [
        "auc",
        "rmse",
        "loss",
    ]


@pytest.mark.slow
def test_loss_that_a_run_learns_from_keeps_its_name_beside_scored_training_rows(
    prepared_heads: Path, tmp_path: Path, work: Path
) -> None:
    logged: list[dict[str, float]] = []

    class Epochs(Observer):
        def after_epoch(self, step: int, figures: Mapping[str, float]) -> None:
            logged.append(dict(figures))

    config = TrainConfig(model=MLPConfig(), batch_size=64, epochs=1, early_stopping_patience=0)
    for evaluate_train in (False, True):
        train(
            prepared_heads,
            tmp_path / "model",
            config,
            session=SessionConfig(evaluate_train=evaluate_train),
            tracking=TrackingConfig(directory=work, experiment="heads"),
            observers=lambda _: [Epochs()],
        )
    without, scored = logged
    assert scored["train_loss"] == without["train_loss"]
    assert "train_rating_auc" in scored
