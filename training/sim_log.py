"""The log lines of NVIDIA's SIM for TensorFlow 2 (section "Log format" of its README), in a file and in MLflow.

Each line is `DLLL` and a JSON object of timestamp, datetime, elapsedtime, type, step and data. `step` says what the
data is about: [epoch, step] a step, [epoch] an epoch, [] the whole run. Epochs, and the steps of each, count from 1,
and a resumed run goes on counting. As with DLLogger, times are text, in seconds.

    training    step     classification_loss, dien_aux_loss, total_loss, samples/s
                epoch    throughput, time, train_auc, test_auc, train_loss, test_loss, latency_mean, _p90, _p95, _p99
                run      time_to_train, train_auc, test_auc, train_loss, test_loss
    inference   step     samples/s
                run      throughput, time, latency_mean, _p90, _p95, _p99
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from training.observers import MetricLog, Observer, Series
from training.step_times import Clock, StepTimes

SERIES = "sim/"
"""How the names in MLflow begin; those of steps with `steps/`."""

_QUALITY = {
    "train_auc": "train_auc",
    "test_auc": "valid_auc",
    "train_loss": "train_logloss",
    "test_loss": "valid_logloss",
}


class SimLog:
    """A file of log lines, each there as soon as it is written.

    Args:
        path: the file; its directory is made if it is not there.
        append: go on with the file that is there, in place of a new one.
        now: tells the time.
    """

    def __init__(self, path: Path, *, append: bool = False, now: Callable[[], datetime] = datetime.now) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a" if append else "w", encoding="utf-8", buffering=1)
        self._now, self._began = now, now()

    def __enter__(self) -> "SimLog":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, step: Sequence[int], data: Mapping[str, float]) -> None:
        """Write a line.

        Args:
            step: [epoch, step], [epoch] or [].
            data: the figures by name.
        """
        now = self._now()
        line = {
            "timestamp": str(now.timestamp()),
            "datetime": str(now),
            "elapsedtime": str((now - self._began).total_seconds()),
            "type": "LOG",
            "step": list(step),
            "data": dict(data),
        }
        self._file.write(f"DLLL {json.dumps(line)}\n")


def quality(figures: Mapping[str, float]) -> dict[str, float]:
    """AUC and loss on both splits under their names in the log, as far as they were measured.

    Args:
        figures: metrics of an epoch, or of a trained model.
    """
    return {name: figures[ours] for name, ours in _QUALITY.items() if ours in figures}


class TrainingLog(Observer):
    """Writes the lines of a training run, and its figures to MLflow.

    Args:
        log: gets the lines.
        metrics: the run in MLflow.
        steps_per_epoch: to tell the place of a step.
        warmup_steps: first steps that do not count for throughput and latencies, as long as their epoch has others.
        clock: seconds.
    """

    every_step = True

    def __init__(
        self,
        log: SimLog,
        metrics: MetricLog,
        *,
        steps_per_epoch: int,
        warmup_steps: int = 0,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._log, self._metrics, self._steps_per_epoch, self._clock = log, metrics, steps_per_epoch, clock
        self._series = Series(metrics, clock=clock)
        self._began = clock()
        self._times, self._is_new = StepTimes(warmup_steps, clock), True
        self._rate, self._quality = 0.0, dict[str, float]()

    def before_step(self, step: int) -> None:  # noqa: ARG002  (an observer's signature)
        if self._is_new:  # what was before this epoch does not count
            self._times.begin()
            self._is_new = False

    def after_step(self, step: int, num_rows: int) -> None:  # noqa: ARG002
        self._rate = self._times.add(num_rows)

    def after_look(self, step: int, figures: Mapping[str, float]) -> None:
        data = losses(figures["train_loss"], figures["train_added_loss"]) | {"samples/s": self._rate}
        epoch, number = divmod(step - 1, self._steps_per_epoch)
        self._log.write([epoch + 1, number + 1], data)
        self._series.after_look(step, data)

    def after_epoch(self, step: int, figures: Mapping[str, float]) -> None:
        self._quality = quality(figures)
        data = self._times.figures() | self._quality
        epoch = step // self._steps_per_epoch
        self._log.write([epoch], data)
        in_series = data | {"time_to_train": self._clock() - self._began}
        self._metrics.log_metrics({SERIES + name: figure for name, figure in in_series.items()}, epoch)
        self._times, self._is_new = StepTimes(0, self._clock), True

    def end(self, metrics: Mapping[str, float]) -> None:
        """Write the line of the whole run, which ended well.

        Args:
            metrics: of the trained model, for a run that had nothing left to train.
        """
        self._log.write([], {"time_to_train": self._clock() - self._began, **(self._quality or quality(metrics))})


def losses(classification: float, auxiliary: float) -> dict[str, float]:
    """The losses of a step under their names in the log."""
    return {
        "classification_loss": classification,
        "dien_aux_loss": auxiliary,
        "total_loss": classification + auxiliary,
    }
