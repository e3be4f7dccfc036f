"""From prepared data to a trained model on disk: fit, evaluate, stop, publish. What fits is behind `training.fit`."""

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd

from training import metrics
from training.checkpoints import (
    Best,
    Checkpoint,
    Checkpoints,
    Position,
    Reader,
    all_finite,
    checkpoint_path,
    refuse_to_replace,
)
from training.config import SessionConfig, TrainConfig
from training.fit import Array, Batches, Fit, fit_for
from training.loader.chunks import Ragged
from training.loader.splits import first_rows
from training.models import check_rows, learnt_from, model_named
from training.observers import Mark, Observer, Throughput, check_session, observers_of
from training.schedules import Schedule
from training.tracking import RunLog, TrackingConfig, tracked_run
from workflows.artifacts import publish, refuse_foreign
from workflows.errors import RanklineError
from workflows.feature_spec import FILE_NAME, FeatureSpec
from workflows.prepared import KIND as PREPARED
from workflows.prepared import PreparedData
from workflows.progress import SILENT, Progress
from workflows.trained import KIND, Backend, TrainedModel

_EVALUATION_BATCH_SIZE = 16_384
_AVERAGES_PER_EPOCH = 64  # a sample passes over all weights, tables included, so it is not taken in every step
_EXAMPLE_ROWS = 3
_LOOK_EVERY_S = 0.2
_SPLITS = {"valid": "validation", "train": "training"}


class OpenSplit(Protocol):
    """Opens a split of prepared data, as `training.fit.Fit.batches` does."""

    def __call__(
        self, prepared: Path, spec: FeatureSpec, split: str, batch_size: int, *, shuffle: bool, seed: int
    ) -> Batches:
        """The batches."""


def train(
    prepared: Path | PreparedData,
    output: Path,
    config: TrainConfig,
    *,
    session: SessionConfig | None = None,
    tracking: TrackingConfig,
    progress: Progress = SILENT,
    checkpoint: Path | None = None,
    open_split: OpenSplit | None = None,
    observers: Callable[[RunLog], Iterable[Observer]] = lambda _: (),
) -> TrainedModel:
    """Train a model, record the run, and publish the model.

    Seeds the framework's global generators. With checkpoints, a run that does not end can go on: the same model comes
    out, bit by bit, as without the break, on the same machine, unless the learning rate is changed on the way. The
    checkpoint goes when the model is there.

    Args:
        prepared: directory that `prepare` made, or what it is when it is loaded.
        output: where the trained model goes; an earlier one is replaced when the new one is whole. Its checkpoint is
            NAME-checkpoint beside it, and TensorBoard's files are in tensorboard/RUN_ID.
        config: choices about the run.
        session: how it is carried out; None for no checkpoints and no TensorBoard.
        tracking: where MLflow records it.
        progress: told about rows; the note has epoch, loss, rate and the last validation AUC.
        checkpoint: where the checkpoint is, which then stays; None for NAME-checkpoint, as long as the run lasts.
        open_split: opens splits in place of the framework's own loader with its defaults.
        observers: makes those that listen to the run, beside the usual ones.

    Raises:
        ArtifactError: `prepared` or the checkpoint is missing, damaged, or of something else; or `output` is.
        ConfigError: no such model or optimizer, options that contradict each other or the checkpoint's, or a
            checkpoint is there and not to be taken up.
        DataError: the validation data has one class only, or a file is damaged.
        MissingExtraError: TensorBoard is asked for and not installed.
        SpecError: the rows have histories that the model does not take, or lack them.
        RanklineError: the loss, a weight or a score is not finite any more; the message has the step, the batch and the
            last checkpoint.
    """
    session = session or SessionConfig()
    refuse_foreign(output, KIND)
    backend = model_named(config.model).backend
    data = prepared if isinstance(prepared, PreparedData) else PreparedData.load(prepared)
    spec, fingerprint = learnt_from(data.spec, config), data.manifest.fingerprint
    check_rows(spec, config.model)
    framework = fit_for(backend)
    framework.check(spec, config)
    place = checkpoint or checkpoint_path(output)
    resumed = _resumed(place, session, config, fingerprint)
    open_split = open_split or framework.batches
    batches = open_split(data.path, spec, "train", config.batch_size, shuffle=True, seed=config.seed)
    measured = {
        split: open_split(data.path, spec.for_scoring, split, _EVALUATION_BATCH_SIZE, shuffle=False, seed=0)
        for split in (("valid", "train") if session.evaluate_train else ("valid",))
    }
    num_steps = len(batches) * config.epochs
    kernels = framework.deterministic() if session.deterministic else nullcontext()
    check_session(session, backend, num_steps)  # the last check before a run exists
    with kernels, tracked_run(tracking, resumed_id=resumed.run_id if resumed else None) as log, ExitStack() as at_end:
        if not log.is_reopened:
            log.log_params(asdict(config) | _prepare_params(data))
        for split in ("train", "valid"):
            log.log_dataset(split, data.path / split, digest=fingerprint, num_rows=spec.source(split).num_rows)
        fit = framework(spec, config, num_steps=num_steps)
        num_parameters = dict(zip(("embedding", "other"), fit.num_parameters(), strict=True))
        log.log_params({f"num_parameters.{part}": count for part, count in num_parameters.items()})
        usual = observers_of(session, backend, output.with_name("tensorboard") / log.run_id, log)
        listening = [*usual, *observers(log)]
        for observer in listening:
            at_end.callback(observer.close)
        checkpoints = Checkpoints(
            place,
            session.checkpoint_every,
            config=config,
            fingerprint=fingerprint,
            run_id=log.run_id,
            last_step=resumed.position.step if resumed else None,
        )
        run = _Run(fit, Reader(batches), measured, spec, config, checkpoints, log, listening, progress)
        if resumed:
            run.take_up(resumed)
        best = run.run()
        details = {
            "run_id": log.run_id,
            "tracking_uri": log.uri,
            "backend": backend.name,
            "metrics": dict(best),
            "config": asdict(config),
            "num_parameters": num_parameters,
        }
        _publish(fit, output, backend, data, details, log)
        if checkpoint is None:
            checkpoints.remove()
    return TrainedModel.load(output)


