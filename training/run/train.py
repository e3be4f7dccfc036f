"""Training, from prepared data to a published model: validate, open the data, record the run, train, publish.

The epochs are in `rankline.training.run.loop`; each framework's trainers implement `rankline.training.trainers.base`.
"""

import gc
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from rankline.training.config.train import SessionConfig, TrainConfig
from rankline.training.data.loader.memory import available_bytes
from rankline.training.data.open_split import first_rows as first_rows_of
from rankline.training.distributed.communicator import SOLO, Communicator
from rankline.training.distributed.config import WorkersConfig
from rankline.training.evaluation import key_figures, try_metrics
from rankline.training.evaluation.scored_rows import FirstRows
from rankline.training.evaluation.validation_scores import FOLDER, ValidationScores
from rankline.training.models import check_memory, check_rows
from rankline.training.models.auto import left_out
from rankline.training.models.frameworks import Framework
from rankline.training.run.checkpoint import (
    CHANGEABLE_ON_RESUME,
    Checkpoint,
    Checkpoints,
    Generation,
    Reader,
    check_same,
    checkpoint_path,
    plain,
    refuse_to_replace,
    resized,
    shared_checkpoint,
)
from rankline.training.run.loop import INNER, OpenData, Phase, TrainingRun, inner_spec
from rankline.training.run.observers import Observer, Observers, TrialPruned, check_session, observers_of
from rankline.training.tracking import RunLog, TrackingConfig, code_version, tracked_run
from rankline.training.trainers import trainer_for
from rankline.training.trainers.base import Array, Batches, Trainer
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.progress import SILENT, Progress
from rankline.workflows.core.tracking_uri import kept_uri
from rankline.workflows.preprocess.prepared_data import KIND as PREPARED
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.schema.feature_spec import FILE_NAME, FeatureSpec
from rankline.workflows.schema.model_artifact import KIND, TrainedModel
from rankline.workflows.schema.ragged import Ragged
from rankline.workflows.storage.artifacts import Manifest, publish, refuse_foreign

_EVALUATION_BATCH_SIZE = 16_384
_LONG_ROWS_EVALUATION_BATCH_SIZE = 4_096  # 16,384 rows with histories take 2.4 GB
_NUM_EXAMPLE_ROWS = 3
_SHORT_DIGEST = 12  # characters, as in messages
_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


