"""From prepared data to a trained model on disk: fit, evaluate, stop, publish. What fits is behind `training.fit`."""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from training import metrics
from training.config import TrainConfig
from training.fit import Array, Batches, Fit, fit_for
from training.loader.chunks import Ragged
from training.loader.splits import first_rows
from training.models import model_named
from training.tracking import RunLog, TrackingConfig, tracked_run
from workflows.artifacts import publish, refuse_foreign
from workflows.errors import DataError, RanklineError
from workflows.feature_spec import FILE_NAME, FeatureSpec
from workflows.prepared import KIND as PREPARED
from workflows.prepared import PreparedData
from workflows.progress import SILENT, Progress
from workflows.trained import KIND, TrainedModel

_EVALUATION_BATCH_SIZE = 16_384
_AVERAGES_PER_EPOCH = 64  # a sample passes over all weights, tables included, so it is not taken in every step
_EXAMPLE_ROWS = 3
_REPORT_EVERY_S = 0.2


def train(
    prepared: Path, output: Path, config: TrainConfig, *, tracking: TrackingConfig, progress: Progress = SILENT
) -> TrainedModel:
    """Train a model, record the run, and publish the model.

    Seeds the framework's global generators.

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
    backend = model_named(config.model).backend
    data = PreparedData.load(prepared)
    spec, fingerprint = data.spec, data.manifest.fingerprint
    framework = fit_for(backend)
    framework.check(spec, config)  # before a run exists
    with tracked_run(tracking) as run:
        run.log_params(asdict(config) | _prepare_params(data))
        for split in ("train", "valid"):
            run.log_dataset(split, prepared / split, digest=fingerprint, num_rows=spec.source(split).num_rows)
        batches = framework.batches(prepared, spec, "train", config.batch_size, shuffle=True, seed=config.seed)
        valid = framework.batches(prepared, spec, "valid", _EVALUATION_BATCH_SIZE, shuffle=False, seed=0)
        fit = framework(spec, config, num_steps=len(batches) * config.epochs)
        best = _Run(fit, batches, valid, spec.metadata.get("group_by"), config, run, progress).run()
        details = {
            "run_id": run.run_id,
            "tracking_uri": run.uri,
            "backend": backend.name,
            "metrics": best,
            "config": asdict(config),
        }
        with publish(output, KIND, made_from={PREPARED: fingerprint}, details=details) as staging:
            fit.export(staging / backend.file_name)
            (staging / FILE_NAME).write_text(spec.to_yaml(), encoding="utf-8")
            model_id = run.log_model(
                staging / backend.file_name,
                spec,
                _example(prepared, spec),
                loader_module=fit.PYFUNC,
                packages=fit.PACKAGES,
            )
            best_metrics = {f"model/{name}": figure for name, figure in best.items()}
            run.log_metrics(best_metrics, int(best["epoch"]), model_id=model_id)
            run.log_artifact(staging / FILE_NAME)
            run.log_artifact(prepared / "workflow")
    return TrainedModel.load(output)


def _prepare_params(data: PreparedData) -> dict[str, Any]:
    """Where the data comes from and how it was split and encoded, beside the choices of training."""
    details = data.manifest.details
    choices = {"source": details.get("source"), **details.get("config", {})}
    return {f"prepare.{name}": value for name, value in choices.items()}


class _Run:
    """Epochs of one model, and how good it is after each."""

    def __init__(
        self,
        fit: Fit,
        batches: Batches,
        valid: Batches,
        group: str | None,
        config: TrainConfig,
        log: RunLog,
        progress: Progress,
    ) -> None:
        self._fit, self._batches, self._valid, self._group = fit, batches, valid, group
        self._config, self._log, self._progress = config, log, progress
        self._average_every = max(1, len(batches) // _AVERAGES_PER_EPOCH)
        self._note = ""

    def run(self) -> dict[str, float]:
        """Train until the last epoch or until it gets no better; the model then has the weights to keep.

        Returns:
            The metrics of these weights.
        """
        patience = self._config.early_stopping_patience
        best: dict[str, float] = {}
        best_weights: Sequence[Array] = []
        for epoch in range(1, self._config.epochs + 1):
            trained, valid = self._train_epoch(epoch), self._evaluate()
            self._log.log_metrics({**trained, **valid}, step=epoch)
            self._note = f", valid AUC {valid['valid_auc']:.4f}"
            if not patience or not best or valid["valid_auc"] > best["valid_auc"]:
                best = {**valid, "epoch": float(epoch)}
                best_weights = self._fit.weights() if patience or epoch == self._config.epochs else []
            if patience and epoch - best["epoch"] >= patience:
                break
        self._fit.set_weights(best_weights)
        total = self._batches.num_rows * self._config.epochs
        self._progress.update(total, total, f"best epoch {best['epoch']:.0f}, valid AUC {best['valid_auc']:.4f}")
        return best

    def _train_epoch(self, epoch: int) -> dict[str, float]:
        num_rows = self._batches.num_rows
        rows_before, total = (epoch - 1) * num_rows, num_rows * self._config.epochs
        loss_before = self._fit.loss_sum()
        started = reported = time.perf_counter()
        done, loss = 0, math.nan
        for number, (inputs, labels) in enumerate(self._batches, start=1):
            self._fit.step(inputs, labels)
            if number % self._average_every == 0 or number == len(self._batches):
                self._fit.average()
            done += labels.shape[0]
            now = time.perf_counter()
            if now - reported >= _REPORT_EVERY_S or number == len(self._batches):
                reported, loss = now, (self._fit.loss_sum() - loss_before) / done
                self._check_loss(loss, epoch)
                note = f"epoch {epoch}/{self._config.epochs}, {done / (now - started):,.0f} rows/s, loss {loss:.4f}"
                self._progress.update(rows_before + done, total, note + self._note)
        return {"train_loss": loss, "train_rows_per_s": done / (time.perf_counter() - started)}

    def _check_loss(self, loss: float, epoch: int) -> None:
        if not math.isfinite(loss):
            raise RanklineError(
                f"the training loss is {loss} in epoch {epoch}, expected a finite number. "
                f"Lower the learning rate (it is {self._config.learning_rate:g})."
            )

    def _evaluate(self) -> dict[str, float]:
        """AUC and logloss on the validation data, and GAUC where the spec names a column to `group_by`."""
        scores, labels, groups = [], [], []
        with self._fit.averaged():
            for inputs, label in self._valid:
                scores.append(self._fit.score(inputs))
                labels.append(self._fit.array(label))
                if self._group is not None and self._group in inputs:
                    groups.append(self._fit.array(inputs[self._group]))
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


def _example(prepared: Path, spec: FeatureSpec) -> pd.DataFrame:
    rows = first_rows(prepared, spec, "valid", _EXAMPLE_ROWS)
    return pd.DataFrame({name: _plain(column) for name, column in rows.items()})


def _plain(column: "Array | Ragged") -> list[Any]:
    if isinstance(column, Ragged):
        return [part.tolist() for part in np.split(column.values, column.offsets[1:-1])]
    return list(column) if column.ndim == 1 else column.tolist()