def _publish(
    fit: Fit, output: Path, backend: Backend, data: PreparedData, details: dict[str, Any], log: RunLog
) -> None:
    """Put the trained model at `output`, and into MLflow with what it was made from."""
    made_from, best, spec = {PREPARED: data.manifest.fingerprint}, details["metrics"], data.spec.for_scoring
    with publish(output, KIND, made_from=made_from, details=details) as staging:
        fit.export(staging / backend.file_name)
        (staging / FILE_NAME).write_text(spec.to_yaml(), encoding="utf-8")
        model_id = log.log_model(
            staging / backend.file_name,
            spec,
            _example(data.path, spec),
            loader_module=fit.PYFUNC,
            packages=fit.PACKAGES,
        )
        log.log_metrics({f"model/{name}": value for name, value in best.items()}, int(best["epoch"]), model_id=model_id)
        log.log_artifact(staging / FILE_NAME)
        log.log_artifact(data.path / "workflow")


def _resumed(path: Path, session: SessionConfig, config: TrainConfig, fingerprint: str) -> Checkpoint | None:
    """The checkpoint to go on from, if one is asked for; or none is in the way of those to come."""
    if session.resume:
        checkpoint = Checkpoint.load(path)
        checkpoint.check(config, fingerprint)
        return checkpoint
    if session.checkpoint_every:
        refuse_to_replace(path)
    return None


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
        reader: Reader,
        measured: Mapping[str, Batches],
        spec: FeatureSpec,
        config: TrainConfig,
        checkpoints: Checkpoints,
        log: RunLog,
        observers: list[Observer],
        progress: Progress,
    ) -> None:
        self._fit, self._reader, self._measured, self._spec, self._config = fit, reader, measured, spec, config
        self._checkpoints, self._log, self._observers, self._progress = checkpoints, log, observers, progress
        self._look_every_s = 0.0 if any(observer.every_step for observer in observers) else _LOOK_EVERY_S
        self._schedule = Schedule.of(config, num_steps=len(reader) * config.epochs)
        self._throughput = Throughput()
        self._at, self._best = Position(), Best()
        self._auc: float | None = None  # of the last epoch, for the note

    def take_up(self, checkpoint: Checkpoint) -> None:
        """Go on where a checkpoint was written."""
        self._fit.restore(checkpoint.state)
        self._reader.seek(checkpoint.position, checkpoint.order)
        self._at, self._best = checkpoint.position, checkpoint.best
        if checkpoint.config["learning_rate"] != self._config.learning_rate:
            self._log.note(f"Since step {self._at.step} the learning rate is {self._config.learning_rate:g}.")

    def run(self) -> Mapping[str, float]:
        """Train until the last epoch or until it gets no better; the model then has the weights to keep.

        Returns:
            The metrics of these weights.
        """
        try:
            while not self._is_done():
                self._run_epoch()
        except KeyboardInterrupt:
            if (step := self._checkpoints.last_step) is not None:
                self._report(f"stopped; --resume goes on after step {step}")
            raise
        best = self._best.metrics
        self._fit.set_weights(self._best.weights)
        total = self._reader.num_rows * self._config.epochs
        self._progress.update(total, total, f"best epoch {best['epoch']:.0f}, valid AUC {best['valid_auc']:.4f}")
        return best

    def _is_done(self) -> bool:
        done, patience = self._at.epoch - 1, self._config.early_stopping_patience
        return done >= self._config.epochs or bool(
            patience and self._best.metrics and done - self._best.metrics["epoch"] >= patience
        )

    def _run_epoch(self) -> None:
        trained, valid = self._train_epoch(), self._evaluate("valid")
        if "train" in self._measured:
            trained |= self._evaluate("train")
        epoch = self._at.epoch
        self._log.log_metrics({**trained, **valid}, step=epoch)
        for observer in self._observers:
            observer.after_epoch(self._at.step, {**trained, **valid})
        patience, best = self._config.early_stopping_patience, self._best.metrics
        if not patience or not best or valid["valid_auc"] > best["valid_auc"]:
            weights = self._fit.weights() if patience or epoch == self._config.epochs else ()
            self._check_finite(weights)
            self._best = Best(metrics={**valid, "epoch": float(epoch)}, weights=weights)
        self._auc = valid["valid_auc"]
        self._at = Position(step=self._at.step, epoch=epoch + 1, loss_sum=self._fit.loss_sum())
        self._checkpoint()

    def _train_epoch(self) -> dict[str, float]:
        num_batches = len(self._reader)
        average_every = max(1, num_batches // _AVERAGES_PER_EPOCH)
        steps_before = self._at.step - self._at.batch
        began = self._throughput.mark()
        seen = _Seen(began, self._fit.loss_sum(), self._fit.added_sum())
        for batch, (inputs, labels) in enumerate(self._reader, start=self._at.batch + 1):
            step, is_last = steps_before + batch, batch == num_batches
            for observer in self._observers:
                observer.before_step(step)
            self._fit.step(inputs, labels)
            self._throughput.add(labels.shape[0])
            for observer in self._observers:
                observer.after_step(step, labels.shape[0])
            if is_last or batch % average_every == 0:
                self._fit.average()
            is_look = is_last or self._throughput.mark().active_s - seen.mark.active_s >= self._look_every_s
            is_due = self._checkpoints.is_due(step) and not is_last  # after the epoch there is one anyway
            if is_look or is_due:
                self._at = replace(self._at, step=step, batch=batch)
            if is_look:
                seen = self._look(began, seen)
            if is_due:
                self._checkpoint()
        return {"train_loss": self._epoch_loss(seen), "train_samples_per_s": self._throughput.since(began)}

    def _look(self, began: Mark, last: "_Seen") -> "_Seen":
        """Tell how it goes, if it still does; `last` is what was seen the last time."""
        now, at = _Seen(self._throughput.mark(), self._finite_loss_sum(), self._fit.added_sum()), self._at
        num_rows = now.mark.num_rows - last.mark.num_rows
        figures = {
            "train_loss": (now.loss_sum - last.loss_sum) / num_rows,
            "train_added_loss": (now.added_sum - last.added_sum) / num_rows,
            "learning_rate": self._config.learning_rate * float(self._schedule.factor(at.step - 1)),
        }
        if self._throughput.is_warm:
            figures["train_samples_per_s"] = self._throughput.since(last.mark)
        for observer in self._observers:
            observer.after_look(at.step, figures)
        auc = f", valid AUC {self._auc:.4f}" if self._auc is not None else ""
        rate, loss = self._throughput.since(began), self._epoch_loss(now)
        self._report(f"epoch {at.epoch}/{self._config.epochs}, {rate:,.0f} rows/s, loss {loss:.4f}{auc}")
        return now

    def _epoch_loss(self, seen: "_Seen") -> float:
        return (seen.loss_sum - self._at.loss_sum) / self._epoch_rows()

    def _epoch_rows(self) -> int:
        """Rows of the running epoch that were learnt from; only its last batch may be smaller than the others."""
        return min(self._at.batch * self._config.batch_size, self._reader.num_rows)

    def _report(self, note: str) -> None:
        rows_before, total = ((epochs * self._reader.num_rows) for epochs in (self._at.epoch - 1, self._config.epochs))
        self._progress.update(rows_before + self._epoch_rows(), total, note)

    def _checkpoint(self) -> None:
        if self._checkpoints.every:
            with self._throughput.pause():
                self._finite_loss_sum()
                state = self._fit.state()
                self._check_finite(state.values())
                self._checkpoints.write(self._at, self._reader.order, self._best, state)

    def _finite_loss_sum(self) -> float:
        loss_sum = self._fit.loss_sum()
        if not math.isfinite(loss_sum):
            step = self._fit.diverged_at() or self._at.step
            epoch, batch = divmod(step - 1, len(self._reader))
            place = f"step {step} (epoch {epoch + 1}, batch {batch + 1} of {len(self._reader)})"
            raise self._spoilt(f"the training loss is {loss_sum} since {place}")
        return loss_sum

    def _check_finite(self, weights: Iterable[Array]) -> None:
        """A network may hide weights that are no numbers: TensorFlow's ReLU turns NaN into 0."""
        if not all_finite(weights):
            raise self._spoilt(f"weights are not finite after step {self._at.step}")

    def _spoilt(self, what: str) -> RanklineError:
        remedy = f"Lower the learning rate (it is {self._config.learning_rate:g})"
        if (step := self._checkpoints.last_step) is not None:
            remedy += f", with --resume to go on from the last good checkpoint: {self._checkpoints.path}, step {step}"
        return RanklineError(f"{what}, expected finite numbers. {remedy}.")

    def _evaluate(self, split: str) -> dict[str, float]:
        batches, group_by = self._measured[split], self._spec.metadata.get("group_by")
        try:
            figures = metrics.evaluate(self._fit, batches, group_by=group_by, split=_SPLITS[split])
        except FloatingPointError:
            raise self._spoilt(f"the model's scores are not finite after step {self._at.step}") from None
        return {f"{split}_{name}": figure for name, figure in figures.items()}


class _Seen(NamedTuple):
    """What was found at a look.

    Attributes:
        mark: where the run was.
        loss_sum: what `Fit.loss_sum` was.
        added_sum: what `Fit.added_sum` was.
    """

    mark: Mark
    loss_sum: float
    added_sum: float


def _example(prepared: Path, spec: FeatureSpec) -> pd.DataFrame:
    rows = first_rows(prepared, spec, "valid", _EXAMPLE_ROWS)
    return pd.DataFrame({name: _plain(column) for name, column in rows.items()})


def _plain(column: "Array | Ragged") -> "list[Any] | Array":
    if isinstance(column, Ragged):
        return [part.tolist() for part in np.split(column.values, column.offsets[1:-1])]
    return column if column.ndim == 1 else column.tolist()