def train(
    prepared: Path | PreparedData,
    output: Path,
    config: TrainConfig,
    *,
    session: SessionConfig | None = None,
    tracking: TrackingConfig,
    progress: Progress = SILENT,
    checkpoint: Path | None = None,
    open_split: Callable[..., Batches] | None = None,
    observers: Callable[[RunLog], Iterable[Observer]] = lambda _: (),
    world: Communicator = SOLO,
    workers: WorkersConfig | None = None,
    generation: Generation | None = None,
) -> TrainedModel:
    """Train a model, record the run, and publish the model.

    Seeds the framework's global random generators. With checkpoints, an interrupted run can resume and then produces,
    on the same machine, exactly the model of an uninterrupted run, unless the learning rate changes. The checkpoint is
    deleted once the model is published.

    With several workers, each calls this function with the same arguments. Only worker 0 records, reports, notifies
    observers, and writes and publishes the model; the other workers return a reference to the published model, possibly
    before it exists, and need none of its files. The recorded options and metrics describe the whole run, such as the
    rows per step of all workers.

    Args:
        prepared: directory written by `prepare`, or the loaded artifact.
        output: directory of the trained model; an existing model is replaced once the new one is complete. The
            checkpoint is NAME-checkpoint next to it, and TensorBoard's files are in tensorboard/RUN_ID.
        config: the model and how to train it; `batch_size` is per worker.
        session: how to run; None disables TensorBoard, and checkpoints too unless the run is elastic.
        tracking: MLflow store and experiment of the run.
        progress: receives the number of rows, and a note with epoch, loss, throughput and the last AUC.
        checkpoint: path of the checkpoint, which is then kept; None uses NAME-checkpoint and deletes it after the run.
        open_split: opens splits instead of the framework's default loader. With several workers each opens its share,
            and all shares must have the same number of batches.
        observers: returns additional observers of the run.
        world: the workers that train the model together.
        workers: how the workers split the work; None for the defaults.
        generation: generation of an elastic run, which continues from the last checkpoint of earlier ones; None
            otherwise.
    """
    session = session or SessionConfig()
    with world.propagating_errors(), _visible_devices(session):
        job = _checked(prepared, output, config, session, workers or WorkersConfig(), world, checkpoint)
        opening = partial(
            _opened,
            job,
            open_split or partial(job.trainer_type.batches, global_rank=world.rank, global_size=world.size),
        )
        resumed = _resumed(job, generation)
        inner = opening(inner_spec(job.spec, job.data)) if job.config.chooses_inside else None
        data = opening(job.spec)
        check_session(job.session, job.framework, len(data.train) * job.config.num_epochs)  # last check before the run
        kernels = job.trainer_type.deterministic() if job.session.deterministic else nullcontext()
        # Inside `_recorded`, so that the run's status reflects its end: another worker may report the error first.
        with (
            kernels,
            _recorded(job, tracking, resumed, generation) as log,
            world.propagating_errors(),
            _observed(job, log, observers, len(data.train)) as observer,
        ):
            if generation:
                _log_generation(job, log, generation, resumed)
            fitting = _Fitting(job, log, observer, progress if job.is_first else SILENT, resumed)
            chosen: Mapping[str, float] = resumed.chosen if resumed else {}
            if inner and not chosen:
                chosen = fitting.choose(inner, rows_after=data.train.num_rows * world.size * job.config.num_epochs)
            trainer, metrics, first_rows = fitting.fit(data, chosen)
            scored = first_rows.gathered(world) if first_rows else None
            counts = _num_parameters(trainer)
            details = {
                "run_id": log.run_id,
                "tracking_uri": kept_uri(log.uri, job.output),
                "format": job.framework.format,
                "metrics": dict(metrics),
                "chosen": dict(chosen),
                "config": job.config.to_dict(),
                "num_parameters": counts,
            }
            if compared := trainer.findings():
                details["compared"] = compared
            if not job.is_first:
                return TrainedModel.described(job.output, Manifest(kind=KIND, fingerprint="", details=details))
            _log_counts(log, counts)
            if compared:
                _log_compared(log, compared)
            _publish(job, trainer, details, log)
            if scored:
                labels, scores = scored
                groups = job.data.heldout_groups(len(labels))
                _log_validation(ValidationScores(heads=data.heads, labels=labels, scores=scores, groups=groups), log)
        if checkpoint is None:
            fitting.remove_checkpoint()
        return TrainedModel.load(output)


def run_trial(
    prepared: PreparedData,
    config: TrainConfig,
    *,
    tracking: TrackingConfig,
    progress: Progress = SILENT,
    observers: Callable[[RunLog], Iterable[Observer]] = lambda _: (),
) -> Mapping[str, float]:
    """Train on all but the held-out training rows and return the metrics on the holdout. Nothing is published.

    This compares configurations without touching the validation rows, which can then measure the best one.

    Returns:
        Metrics and number (`epoch`) of the best epoch; empty if an observer ended the run early.
    """
    job = _checked(
        prepared, tracking.directory / "rehearsal", config, SessionConfig(), WorkersConfig(), SOLO, checkpoint=None
    )
    data = _opened(job, job.trainer_type.batches, inner_spec(job.spec, job.data))
    with _recorded(job, tracking, None, None) as log, _observed(job, log, observers, len(data.train)) as observer:
        try:
            return _Fitting(job, log, observer, progress, None).choose(data, observer=observer)
        except TrialPruned:
            log.set_tags({"pruned": "true"})
            return {}


@contextmanager
def _visible_devices(session: SessionConfig) -> Iterator[None]:
    """Hide GPUs in the block if the run uses the CPU. Both frameworks look for GPUs when they first need a device."""
    if session.device != "cpu":
        yield
        return
    before = os.environ.get(_VISIBLE_DEVICES)
    os.environ[_VISIBLE_DEVICES] = ""
    try:
        yield
    finally:
        del os.environ[_VISIBLE_DEVICES]
        if before is not None:
            os.environ[_VISIBLE_DEVICES] = before


