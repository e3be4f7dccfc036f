"""The framework-independent training loop: train each epoch, evaluate, report, write checkpoints and stop."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from rankline.training.config.train import TrainConfig
from rankline.training.distributed.communicator import SOLO, Communicator
from rankline.training.evaluation import evaluate_heads, objective_of
from rankline.training.evaluation.scored_rows import FirstRows, Tally
from rankline.training.run.checkpoint import Best, Checkpoint, Checkpoints, Position, Reader, all_finite
from rankline.training.run.observers import Mark, Observer, Throughput
from rankline.training.tracking import RunLog
from rankline.training.trainers.base import Array, Batches, Trainer
from rankline.training.trainers.lr_schedule import LearningRateSchedule
from rankline.workflows.core.errors import ConfigError, DataError, RanklineError
from rankline.workflows.core.formatting import quality_figure
from rankline.workflows.core.machine import freed_memory_kept
from rankline.workflows.core.progress import Progress
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.schema.feature_spec import FeatureSpec, Part
from rankline.workflows.schema.label_stats import expected_labels
from rankline.workflows.schema.targets import Head

INNER = "inner"
"""Name of the split that holds out training rows to select the epoch."""
SHARE = 0.2
"""Fraction of the training rows that `INNER` holds out."""
_AVERAGES_PER_EPOCH = 64  # averaging reads all weights including tables, so it does not happen in every step
_REPORT_EVERY_S = 0.2
_SPLIT_NAMES = {"valid": "validation", "train": "training", INNER: "inner validation"}


@dataclass(frozen=True, kw_only=True)
class OpenData:
    """The opened splits of a run."""

    train: Reader
    evaluated: Mapping[str, Batches]
    group_by: str | None
    heads: tuple[Head, ...]


@dataclass(frozen=True, kw_only=True)
class Phase:
    """How many epochs to train, and when and on which split to evaluate.

    Attributes:
        epochs: maximum number of epochs.
        patience: epochs without improvement before the run stops; 0 trains all epochs.
        monitor: split that measures an epoch; names of its metrics start with the split's name.
        every_epoch: evaluate after each epoch instead of only after the last.
    """

    epochs: int
    patience: int
    monitor: str = "valid"
    every_epoch: bool = True

    @property
    def of_training(self) -> str:
        return f"{INNER}_train_" if self.monitor == INNER else "train_"


class TrainingRun:
    """Trains one model epoch by epoch and evaluates it. All workers create an instance and make the same calls.

    The config is that of the whole run: the learning rate decays over all of its epochs, even if `span` has fewer.
    """

    def __init__(
        self,
        trainer: Trainer,
        data: OpenData,
        config: TrainConfig,
        span: Phase,
        *,
        world: Communicator,
        checkpoints: Checkpoints,
        log: RunLog,
        observer: Observer,
        progress: Progress,
    ) -> None:
        self._trainer, self._data, self._config, self._span, self._world = trainer, data, config, span, world
        self._checkpoints, self._log, self._observer, self._progress = checkpoints, log, observer, progress
        self._num_rows = int(world.sum([data.train.num_rows])[0])  # per epoch, of all workers
        self._report_every_s = 0.0 if observer.every_step else _REPORT_EVERY_S
        trainer.say = self._show
        self._schedule = LearningRateSchedule.of(config, num_steps=len(data.train) * config.num_epochs)
        self._throughput = Throughput()
        self._at, self._best = Position(), Best()
        self._objective = objective_of(data.heads)
        self._last: float | None = None  # objective after the last epoch, for the progress note
        self._scored: FirstRows | None = None  # validation rows scored in the current epoch
        self.first_rows: FirstRows | None = None
        """Validation rows scored by the kept weights; None if these weights come from a checkpoint."""

    def begin(self, checkpoint: Checkpoint | None) -> None:
        if checkpoint:
            self._trainer.restore(checkpoint.state)
        self._trainer.share_state()
        if not checkpoint:
            return
        self._data.train.seek(checkpoint.position, checkpoint.order)
        self._at, self._best = checkpoint.position, checkpoint.best
        if checkpoint.config["learning_rate"] != self._config.learning_rate:
            self._log.note(f"Since step {self._at.step} the learning rate is {self._config.learning_rate:g}.")

    def run(self) -> Mapping[str, float]:
        """Train until the last epoch or early stopping, set the best weights, and return the best epoch's metrics."""
        try:
            while not self._is_done():
                self._run_epoch()
        except KeyboardInterrupt:
            if (step := self._checkpoints.last_step) is not None:
                self._show(f"stopped; --resume continues after step {step}")
            raise
        best = self._best.metrics
        if self._best.weights:
            self._trainer.set_weights(self._best.weights)
        total = self._num_rows * self._span.epochs
        self._progress.update(total, total, f"best epoch {best['epoch']:.0f}{self._reached(best[self._monitored])}")
        return best

    @property
    def _monitored(self) -> str:
        return f"{self._span.monitor}_{self._objective.name}"

    def _reached(self, figure: float) -> str:
        return f", {self._span.monitor} {self._objective.title} {quality_figure(figure)}"

    def _is_done(self) -> bool:
        done, patience = self._at.epoch - 1, self._span.patience
        return done >= self._span.epochs or bool(
            patience and self._best.metrics and done - self._best.metrics["epoch"] >= patience
        )

    @property
    def _is_last(self) -> bool:
        return self._at.epoch == self._span.epochs

    def _run_epoch(self) -> None:
        scored: dict[str, float] = {}
        with freed_memory_kept():  # not while writing checkpoints and models: it would keep copies of whole tables
            trained = self._train_epoch()
            if self._span.every_epoch or self._is_last:
                for split in self._data.evaluated:
                    scored |= self._evaluate(split)
        # With several heads, evaluating the training rows also yields a `train_loss`, which must not replace this one.
        epoch, figures = self._at.epoch, scored | trained
        self._log.log_metrics(figures, step=epoch)
        self._observer.after_epoch(self._at.step, figures)
        if scored:
            self._keep_best({name: figure for name, figure in scored.items() if name.startswith(self._span.monitor)})
            self._last = scored[self._monitored]
        self._at = Position(step=self._at.step, epoch=epoch + 1, loss_sum=self._trainer.loss_sum())
        if self._checkpoints.every:
            self._write_checkpoint()

    def _keep_best(self, judged: Mapping[str, float]) -> None:
        """Keep the current epoch's weights if they are the best so far, or if early stopping is off."""
        epoch, patience, best = self._at.epoch, self._span.patience, self._best.metrics
        monitored = self._monitored
        if patience and best and not self._objective.is_better(judged[monitored], best[monitored]):
            return
        weights = self._trainer.weights() if patience or self._is_last else ()
        self._check_finite(weights)
        self._best = Best(metrics={**judged, "epoch": float(epoch)}, weights=weights)
        self.first_rows = self._scored

    def _train_epoch(self) -> dict[str, float]:
        num_batches = len(self._data.train)
        average_every = max(1, num_batches // _AVERAGES_PER_EPOCH)
        steps_before = self._at.step - self._at.batch
        began = self._throughput.mark()
        sums = _Sums(began, self._trainer.loss_sum(), self._trainer.added_sum())
        for batch, (inputs, labels) in enumerate(self._data.train, start=self._at.batch + 1):
            step, is_last = steps_before + batch, batch == num_batches
            self._take_step(step, inputs, labels)
            if is_last or batch % average_every == 0:
                self._trainer.average()
            reports = is_last or self._throughput.mark().active_s - sums.mark.active_s >= self._report_every_s
            writes = self._checkpoints.is_due(step) and not is_last  # the end of the epoch writes one anyway
            if reports or writes:
                self._at = replace(self._at, step=step, batch=batch)
            if reports:
                sums = self._report(began, sums)
            if writes:
                self._write_checkpoint()
        name = self._span.of_training
        return {f"{name}loss": self._epoch_loss(sums), f"{name}samples_per_s": self._throughput.since(began)}

    def _take_step(self, step: int, inputs: Mapping[str, Any], labels: Any) -> None:
        self._observer.before_step(step)
        self._trainer.step(inputs, labels)
        num_rows = labels.shape[0] * self._world.size
        self._throughput.add(num_rows)
        self._observer.after_step(step, num_rows)

    def _report(self, began: Mark, last: "_Sums") -> "_Sums":
        now, at = _Sums(self._throughput.mark(), self._finite_loss_sum(), self._trainer.added_sum()), self._at
        note = f"epoch {at.epoch}/{self._span.epochs}"
        if self._config.model.framework.learns_in_steps or at.batch == len(self._data.train):
            self._observer.on_log(at.step, self._figures(now, last))
            note += f", loss {self._epoch_loss(now):.4f}"
        reached = self._reached(self._last) if self._last is not None else ""
        self._show(f"{note}{reached}, {self._throughput.since(began):,.0f} rows/s")
        return now

    def _figures(self, now: "_Sums", last: "_Sums") -> dict[str, float]:
        """Return the metrics of steps between two reports, with the epoch's loss for models not trained in steps."""
        num_rows = now.mark.num_rows - last.mark.num_rows
        of_steps = (now.loss_sum - last.loss_sum) / num_rows
        figures = {
            "train_loss": of_steps if self._config.model.framework.learns_in_steps else self._epoch_loss(now),
            "train_added_loss": (now.added_sum - last.added_sum) / num_rows,
            "learning_rate": self._config.learning_rate * float(self._schedule.factor(self._at.step - 1)),
        }
        if self._throughput.is_warm:
            figures["train_samples_per_s"] = self._throughput.since(last.mark)
        return figures

    def _epoch_loss(self, sums: "_Sums") -> float:
        return (sums.loss_sum - self._at.loss_sum) / self._epoch_rows()

    def _epoch_rows(self) -> int:
        """Return the number of rows trained on so far in this epoch. Only the last batch can be smaller."""
        return min(self._at.batch * self._config.batch_size, self._num_rows)

    def _show(self, note: str, share: float | None = None) -> None:
        rows_before, total = ((epochs * self._num_rows) for epochs in (self._at.epoch - 1, self._span.epochs))
        done = self._epoch_rows() if share is None else share * self._num_rows
        self._progress.update(rows_before + done, total, note)

    def _write_checkpoint(self) -> None:
        with self._throughput.pause():
            state = self._trainer.state()
            self._finite_loss_sum()
            self._check_finite(state.values())
            self._checkpoints.write(self._at, self._data.train.order, self._best, state)
        self._observer.after_checkpoint(self._at.step)

    def _finite_loss_sum(self) -> float:
        loss_sum = self._trainer.loss_sum()
        if not math.isfinite(loss_sum):
            step = self._trainer.diverged_at() or self._at.step
            epoch, batch = divmod(step - 1, len(self._data.train))
            place = f"step {step} (epoch {epoch + 1}, batch {batch + 1} of {len(self._data.train)})"
            raise self._diverged(f"the training loss has been {loss_sum} since {place}")
        return loss_sum

    def _check_finite(self, weights: Iterable[Array]) -> None:
        """Raise an error if a weight is not finite. The loss may hide it, since TensorFlow's ReLU turns NaN into 0."""
        if not all_finite(weights):
            raise self._diverged(f"weights are not finite after step {self._at.step}")

    def _diverged(self, what: str) -> RanklineError:
        remedy = f"Lower the learning rate (now {self._config.learning_rate:g})"
        if (step := self._checkpoints.last_step) is not None:
            remedy += (
                f", and pass --resume to continue from the last good checkpoint: {self._checkpoints.path}, step {step}"
            )
        return RanklineError(f"{what}, expected finite numbers. {remedy}.")

    def _evaluate(self, split: str) -> dict[str, float]:
        first_rows = FirstRows() if split == "valid" else None
        try:
            figures = evaluate(
                self._trainer,
                self._data.evaluated[split],
                self._data.heads,
                group_by=self._data.group_by,
                split=_SPLIT_NAMES[split],
                world=self._world,
                first_rows=first_rows,
            )
        except FloatingPointError:
            raise self._diverged(f"the model's scores are not finite after step {self._at.step}") from None
        except DataError as error:
            if split != INNER:
                raise
            raise DataError(
                f"{error} Alternatively, set early_stopping_patience to 0 for a fixed number of epochs."
            ) from None
        self._scored = first_rows or self._scored
        return {f"{split}_{name}": figure for name, figure in figures.items()}


class _Sums(NamedTuple):
    """Running totals of rows and losses at one point in the run."""

    mark: Mark
    loss_sum: float
    added_sum: float


def inner_spec(spec: FeatureSpec, data: PreparedData) -> FeatureSpec:
    """Return a spec that splits the training rows into the holdout, "inner", and the other rows, "train".

    A model trains on the other training rows to find the best epoch; `rankline.training.run.train` then trains another
    one on all of them for as many epochs, so validation metrics stay unbiased (Hastie et al. 2009, "The Elements of
    Statistical Learning", section 7.2).

    The holdout is chosen like the validation rows: the latest training rows if the data was split by time, whole groups
    if it was split by group. Otherwise it is the end of each row group, so the order of rows across files does not
    matter.
    """
    source, cut = spec.source("train"), 1 - SHARE
    if (first_rows := data.first_rows_of_groups()) is not None:
        cut = _nearest(first_rows[1:], cut * source.num_rows) / source.num_rows
    cuts = {"train": (0.0, cut), INNER: (cut, 1.0)}
    is_random = data.split == "random"
    parts = {split: Part(begin=begin, end=end, of_each_group=is_random) for split, (begin, end) in cuts.items()}
    return replace(spec, sources={split: replace(source, part=part) for split, part in parts.items()})


def _nearest(first_rows: Array, row: float) -> int:
    nearest = int(first_rows[np.abs(first_rows - row).argmin()]) if len(first_rows) else 0
    if nearest < row / 2:
        raise DataError(
            "a single group has most of the training rows, so whole groups cannot be held out to choose the best "
            "epoch. Set early_stopping_patience to 0, or split at random."
        )
    return nearest


def evaluate(
    trainer: Trainer,
    batches: Batches,
    heads: Sequence[Head],
    *,
    group_by: str | None,
    split: str,
    world: Communicator = SOLO,
    first_rows: FirstRows | None = None,
) -> dict[str, float]:
    """Score a split, using the averaged weights if available, and compute its metrics.

    Raises:
        DataError: the labels do not fit the heads, or the split has only one class.
        FloatingPointError: a score is not finite.
    """
    tally = Tally(heads)
    with trainer.averaged():
        for inputs, label in batches:
            groups = trainer.array(inputs[group_by]) if group_by is not None and group_by in inputs else None
            scored = trainer.array(label), trainer.score(inputs), groups
            with _explained(heads, split):
                tally.add(*scored)
            if first_rows is not None:
                first_rows.add(*scored[:2])
    rows = tally.rows(world)
    with _explained(heads, split):
        # On different machines workers may round differently, and would then stop at different epochs.
        figures: dict[str, float] = world.all_gather_object(evaluate_heads(heads, rows))[0]
    return figures


@contextmanager
def _explained(heads: Sequence[Head], split: str) -> Iterator[None]:
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        expected = " and ".join(dict.fromkeys(map(expected_labels, heads))).replace("0 or 1", "0 and 1")
        raise DataError(
            f"the {split} data cannot be evaluated: {error} Prepare it again with rows for every label: {expected}."
        ) from None
