"""Log lines in the format of NVIDIA's SIM (section "Log format" of its README), written to a file and to MLflow.

Each line is `DLLL` and a JSON object with timestamp, datetime, elapsedtime, type, step and data. `step` is the scope of
the data: [epoch, step] for a step, [epoch] for an epoch, [] for the whole run. Epochs, and the steps within each epoch,
count from 1, and a resumed run continues counting. As in DLLogger, times are strings, in seconds.

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
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np

from rankline.training.run.observers import Observer, Series
from rankline.training.tracking import RunLog
from rankline.training.trainers.base import Batches

SERIES = "sim/"
"""Prefix of metric names in MLflow. Metrics of steps have the prefix `steps/`."""

_QUALITY = {
    "train_auc": "train_auc",
    "test_auc": "valid_auc",
    "train_loss": "train_logloss",
    "test_loss": "valid_logloss",
}

Clock = Callable[[], float]


class SimLog:
    def __init__(self, path: Path, *, append: bool = False, now: Callable[[], datetime] = datetime.now) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a" if append else "w", encoding="utf-8", buffering=1)
        self._now, self._began = now, now()

    def __enter__(self) -> "SimLog":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, step: Sequence[int], data: Mapping[str, float]) -> None:
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


class StepTimes:
    """Durations of consecutive steps, each including the wait for its batch.

    Throughput and latencies exclude the first `warmup_steps`, unless there are no other steps.
    """

    def __init__(self, warmup_steps: int = 0, clock: Clock = time.perf_counter) -> None:
        self._warmup_steps, self._clock = warmup_steps, clock
        self._seconds: list[float] = []
        self._rows: list[int] = []
        self._since = clock()

    def begin(self) -> None:
        """Start timing the next step, discarding the time since the last step."""
        self._since = self._clock()

    def add(self, num_rows: int) -> float:
        """Record a step that has just ended, start timing the next step, and return the throughput in rows/s."""
        now = self._clock()
        self._seconds.append(now - self._since)
        self._rows.append(num_rows)
        self._since = now
        return num_rows / self._seconds[-1]

    def figures(self) -> dict[str, float]:
        """Return summary statistics of the steps. At least one step must have been recorded.

        They are `throughput` in rows per second, `time` of all steps in seconds, and `latency_mean`, `latency_p90`,
        `latency_p95` and `latency_p99` in milliseconds.
        """
        first = self._warmup_steps if len(self._seconds) > self._warmup_steps else 0
        seconds, num_rows = np.array(self._seconds[first:]), sum(self._rows[first:])
        return {
            "throughput": num_rows / float(seconds.sum()),
            "time": sum(self._seconds),
            "latency_mean": 1e3 * float(seconds.mean()),
            **{f"latency_p{rank}": 1e3 * float(np.percentile(seconds, rank)) for rank in (90, 95, 99)},
        }


def time_steps(
    step: Callable[[Mapping[str, Any], Any], object],
    batches: Batches,
    *,
    warmup_steps: int = 0,
    num_steps: int | None = None,
    tell: Callable[[int, float], None] = lambda *_: None,
    clock: Clock = time.perf_counter,
) -> StepTimes:
    """Call `step` on each batch of one pass, or on `warmup_steps + num_steps` batches, and time each call."""
    times = StepTimes(warmup_steps, clock)
    total = len(batches) if num_steps is None else warmup_steps + num_steps
    stream = chain.from_iterable(repeat(batches))
    times.begin()
    for number in range(1, total + 1):
        inputs, labels = next(stream)
        step(inputs, labels)
        tell(number, times.add(labels.shape[0]))
    return times


class TrainingLog(Observer):
    every_step = True

    def __init__(
        self,
        log: SimLog,
        metrics: RunLog,
        *,
        steps_per_epoch: int,
        warmup_steps: int = 0,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._log, self._metrics, self._steps_per_epoch, self._clock = log, metrics, steps_per_epoch, clock
        self._series = Series(metrics, steps_per_epoch)
        self._began = clock()
        self._times, self._is_new = StepTimes(warmup_steps, clock), True
        self._rate, self._quality = 0.0, dict[str, float]()

    def before_step(self, step: int) -> None:  # noqa: ARG002  (an observer's signature)
        if self._is_new:  # exclude the time between epochs
            self._times.begin()
            self._is_new = False

    def after_step(self, step: int, num_rows: int) -> None:  # noqa: ARG002
        self._rate = self._times.add(num_rows)

    def on_log(self, step: int, figures: Mapping[str, float]) -> None:
        data = losses(figures["train_loss"], figures["train_added_loss"]) | {"samples/s": self._rate}
        epoch, number = divmod(step - 1, self._steps_per_epoch)
        self._log.write([epoch + 1, number + 1], data)
        self._series.on_log(step, data)

    def after_epoch(self, step: int, figures: Mapping[str, float]) -> None:
        self._quality = _quality(figures)
        data = self._times.figures() | self._quality
        epoch = step // self._steps_per_epoch
        self._log.write([epoch], data)
        in_series = data | {"time_to_train": self._clock() - self._began}
        self._metrics.log_metrics({SERIES + name: figure for name, figure in in_series.items()}, epoch)
        self._times, self._is_new = StepTimes(0, self._clock), True

    def end(self, metrics: Mapping[str, float]) -> None:
        """Write the final log line of the run. `metrics` are used only if no epoch was trained."""
        self._log.write([], {"time_to_train": self._clock() - self._began, **(self._quality or _quality(metrics))})


def _quality(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: figures[ours] for name, ours in _QUALITY.items() if ours in figures}


def losses(classification: float, auxiliary: float) -> dict[str, float]:
    return {
        "classification_loss": classification,
        "dien_aux_loss": auxiliary,
        "total_loss": classification + auxiliary,
    }
