"""How long steps take: throughput and latencies, of training and of inference."""

import time
from collections.abc import Callable, Mapping
from itertools import chain, repeat
from typing import Any

import numpy as np

from training.trainers.base import Batches

Clock = Callable[[], float]


class StepTimes:
    """Durations of steps one after another, each with the wait for its batch.

    Args:
        warmup_steps: first steps that do not count for throughput and latencies, as long as there are others.
        clock: seconds.
    """

    def __init__(self, warmup_steps: int = 0, clock: Clock = time.perf_counter) -> None:
        self._warmup_steps, self._clock = warmup_steps, clock
        self._seconds: list[float] = []
        self._rows: list[int] = []
        self._since = clock()

    def __len__(self) -> int:
        """Steps so far."""
        return len(self._seconds)

    def begin(self) -> None:
        """The next step begins now; what was since the last one does not count."""
        self._since = self._clock()

    def add(self, num_rows: int) -> float:
        """Count a step that has just ended; the next one begins.

        Returns:
            Its rows per second.
        """
        now = self._clock()
        self._seconds.append(now - self._since)
        self._rows.append(num_rows)
        self._since = now
        return num_rows / self._seconds[-1]

    def figures(self) -> dict[str, float]:
        """After at least one step: `throughput` in rows per second, `time` of all steps in seconds, and
        `latency_mean`, `latency_p90`, `latency_p95` and `latency_p99` in milliseconds."""
        first = self._warmup_steps if len(self) > self._warmup_steps else 0
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
    """Take steps and time them.

    Args:
        step: called with the inputs and labels of a batch; returns when all is done.
        batches: at least one.
        warmup_steps: first steps that do not count; see `StepTimes`.
        num_steps: steps that count, over as many passes as that takes; None takes one pass in all.
        tell: hears the number of each step, from 1, and its rows per second.
        clock: seconds.
    """
    times = StepTimes(warmup_steps, clock)
    total = len(batches) if num_steps is None else warmup_steps + num_steps
    stream = chain.from_iterable(repeat(batches))
    times.begin()
    for number in range(1, total + 1):
        inputs, labels = next(stream)
        step(inputs, labels)
        tell(number, times.add(labels.shape[0]))
    return times