@dataclass(frozen=True, kw_only=True)
class _Job:
    """A validated request to train.

    Attributes:
        output: where to put the trained model.
        checkpoint: where to put the checkpoint.
        config: options of the whole run; `batch_size` counts the rows of all workers.
        worker_batch_size: rows per step of one worker before `WorkersConfig` changed it. The layout of embedding tables
            depends on it, so that the layout is the same for any number of workers.
        spec: features to train on.
    """

    output: Path
    checkpoint: Path
    config: TrainConfig
    worker_batch_size: int
    session: SessionConfig
    workers: WorkersConfig
    world: Communicator
    data: PreparedData
    spec: FeatureSpec
    framework: Framework
    trainer_type: type[Trainer]

    @property
    def is_first(self) -> bool:
        return self.world.rank == 0

    @property
    def fingerprint(self) -> str:
        return self.data.manifest.fingerprint

    @property
    def checkpoint_every(self) -> int:
        """Number of steps between checkpoints, or 0 for none. Elastic runs always write checkpoints."""
        return self.session.checkpoint_every or (self.workers.commit_every if self.workers.is_elastic else 0)


def _checked(
    prepared: Path | PreparedData,
    output: Path,
    config: TrainConfig,
    session: SessionConfig,
    workers: WorkersConfig,
    world: Communicator,
    checkpoint: Path | None,
) -> _Job:
    if world.rank == 0:
        refuse_foreign(output, KIND)
    framework = config.model.framework
    data = prepared if isinstance(prepared, PreparedData) else PreparedData.load(prepared)
    whole = workers.of_world(config, world.size)
    job = _Job(
        output=output,
        checkpoint=checkpoint or checkpoint_path(output),
        config=whole,
        worker_batch_size=config.batch_size,
        session=session,
        workers=workers,
        world=world,
        data=data,
        spec=whole.model.training_view(data.spec),
        framework=framework,
        trainer_type=trainer_for(framework),
    )
    check_same(world, whole, session, workers, job.fingerprint)
    check_rows(job.spec, whole.model)
    check_memory(job.spec, whole.model, copies=whole.copies_of_weights, num_bytes=available_bytes())
    try_metrics(job.spec.heads)
    if session.device == "cuda" and not job.trainer_type.sees_gpu():
        raise ConfigError(
            f"device is 'cuda', but {framework.name} finds no GPU. Omit device, or run nvidia-smi and check that your "
            f"{framework.name} was built with CUDA."
        )
    if session.device == "cpu" and job.trainer_type.sees_gpu():
        raise ConfigError(f"device is 'cpu', but {framework.name} is already using the GPU. Start a new process.")
    job.trainer_type.check(job.spec, whole, num_workers=world.size)
    return job


def _resumed(job: _Job, generation: Generation | None) -> Checkpoint | None:
    """Return the checkpoint to resume from, or None for a new run. Raise an error if a new run would overwrite one."""
    found = None
    if job.is_first:
        # The launcher may not know of a checkpoint written just before the last generation ended.
        is_restart = generation is not None and (
            generation.has_checkpoint or (generation.number > 0 and job.checkpoint.exists())
        )
        if job.session.resume or is_restart:
            found = Checkpoint.load(job.checkpoint)
            found.check(
                job.config,
                job.fingerprint,
                free=(*CHANGEABLE_ON_RESUME, "batch_size") if job.workers.is_elastic else CHANGEABLE_ON_RESUME,
            )
        elif job.checkpoint_every:
            refuse_to_replace(job.checkpoint)
    return shared_checkpoint(job.world, found)


