"""From prepared data to a trained model on disk: fit, evaluate, stop, publish. What fits is behind `training.fit`."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd

from training import metrics
from training.agreement import check_same, shared_checkpoint
from training.checkpoints import (
    FREE,
    Best,
    Checkpoint,
    Checkpoints,
    Position,
    Reader,
    all_finite,
    checkpoint_path,
    refuse_to_replace,
)
from training.config import SessionConfig, TrainConfig, WorkersConfig
from training.elastic import RegroupError, Stay, moved
from training.fit import Array, Batches, Fit, fit_for
from training.loader.splits import first_rows
from training.loader.stream import Ragged
from training.models import check_rows, learnt_from, model_named
from training.observers import Mark, Observer, Throughput, check_session, observers_of
from training.schedules import Schedule
from training.splitting import Splitting, splitting
from training.table_parts import Kept, send_parts
from training.tracking import RunLog, SilentLog, TrackingConfig, tracked_run
from training.world import SOLO, World
from workflows.artifacts import Manifest, publish, refuse_foreign
from workflows.errors import RanklineError, WorkerLostError
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
    world: World = SOLO,
    workers: WorkersConfig | None = None,
    stay: Stay | None = None,
) -> TrainedModel:
    """Train a model, record the run, and publish the model.

    Seeds the framework's global generators. With checkpoints, a run that does not end can go on: the same model comes
    out, bit by bit, as without the break, on the same machine, unless the learning rate is changed on the way. The
    checkpoint goes when the model is there.

    Several workers call this with the same arguments. Worker 0 alone records, reports, observes, writes and publishes;
    the others return what it publishes by name, before it is there, and need none of its files. What is recorded are
    the choices and the figures of the whole run: rows per step of all workers, and so on.

    Args:
        prepared: directory that `prepare` made, or what it is when it is loaded.
        output: where the trained model goes; an earlier one is replaced when the new one is whole. Its checkpoint is
            NAME-checkpoint beside it, and TensorBoard's files are in tensorboard/RUN_ID.
        config: choices about the run, those of one worker where there are several.
        session: how it is carried out; None for no checkpoints and no TensorBoard.
        tracking: where MLflow records it.
        progress: told about rows; the note has epoch, loss, rate and the last validation AUC.
        checkpoint: where the checkpoint is, which then stays; None for NAME-checkpoint, as long as the run lasts.
        open_split: opens splits in place of the framework's own loader with its defaults; for several workers each
            opens its share, in as many batches as the others.
        observers: makes those that listen to the run, beside the usual ones.
        world: the workers that train the model together.
        workers: how they do; None for the defaults.
        stay: in this world, of an elastic run; it goes on from worker 0's commit, if that has one.

    Raises:
        ArtifactError: `prepared` or the checkpoint is missing, damaged, or of something else; or `output` is.
        ConfigError: no such model or optimizer, options that contradict each other or the checkpoint's, or a
            checkpoint is there and not to be taken up; or workers differ in their options, data or code.
        DataError: the validation data has one class only, or a file is damaged.
        MissingExtraError: TensorBoard is asked for and not installed.
        SpecError: the rows have histories that the model does not take, or lack them.
        WorkersError: another worker failed, died or does not answer.
        RegroupError: a new worker waits for the world of an elastic run to end.
        RanklineError: the loss, a weight or a score is not finite any more; the message has the step, the batch and the
            last checkpoint.
    """
    with world.together():
        workers, session = workers or WorkersConfig(), session or SessionConfig()
        laid_out_for = config.batch_size  # of one worker: a world of another size has the same tables
        config, is_first = workers.of_world(config, world.size), world.rank == 0
        if is_first:
            refuse_foreign(output, KIND)
        backend = model_named(config.model).backend
        data = prepared if isinstance(prepared, PreparedData) else PreparedData.load(prepared)
        spec, fingerprint = learnt_from(data.spec, config), data.manifest.fingerprint
        check_same(world, config, session, workers, fingerprint)
        check_rows(spec, config.model)
        framework = fit_for(backend)
        framework.check(spec, config, num_workers=world.size, splits_tables=workers.split_tables_share > 0)
        place = checkpoint or checkpoint_path(output)
        resumed = stay.commit if stay else None
        if is_first:
            resumed = resumed or _resumed(place, session)
            if resumed:  # worlds of an elastic run differ in the rows of a step
                resumed.check(config, fingerprint, free=(*FREE, "batch_size") if stay else FREE)
        resumed = shared_checkpoint(world, resumed, with_best=stay is not None)
        open_split = open_split or partial(framework.batches, rank=world.rank, size=world.size)
        num_rows = config.batch_size // world.size
        batches = open_split(data.path, spec, "train", num_rows, shuffle=True, seed=config.seed)
        measured = {
            split: open_split(data.path, spec.for_scoring, split, _EVALUATION_BATCH_SIZE, shuffle=False, seed=0)
            for split in (("valid", "train") if session.evaluate_train else ("valid",))
        }
        num_steps = len(batches) * config.epochs
        kernels = framework.deterministic() if session.deterministic else nullcontext()
        check_session(session, backend, num_steps)  # the last check before a run exists
        reader = Reader(batches)
        if stay and resumed:
            resumed = moved(resumed, reader)
        with kernels, _recorded(tracking, resumed, world, stay) as log, ExitStack() as at_end:
            if stay and is_first:
                stay.begin(log, resumed.position.step if resumed else 0)
            if not log.has_params:
                log.log_params(asdict(config) | _prepare_params(data) | _workers_params(workers, world))
            for split in ("train", "valid"):
                log.log_dataset(split, data.path / split, digest=fingerprint, num_rows=spec.source(split).num_rows)
            with splitting(Splitting.of(workers.split_tables_share, world)):
                fit = framework(spec, config, num_steps=num_steps, world=world, laid_out_for=laid_out_for)
            num_parameters = dict(zip(("embedding", "other"), fit.num_parameters(), strict=True))
            log.log_params({f"num_parameters.{part}": count for part, count in num_parameters.items()})
            listening: list[Observer] = []
            if is_first:
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
                num_batches=len(reader),
            )
            run = _Run(fit, reader, measured, spec, config, checkpoints, log, listening, progress, world, stay)
            run.begin(resumed)
            best = run.run()
            if stay:
                stay.end_training()
            details = {
                "run_id": log.run_id,
                "tracking_uri": log.uri,
                "backend": backend.name,
                "metrics": dict(best),
                "config": asdict(config),
                "num_parameters": num_parameters,
            }
            if not is_first:
                fit.send_tables()
                return _told(output, backend, details)
            _publish(fit, output, backend, data, details, log, has_example=not workers.split_tables_share)
            if checkpoint is None:
                checkpoints.remove()
        return TrainedModel.load(output)


def _told(output: Path, backend: Backend, details: Mapping[str, Any]) -> TrainedModel:
    """What worker 0 publishes, to a worker that may be on another machine."""
    return TrainedModel(
        path=output,
        backend=backend,
        run_id=details["run_id"],
        tracking_uri=details["tracking_uri"],
        metrics=details["metrics"],
        manifest=Manifest(kind=KIND, fingerprint="", details=details),
    )


@contextmanager
def _recorded(
    tracking: TrackingConfig, resumed: Checkpoint | None, world: World, stay: Stay | None
) -> Iterator[RunLog]:
    """The run in MLflow, which worker 0 opens; an elastic one goes on when its world ends."""
    resumed_id = resumed.run_id if resumed else stay.run_id if stay else None
    interim = (RegroupError, WorkerLostError) if stay else ()
    if world.rank == 0:
        with tracked_run(tracking, resumed_id=resumed_id, interim=interim) as log:
            world.all_of([log.run_id, log.uri])
            yield log
    else:
        run_id, uri = world.all_of(None)[0]
        yield SilentLog(run_id, uri)


def _publish(
    fit: Fit,
    output: Path,
    backend: Backend,
    data: PreparedData,
    details: dict[str, Any],
    log: RunLog,
    *,
    has_example: bool,
) -> None:
    """Put the trained model at `output`, and into MLflow with what it was made from."""
    made_from, best, spec = {PREPARED: data.manifest.fingerprint}, details["metrics"], data.spec.for_scoring
    with publish(output, KIND, made_from=made_from, details=details) as staging:
        fit.export(staging / backend.file_name)
        (staging / FILE_NAME).write_text(spec.to_yaml(), encoding="utf-8")
        model_id = log.log_model(
            staging / backend.file_name,
            spec,
            _example(data.path, spec) if has_example else None,
            loader_module=fit.PYFUNC,
            packages=fit.PACKAGES,
        )
        log.log_metrics({f"model/{name}": value for name, value in best.items()}, int(best["epoch"]), model_id=model_id)
        log.log_artifact(staging / FILE_NAME)
        log.log_artifact(data.path / "workflow")


def _resumed(path: Path, session: SessionConfig) -> Checkpoint | None:
    """The checkpoint to go on from, if one is asked for; or none is in the way of those to come."""
    if session.resume:
        return Checkpoint.load(path)
    if session.checkpoint_every:
        refuse_to_replace(path)
    return None


def _prepare_params(data: PreparedData) -> dict[str, Any]:
    """Where the data comes from and how it was split and encoded, beside the choices of training."""
    details = data.manifest.details
    choices = {"source": details.get("source"), **details.get("config", {})}
    return {f"prepare.{name}": value for name, value in choices.items()}


def _workers_params(workers: WorkersConfig, world: World) -> dict[str, Any]:
    """How several workers share the work; nothing of one that does all."""
    if world.size == 1 and not workers.is_elastic:
        return {}
    return {f"workers.{name}": value for name, value in (asdict(workers) | {"workers": world.size}).items()}


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
        world: World,
        stay: Stay | None,
    ) -> None:
        self._fit, self._reader, self._measured, self._spec, self._config = fit, reader, measured, spec, config
        self._checkpoints, self._log, self._observers = checkpoints, log, observers
        self._world, self._stay = world, stay
        self._progress = progress if world.rank == 0 else SILENT
        self._num_rows = int(world.sum([reader.num_rows])[0])  # per epoch, of all workers
        self._look_every_s = 0.0 if any(observer.every_step for observer in observers) else _LOOK_EVERY_S
        self._schedule = Schedule.of(config, num_steps=len(reader) * config.epochs)
        self._throughput = Throughput()
        self._at, self._best = Position(), Best()
        self._auc: float | None = None  # of the last epoch, for the note

    def begin(self, checkpoint: Checkpoint | None) -> None:
        """Begin anew, or go on where a checkpoint was written; all workers with the state of worker 0."""
        if checkpoint:
            self._fit.restore(checkpoint.state)
        self._fit.share_state()
        if not checkpoint:
            return
        self._reader.seek(checkpoint.position, checkpoint.order)
        best = checkpoint.best
        self._at, self._best = checkpoint.position, replace(best, weights=self._fit.shared_weights(best.weights))
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
        if self._best.weights:  # worker 0 publishes; the others lack them if they joined after that epoch
            self._fit.set_weights(self._best.weights)
        total = self._num_rows * self._config.epochs
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
            num_rows = labels.shape[0] * self._world.size
            self._throughput.add(num_rows)
            for observer in self._observers:
                observer.after_step(step, num_rows)
            if is_last or batch % average_every == 0:
                self._fit.average()
            is_look = is_last or self._throughput.mark().active_s - seen.mark.active_s >= self._look_every_s
            is_due = self._checkpoints.is_due(step) or (self._stay is not None and self._stay.is_due(step))
            is_due = is_due and not is_last  # after the epoch there is one anyway
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
        return min(self._at.batch * self._config.batch_size, self._num_rows)

    def _report(self, note: str) -> None:
        rows_before, total = ((epochs * self._num_rows) for epochs in (self._at.epoch - 1, self._config.epochs))
        self._progress.update(rows_before + self._epoch_rows(), total, note)

    def _checkpoint(self) -> None:
        """Keep the run as it is: on disk where that is due, and in memory if it is elastic."""
        is_after_epoch = self._at.batch == 0
        on_disk = self._checkpoints.is_due(self._at.step) or (is_after_epoch and self._checkpoints.every > 0)
        if not on_disk and self._stay is None:
            return
        with self._throughput.pause():
            state = self._fit.state()
            if on_disk:
                self._finite_loss_sum()
                self._check_finite(state.values())
            made = self._checkpoints.made(self._at, self._reader.order, self._best, state)
            if on_disk and self._world.rank == 0:
                self._checkpoints.write(made)
            elif on_disk:
                send_parts([*state.values(), *self._best.weights])
            if self._stay is not None:
                self._stay.keep(made)

    def _finite_loss_sum(self) -> float:
        loss_sum = self._fit.loss_sum()
        if not math.isfinite(loss_sum):
            step = self._fit.diverged_at() or self._at.step
            epoch, batch = divmod(step - 1, len(self._reader))
            place = f"step {step} (epoch {epoch + 1}, batch {batch + 1} of {len(self._reader)})"
            raise self._spoilt(f"the training loss is {loss_sum} since {place}")
        return loss_sum

    def _check_finite(self, weights: Iterable[Kept]) -> None:
        """A network may hide weights that are no numbers: TensorFlow's ReLU turns NaN into 0."""
        if not all_finite(weights):
            raise self._spoilt(f"weights are not finite after step {self._at.step}")

    def _spoilt(self, what: str) -> RanklineError:
        remedy = f"Lower the learning rate (it is {self._config.learning_rate:g})"
        if (step := self._checkpoints.last_step) is not None:
            remedy += f", with --resume to go on from the last good checkpoint: {self._checkpoints.path}, step {step}"
        return RanklineError(f"{what}, expected finite numbers. {remedy}.")

    def _evaluate(self, split: str) -> dict[str, float]:
        batches, group_by = self._measured[split], self._spec.metadata.group_by
        try:
            figures = metrics.evaluate(self._fit, batches, group_by=group_by, split=_SPLITS[split], world=self._world)
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
