from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.recorders import Clock
from training.step_times import StepTimes, time_steps


class Batches:
    """Batches of some sizes, which take time to load."""

    def __init__(self, clock: Clock, sizes: list[int], load_s: float = 0.0) -> None:
        self._clock, self._sizes, self._load_s = clock, sizes, load_s
        self.passes = 0

    @property
    def num_rows(self) -> int:
        return sum(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Any]]:
        self.passes += 1
        for size in self._sizes:
            self._clock.now_s += self._load_s
            yield {"x": np.zeros((size, 1))}, np.zeros((size, 1))


def times_of(seconds: list[float], *, warmup_steps: int = 0, num_rows: int = 10) -> StepTimes:
    clock = Clock()
    times = StepTimes(warmup_steps, clock)
    clock.now_s += 1_000
    times.begin()
    for duration in seconds:
        clock.now_s += duration
        times.add(num_rows)
    return times


def test_figures_are_those_of_the_steps() -> None:
    seconds = [0.001 * number for number in range(1, 101)]
    figures = times_of(seconds).figures()
    assert figures == pytest.approx(
        {
            "throughput": 1_000 / sum(seconds),
            "time": sum(seconds),
            "latency_mean": 50.5,
            "latency_p90": np.percentile(seconds, 90) * 1e3,
            "latency_p95": np.percentile(seconds, 95) * 1e3,
            "latency_p99": np.percentile(seconds, 99) * 1e3,
        }
    )


def test_the_first_steps_do_not_count_for_throughput_and_latencies_but_for_the_time() -> None:
    figures = times_of([9.0, 8.0, 0.5, 0.5], warmup_steps=2).figures()
    assert figures["throughput"] == pytest.approx(20.0)
    assert figures["latency_mean"] == figures["latency_p99"] == pytest.approx(500.0)
    assert figures["time"] == pytest.approx(18.0)


@pytest.mark.parametrize("num_steps", [1, 3, 20])
def test_where_all_steps_are_the_first_ones_they_count(num_steps: int) -> None:
    figures = times_of([0.25] * num_steps, warmup_steps=20).figures()
    assert figures["throughput"] == pytest.approx(40.0)
    assert figures["latency_p95"] == pytest.approx(250.0)


def test_a_step_is_timed_with_the_wait_for_its_batch() -> None:
    clock = Clock()
    batches = Batches(clock, [4, 4, 2], load_s=0.5)
    told: list[tuple[int, float]] = []

    def step(inputs: Any, labels: Any) -> None:
        assert inputs["x"].shape == labels.shape
        clock.now_s += 0.25

    times = time_steps(step, batches, tell=lambda *what: told.append(what), clock=clock)
    assert told == [(1, 4 / 0.75), (2, 4 / 0.75), (3, 2 / 0.75)]
    assert times.figures()["throughput"] == pytest.approx(10 / 2.25)
    assert (len(times), batches.passes) == (3, 1)


def test_a_benchmark_takes_as_many_passes_as_its_steps_need() -> None:
    clock = Clock()
    batches = Batches(clock, [4, 4, 2])
    numbers: list[int] = []

    def step(*_: Any) -> None:
        clock.now_s += 1.0 if not numbers else 0.1

    times = time_steps(
        step, batches, warmup_steps=1, num_steps=7, tell=lambda number, _: numbers.append(number), clock=clock
    )
    assert numbers == list(range(1, 9))
    assert (len(times), batches.passes) == (8, 3)
    assert times.figures()["latency_p99"] == pytest.approx(100.0)