def _opened(job: _Job, open_split: Callable[..., Batches], spec: FeatureSpec) -> OpenData:
    path, size = job.data.path, job.world.size
    train_batches = open_split(path, spec, "train", job.config.batch_size // size, shuffle=True, seed=job.config.seed)
    num_rows = _LONG_ROWS_EVALUATION_BATCH_SIZE if spec.is_sequential else _EVALUATION_BATCH_SIZE
    also_train = job.session.evaluate_train and INNER not in spec.sources
    evaluated = {
        split: open_split(path, spec.for_scoring, split, num_rows, shuffle=False, seed=0)
        for split in (*(split for split in ("valid", INNER) if split in spec.sources), *["train"] * also_train)
    }
    # With a split by group, all groups of validation rows are new. They would share one id, so GAUC would be AUC.
    group_by = None if job.data.split == "group" else spec.metadata.group_by
    return OpenData(train=Reader(train_batches), evaluated=evaluated, group_by=group_by, heads=spec.heads)


class _Fitting:
    """The fits of a run. With held-out rows, the first chooses the epoch count. The last trains the published model."""

    def __init__(
        self, job: _Job, log: RunLog, observer: Observer, progress: Progress, resumed: Checkpoint | None
    ) -> None:
        self._job, self._log, self._observer, self._progress = job, log, observer, progress
        self._resumed = resumed
        self._checkpoints: Checkpoints | None = None
        self._rows_before = 0.0

    def choose(self, data: OpenData, *, rows_after: int = 0, observer: Observer | None = None) -> Mapping[str, float]:
        config = self._job.config
        span = Phase(epochs=config.num_epochs, patience=config.patience, monitor=INNER)
        progress = _Share(self._progress, before=0, after=rows_after, about="choosing: ")
        _, chosen, _ = self._run(data, span, observer or _CheckpointsOnly(self._observer), progress, {})
        gc.collect()  # the next model needs the memory of this one
        self._rows_before = progress.total
        return chosen

    def fit(self, data: OpenData, chosen: Mapping[str, float]) -> tuple[Trainer, Mapping[str, float], FirstRows | None]:
        config = self._job.config
        if chosen:
            span = Phase(epochs=int(chosen["epoch"]), patience=0, every_epoch=False)
        else:
            span = Phase(epochs=config.num_epochs, patience=config.patience)
        progress = _Share(self._progress, before=self._rows_before, after=0)
        return self._run(data, span, self._observer, progress, chosen)

    def remove_checkpoint(self) -> None:
        if self._checkpoints:
            self._checkpoints.remove()

    def _run(
        self, data: OpenData, span: Phase, observer: Observer, progress: Progress, chosen: Mapping[str, float]
    ) -> tuple[Trainer, Mapping[str, float], FirstRows | None]:
        job, resumed, self._resumed = self._job, self._resumed, None
        if resumed and job.workers.is_elastic:
            resumed = resized(resumed, data.train)
        # All epochs count, so that the learning rate decays as it did when the epoch was selected.
        trainer = job.trainer_type(
            job.spec,
            job.config,
            num_steps=len(data.train) * job.config.num_epochs,
            world=job.world,
            laid_out_for=job.worker_batch_size,
        )
        trainer.data = job.data
        if any((counts := _num_parameters(trainer)).values()):  # otherwise they are known after the fit
            _log_counts(self._log, counts)
        first = Checkpoint(
            config=plain(job.config),
            fingerprint=job.fingerprint,
            run_id=self._log.run_id,
            num_batches=len(data.train),
            chosen=chosen,
        )
        last_step = self._checkpoints.last_step if self._checkpoints else resumed.position.step if resumed else None
        self._checkpoints = Checkpoints(
            job.checkpoint, job.checkpoint_every, first, last_step=last_step, world=job.world
        )
        run = TrainingRun(
            trainer,
            data,
            job.config,
            span,
            world=job.world,
            checkpoints=self._checkpoints,
            log=self._log,
            observer=observer,
            progress=progress,
        )
        run.begin(resumed)
        metrics = run.run()
        return trainer, metrics, run.first_rows


class _CheckpointsOnly(Observer):
    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def after_checkpoint(self, step: int) -> None:
        self._observer.after_checkpoint(step)


class _Share(Progress):
    """Reports the progress of one fit as part of the progress of all fits."""

    def __init__(self, whole: Progress, *, before: float, after: float, about: str = "") -> None:
        self._whole, self._before, self._after, self._about = whole, before, after, about
        self.total = before

    def update(self, done: float, total: float, note: str = "") -> None:
        self.total = self._before + total
        self._whole.update(self._before + done, self.total + self._after, self._about + note)


def _log_counts(log: RunLog, counts: Mapping[str, int]) -> None:
    log.log_params({f"num_parameters.{part}": count for part, count in counts.items()})


def _log_compared(log: RunLog, compared: Mapping[str, Any]) -> None:
    for one in compared["candidates"]:
        figures = {compared["metric"]: one["score"], "spread": one["spread"], "weight": one["weight"]}
        metrics = {f"compared_{one['name']}_{name}": value for name, value in figures.items() if value is not None}
        log.log_metrics(metrics, step=1)
    log.note("; ".join([compared["reason"], *left_out(compared)]) + ".")


def _num_parameters(trainer: Trainer) -> dict[str, int]:
    return dict(zip(("embedding", "other"), trainer.num_parameters(), strict=True))


@contextmanager
def _recorded(
    job: _Job, tracking: TrackingConfig, resumed: Checkpoint | None, generation: Generation | None
) -> Iterator[RunLog]:
    """Open an MLflow run on worker 0, or reopen the run that the checkpoint or an earlier generation used.

    Options and data are logged before any observer adds to the run.
    """
    if not job.is_first:
        run_id, uri = job.world.all_gather_object(None)[0]
        yield RunLog(run_id, uri)
        return
    resumed_id = resumed.run_id if resumed else generation.run_id if generation else None
    with tracked_run(tracking, resumed_id=resumed_id) as log:
        job.world.all_gather_object([log.run_id, log.uri])
        _log_inputs(job, log)
        yield log


@contextmanager
def _observed(
    job: _Job, log: RunLog, observers: Callable[[RunLog], Iterable[Observer]], num_batches: int
) -> Iterator[Observer]:
    if not job.is_first:
        yield Observer()
        return
    directory = job.output.with_name("tensorboard") / log.run_id
    usual = observers_of(job.session, job.framework, directory, log, num_batches)
    with closing(Observers([*observers(log), *usual])) as observer:
        yield observer


def _log_inputs(job: _Job, log: RunLog) -> None:
    num_rows = {split: job.spec.source(split).num_rows for split in ("train", "valid")}
    log.log_params(job.config.params | _prepare_params(job.data) | _workers_params(job))
    rows = f"{num_rows['train']:,} training rows, {num_rows['valid']:,} validation rows."
    source = job.data.manifest.details.get("source")
    log.note(f"{source}: {rows}" if source else rows)
    log.set_tags({"data": job.fingerprint[:_SHORT_DIGEST], "code": code_version()})
    for split, count in num_rows.items():
        log.log_dataset(split, job.data.path / split, digest=job.fingerprint, num_rows=count)


def _log_generation(job: _Job, log: RunLog, generation: Generation, resumed: Checkpoint | None) -> None:
    """Log the number of workers starting at this step, and the reason for the change."""
    size, step = job.world.size, resumed.position.step if resumed else 0
    if generation.number:  # before the metric, so that a number never lacks its reason if a worker dies in between
        log.note(
            f"Step {step:,}: {generation.cause.rstrip('.')}. {size} worker{'s continue' if size > 1 else ' continues'}."
        )
    log.log_metrics({"workers": size}, step)


def _prepare_params(data: PreparedData) -> dict[str, Any]:
    details = data.manifest.details
    choices = {"source": details.get("source"), **details.get("config", {})}
    return {f"prepare.{name}": value for name, value in choices.items()}


def _workers_params(job: _Job) -> dict[str, Any]:
    if job.world.size == 1 and not job.workers.is_elastic:
        return {}
    return {f"workers.{name}": value for name, value in (asdict(job.workers) | {"workers": job.world.size}).items()}


def _publish(job: _Job, trainer: Trainer, details: Mapping[str, Any], log: RunLog) -> None:
    spec, metrics, made_from = job.data.spec.for_scoring, details["metrics"], {PREPARED: job.fingerprint}
    with publish(job.output, KIND, made_from=made_from, details=dict(details)) as staging:
        trainer.export(staging / job.framework.format)
        (staging / FILE_NAME).write_text(spec.to_yaml(), encoding="utf-8")
        log.log_model(
            staging / job.framework.format,
            spec,
            _example_rows(job.data.path, spec),
            loader_module=trainer.PYFUNC,
            packages=trainer.PACKAGES,
        )
        model_metrics = {f"model/{name}": value for name, value in metrics.items()}
        log.log_metrics(model_metrics, int(metrics["epoch"]), of_model=True)
        log.log_metrics(key_figures(spec.heads, metrics), int(metrics["epoch"]))
        log.log_artifact(staging / FILE_NAME)
        log.log_artifact(job.data.path / "workflow")


def _log_validation(scores: ValidationScores, log: RunLog) -> None:
    with TemporaryDirectory(prefix="rankline-validation-") as directory:
        folder = Path(directory) / FOLDER
        folder.mkdir()
        scores.write(folder)
        log.log_artifact(folder)


def _example_rows(prepared: Path, spec: FeatureSpec) -> pd.DataFrame:
    rows = first_rows_of(prepared, spec, "valid", _NUM_EXAMPLE_ROWS)
    return pd.DataFrame({name: _plain(column) for name, column in rows.items()})


def _plain(column: "Array | Ragged") -> "list[Any] | Array":
    if isinstance(column, Ragged):
        return [part.tolist() for part in np.split(column.values, column.offsets[1:-1])]
    return column if column.ndim == 1 else column.tolist()
