"""From prepared data to a trained model on disk: fit, evaluate, stop, publish."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import tensorflow as tf

from training import metrics, saved_model
from training.config import TrainConfig
from training.loader.chunks import ChunkStream, Ragged
from training.loader.tensorflow import KerasSequenceLoader
from training.models import model_builder
from training.optimizers import make_optimizer
from training.tracking import RunLog, TrackingConfig, tracked_run
from workflows.artifacts import publish, refuse_foreign
from workflows.errors import DataError, RanklineError
from workflows.feature_spec import FILE_NAME, FeatureSpec
from workflows.prepared import KIND as PREPARED
from workflows.prepared import PreparedData
from workflows.progress import SILENT, Progress
from workflows.trained import KIND, SAVED_MODEL, TrainedModel

_EVALUATION_BATCH_SIZE = 16_384
_PARTS_PER_CHUNK = 8
_AVERAGES_PER_EPOCH = 64
_EXAMPLE_ROWS = 3
_REPORT_EVERY_S = 0.2


def train(
    prepared: Path, output: Path, config: TrainConfig, *, tracking: TrackingConfig, progress: Progress = SILENT
) -> TrainedModel:
    """Train a model, record the run, and publish the model.

    Seeds Python's, NumPy's and TensorFlow's global generators.

    Args:
        prepared: directory that `prepare` made.
        output: where the trained model goes; an earlier one is replaced when the new one is whole.
        config: choices about the run.
        tracking: where MLflow records it.
        progress: told about rows; the note has epoch, loss, rate and the last validation AUC.

    Raises:
        ArtifactError: `prepared` is missing or damaged, or `output` is something else.
        ConfigError: no such model or optimizer, or options that contradict each other.
        DataError: the validation data has one class only, or a file is damaged.
        RanklineError: the loss is not a number any more.
    """
    refuse_foreign(output, KIND)
    model_builder(config.model), _make_optimizer(config, num_steps=1)  # unknown names are refused before a run exists
    data = PreparedData.load(prepared)
    spec, fingerprint = data.spec, data.manifest.fingerprint
    tf.keras.utils.set_random_seed(config.seed)
    with tracked_run(tracking) as run:
        run.log_params(asdict(config) | _prepare_params(data))
        for split in ("train", "valid"):
            run.log_dataset(split, prepared / split, digest=fingerprint, num_rows=spec.source(split).num_rows)
        fit = _Fit(prepared, spec, config, run, progress)
        best = fit.run()
        details = {"run_id": run.run_id, "tracking_uri": run.uri, "metrics": best, "config": asdict(config)}
        with publish(output, KIND, made_from={PREPARED: fingerprint}, details=details) as staging:
            saved_model.export_saved_model(fit.model, spec, staging / SAVED_MODEL)
            (staging / FILE_NAME).write_text(spec.to_yaml(), encoding="utf-8")
            _log_model(run, staging, prepared, spec, best)
    return TrainedModel.load(output)


def _prepare_params(data: PreparedData) -> dict[str, Any]:
    """Where the data comes from and how it was split and encoded, beside the choices of training."""
    details = data.manifest.details
    choices = {"source": details.get("source"), **details.get("config", {})}
    return {f"prepare.{name}": value for name, value in choices.items()}


class _Fit:
    """One model being fitted."""

    def __init__(self, prepared: Path, spec: FeatureSpec, config: TrainConfig, run: RunLog, progress: Progress) -> None:
        self._config, self._run, self._progress = config, run, progress
        self._batches = _loader(prepared, spec, "train", config.batch_size, shuffle=True, seed=config.seed)
        self._validation = _Validation(prepared, spec)
        self.model = model_builder(config.model)(spec, config)
        self._optimizer = _make_optimizer(config, len(self._batches) * config.epochs)
        self._optimizer.build(self.model.trainable_variables)
        self._average = _Average(self.model.trainable_variables) if config.weight_averaging else None
        self._average_every = max(1, len(self._batches) // _AVERAGES_PER_EPOCH)
        self._loss_sum = tf.Variable(0.0, dtype=tf.float64)
        inputs = {name: tf.TensorSpec((None, 1), tensor.dtype, name) for name, tensor in self.model.input.items()}
        labels = tf.TensorSpec((None, 1), tf.float32)
        self._step = tf.function(self._train_batch, input_signature=[inputs, labels], autograph=False)
        self._score = tf.function(
            lambda batch: self.model(batch, training=False), input_signature=[inputs], autograph=False
        )
        self._note = ""

    def run(self) -> dict[str, float]:
        """Train until the last epoch or until it gets no better; the model then has the weights to keep.

        Returns:
            The metrics of these weights.
        """
        patience = self._config.early_stopping_patience
        best: dict[str, float] = {}
        best_weights: list[Any] = []
        for epoch in range(1, self._config.epochs + 1):
            trained, valid = self._train_epoch(epoch), self._evaluate()
            self._run.log_metrics({**trained, **valid}, step=epoch)
            self._note = f", valid AUC {valid['valid_auc']:.4f}"
            if not patience or not best or valid["valid_auc"] > best["valid_auc"]:
                best = {**valid, "epoch": float(epoch)}
                best_weights = self._weights() if patience or epoch == self._config.epochs else []
            if patience and epoch - best["epoch"] >= patience:
                break
        for variable, value in zip(self.model.trainable_variables, best_weights, strict=True):
            variable.assign(value)
        total = self._batches.num_rows * self._config.epochs
        self._progress.update(total, total, f"best epoch {best['epoch']:.0f}, valid AUC {best['valid_auc']:.4f}")
        return best

    def _train_epoch(self, epoch: int) -> dict[str, float]:
        num_rows = self._batches.num_rows
        rows_before, total = (epoch - 1) * num_rows, num_rows * self._config.epochs
        self._loss_sum.assign(0.0)
        started = reported = time.perf_counter()
        done = 0
        for number, (inputs, labels) in enumerate(self._batches, start=1):
            self._step(inputs, labels)
            if self._average and (number % self._average_every == 0 or number == len(self._batches)):
                self._average.update()
            done += labels.shape[0]
            now = time.perf_counter()
            if now - reported >= _REPORT_EVERY_S or number == len(self._batches):
                reported, loss = now, self._mean_loss(done, epoch)
                note = f"epoch {epoch}/{self._config.epochs}, {done / (now - started):,.0f} rows/s, loss {loss:.4f}"
                self._progress.update(rows_before + done, total, note + self._note)
        return {"train_loss": self._mean_loss(done, epoch), "train_rows_per_s": done / (time.perf_counter() - started)}

    def _train_batch(self, inputs: Mapping[str, Any], labels: Any) -> None:
        with tf.GradientTape() as tape:
            scores = self.model(inputs, training=True)
            loss = tf.reduce_mean(tf.keras.losses.binary_crossentropy(labels, scores))
            objective = tf.add_n([loss, *self.model.losses])
        variables = self.model.trainable_variables
        self._optimizer.apply_gradients(zip(tape.gradient(objective, variables), variables))  # noqa: B905  (Keras)
        self._loss_sum.assign_add(tf.cast(loss, tf.float64) * tf.cast(tf.shape(labels)[0], tf.float64))

    def _mean_loss(self, num_rows: int, epoch: int) -> float:
        loss = float(self._loss_sum.numpy()) / num_rows
        if not math.isfinite(loss):
            raise RanklineError(
                f"the training loss is {loss} in epoch {epoch}, expected a finite number. "
                f"Lower the learning rate (it is {self._config.learning_rate:g})."
            )
        return loss

    def _evaluate(self) -> dict[str, float]:
        if self._average is None:
            return self._validation.metrics(self._score)
        self._average.swap()
        try:
            return self._validation.metrics(self._score)
        finally:
            self._average.swap()

    def _weights(self) -> list[Any]:
        source = self._average.values if self._average else self.model.trainable_variables
        return [variable.numpy() for variable in source]


class _Average:
    """Average of the weights over a run, in which late ones count more.

    Polynomial-decay averaging (Shamir & Zhang 2013, "Stochastic Gradient Descent for Non-smooth Optimization", section
    4): the t-th sample enters with share (η + 1) / (t + η), η = 0.5. A sample passes over all weights, tables
    included, so it is taken a fixed number of times per epoch and not in every step.
    """

    def __init__(self, variables: list[Any]) -> None:
        self._variables = variables
        self.values = [tf.Variable(variable, trainable=False) for variable in variables]
        self._count = tf.Variable(0.0, trainable=False)
        self.update = tf.function(self._update, autograph=False)
        self.swap = tf.function(self._swap, autograph=False)

    def _update(self) -> None:
        share = 1.5 / (self._count.assign_add(1.0) + 0.5)
        for value, variable in zip(self.values, self._variables, strict=True):
            value.assign_add(share * (variable - value))

    def _swap(self) -> None:
        for value, variable in zip(self.values, self._variables, strict=True):
            kept = tf.identity(variable)
            variable.assign(value)
            value.assign(kept)


class _Validation:
    """The validation split, and how well a model does on it."""

    def __init__(self, prepared: Path, spec: FeatureSpec) -> None:
        self._loader = _loader(prepared, spec, "valid", _EVALUATION_BATCH_SIZE, shuffle=False, seed=0)
        self._group = spec.metadata.get("group_by")

    def metrics(self, score: Callable[[Mapping[str, Any]], Any]) -> dict[str, float]:
        """AUC and logloss, and GAUC where the spec's metadata names a column to `group_by`."""
        scores, labels, groups = [], [], []
        for inputs, label in self._loader:
            scores.append(score(inputs).numpy()[:, 0])
            labels.append(label.numpy()[:, 0])
            if self._group in inputs:
                groups.append(inputs[self._group].numpy()[:, 0])
        label, scored = np.concatenate(labels), np.concatenate(scores)
        if not np.isfinite(scored).all():
            raise RanklineError("the model's scores are not finite any more. Lower the learning rate.")
        try:
            figures = {"valid_auc": metrics.exact_auc(label, scored), "valid_logloss": metrics.logloss(label, scored)}
        except ValueError as error:
            raise DataError(f"the validation data cannot be measured: {error} Prepare a larger share of it.") from None
        if groups and not math.isnan(gauc := metrics.gauc(label, scored, np.concatenate(groups))):
            figures["valid_gauc"] = gauc
        return figures


def _loader(
    prepared: Path, spec: FeatureSpec, split: str, batch_size: int, *, shuffle: bool, seed: int
) -> KerasSequenceLoader:
    source = spec.source(split)
    loader = KerasSequenceLoader(
        [prepared / name for name in source.files],
        batch_size,
        [spec.label.name],
        cat_names=[feature.name for feature in spec.categorical],
        cont_names=[feature.name for feature in spec.continuous],
        shuffle=shuffle,
        parts_per_chunk=_PARTS_PER_CHUNK,
        seed=seed,
    )
    if not loader.num_rows:
        raise DataError(f"the {split} data in {prepared} has no rows. Prepare it from more data.")
    return loader


def _make_optimizer(config: TrainConfig, num_steps: int) -> Any:
    return make_optimizer(
        config.optimizer,
        learning_rate=_schedule(config, num_steps),
        batch_size=config.batch_size,
        table_lr_scale=config.table_lr_scale,
        weight_decay=config.weight_decay,
    )


def _schedule(config: TrainConfig, num_steps: int) -> Any:
    if config.learning_rate_decay == "none":
        return config.learning_rate
    if config.learning_rate_decay == "cosine":
        return tf.keras.optimizers.schedules.CosineDecay(config.learning_rate, num_steps)
    return tf.keras.optimizers.schedules.PolynomialDecay(config.learning_rate, num_steps, end_learning_rate=0.0)


def _log_model(run: RunLog, staging: Path, prepared: Path, spec: FeatureSpec, best: Mapping[str, float]) -> None:
    model_id = run.log_model(staging / SAVED_MODEL, spec, _example(prepared, spec), loader_module=saved_model.__name__)
    run.log_metrics({f"model/{name}": figure for name, figure in best.items()}, int(best["epoch"]), model_id=model_id)
    run.log_artifact(staging / FILE_NAME)
    run.log_artifact(prepared / "workflow")


def _example(prepared: Path, spec: FeatureSpec) -> pd.DataFrame:
    names = [feature.name for feature in (*spec.categorical, *spec.continuous)]
    files = [prepared / name for name in spec.source("valid").files]
    stream = ChunkStream(files, names, batch_size=_EXAMPLE_ROWS, shuffle=False)
    batch = next(stream.batches())
    return pd.DataFrame({name: _plain(column) for name, column in batch.items()})


def _plain(column: "npt.NDArray[Any] | Ragged") -> list[Any]:
    if isinstance(column, Ragged):
        return [part.tolist() for part in np.split(column.values, np.cumsum(column.nnzs)[:-1])]
    return list(column)
