import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankline.compat.sim.log import SimLog, StepTimes, TrainingLog, time_steps
from tests.factories.recorders import Clock, MetricRecord

LOOKED = {"train_loss": 0.5, "train_added_loss": 0.25, "learning_rate": 0.01}
MEASURED = {
    "train_loss": 0.9, "train_samples_per_s": 7.0, "train_auc": 0.8, "train_logloss": 0.4, "train_gauc": 0.7,
    "valid_auc": 0.75, "valid_logloss": 0.45, "valid_calibration": 1.0,
}  # fmt: skip
QUALITY = {"train_auc": 0.8, "test_auc": 0.75, "train_loss": 0.4, "test_loss": 0.45}
LATENCIES = {"latency_mean", "latency_p90", "latency_p95", "latency_p99"}


def lines_of(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text().splitlines()
    assert all(line.startswith("DLLL {") for line in lines)
    return [json.loads(line.removeprefix("DLLL ")) for line in lines]


def take(log: TrainingLog, clock: Clock, steps: range, *, step_s: float = 0.5, num_rows: int = 8) -> None:
    for step in steps:
        log.before_step(step)
        clock.now_s += step_s
        log.after_step(step, num_rows)
        log.on_log(step, LOOKED)


def test_line_has_what_dllogger_writes(tmp_path: Path) -> None:
    began = datetime(2026, 11, 20, 12, 30)
    times = iter([began, began + timedelta(seconds=1.5), began + timedelta(seconds=61)])
    with SimLog(tmp_path / "results" / "log.json", now=lambda: next(times)) as log:
        log.write([2, 79], {"samples/s": 12.5})
        log.write([], {})
    assert lines_of(tmp_path / "results" / "log.json") == [
        {
            "timestamp": str((began + timedelta(seconds=1.5)).timestamp()),
            "datetime": "2026-11-20 12:30:01.500000",
            "elapsedtime": "1.5",
            "type": "LOG",
            "step": [2, 79],
            "data": {"samples/s": 12.5},
        },
        {
            "timestamp": str((began + timedelta(seconds=61)).timestamp()),
            "datetime": "2026-11-20 12:31:01",
            "elapsedtime": "61.0",
            "type": "LOG",
            "step": [],
            "data": {},
        },
    ]


def test_line_is_flushed_at_once_and_a_new_log_replaces_or_appends(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    for append, expected in ((False, [1]), (True, [1, 2]), (False, [3])):
        with SimLog(path, append=append) as log:
            log.write([expected[-1]], {})
            assert [line["step"] for line in lines_of(path)] == [[number] for number in expected]


def test_run_has_a_line_for_each_step_each_epoch_and_itself(tmp_path: Path) -> None:
    clock, metrics = Clock(), MetricRecord()
    with SimLog(tmp_path / "log.json") as lines:
        log = TrainingLog(lines, metrics, steps_per_epoch=3, clock=clock)
        assert log.every_step
        for first in (1, 4):
            clock.now_s += 20  # reading, evaluation: not a step
            take(log, clock, range(first, first + 3))
            log.after_epoch(first + 2, MEASURED)
        log.end({"valid_auc": 0.1})
    found = lines_of(tmp_path / "log.json")
    assert [line["step"] for line in found] == [[1, 1], [1, 2], [1, 3], [1], [2, 1], [2, 2], [2, 3], [2], []]
    assert found[0]["data"] == {
        "classification_loss": 0.5, "dien_aux_loss": 0.25, "total_loss": 0.75, "samples/s": 16.0,
    }  # fmt: skip
    for epoch in (found[3], found[7]):
        data = epoch["data"]
        assert data.keys() == {"throughput", "time", *QUALITY, *LATENCIES}
        assert {name: data[name] for name in QUALITY} == QUALITY
        assert (data["throughput"], data["time"]) == pytest.approx((16.0, 1.5))
        assert all(data[name] == pytest.approx(500.0) for name in LATENCIES)
    assert found[8]["data"] == {"time_to_train": pytest.approx(43.0), **QUALITY}
    epochs = {step: point for step, point in metrics.points if "sim/throughput" in point}
    assert list(epochs) == [1, 2]
    assert {f"sim/{name}" for name in found[3]["data"]} | {"sim/time_to_train"} == epochs[1].keys()
    assert epochs[2]["sim/time_to_train"] == pytest.approx(43.0)


def test_steps_are_in_mlflow(tmp_path: Path) -> None:
    clock, metrics = Clock(), MetricRecord()
    with SimLog(tmp_path / "log.json") as lines:
        take(TrainingLog(lines, metrics, steps_per_epoch=9, clock=clock), clock, range(1, 6), step_s=4.0)
    assert [step for step, _ in metrics.points] == [1, 2, 3, 4, 5]
    assert metrics.points[2][1] == {
        "steps/classification_loss": 0.5,
        "steps/dien_aux_loss": 0.25,
        "steps/total_loss": 0.75,
        "steps/samples/s": 2.0,
    }


def test_warm_up_is_of_the_first_epoch_only(tmp_path: Path) -> None:
    clock = Clock()
    with SimLog(tmp_path / "log.json") as lines:
        log = TrainingLog(lines, MetricRecord(), steps_per_epoch=4, warmup_steps=2, clock=clock)
        for first in (1, 5):
            take(log, clock, range(first, first + 2), step_s=10.0)
            take(log, clock, range(first + 2, first + 4), step_s=1.0)
            log.after_epoch(first + 3, MEASURED)
    epochs = [line["data"] for line in lines_of(tmp_path / "log.json") if len(line["step"]) == 1]
    assert [data["latency_mean"] for data in epochs] == pytest.approx([1_000.0, 5_500.0])


def test_run_with_nothing_left_to_train_reports_the_known_metrics(tmp_path: Path) -> None:
    with SimLog(tmp_path / "log.json") as lines:
        TrainingLog(lines, MetricRecord(), steps_per_epoch=3, clock=Clock()).end({"valid_auc": 0.7, "epoch": 3.0})
    assert lines_of(tmp_path / "log.json")[0]["data"] == {"time_to_train": 0.0, "test_auc": 0.7}


# --- Step times


class Batches:
    """Batches of some sizes, which take time to load."""

    def __init__(self, clock: Clock, sizes: list[int], load_s: float = 0.0) -> None:
        self._clock, self._sizes, self._load_s = clock, sizes, load_s
        self.num_rows, self.passes = sum(sizes), 0

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
    latencies = {f"latency_p{rank}": 1e3 * np.percentile(seconds, rank) for rank in (90, 95, 99)}
    expected = {"throughput": 1_000 / sum(seconds), "time": sum(seconds), "latency_mean": 50.5} | latencies
    assert times_of(seconds).figures() == pytest.approx(expected)


def test_warmup_steps_do_not_count_for_throughput_and_latencies_but_for_the_time() -> None:
    figures = times_of([9.0, 8.0, 0.5, 0.5], warmup_steps=2).figures()
    assert figures["throughput"] == pytest.approx(20.0)
    assert figures["latency_mean"] == figures["latency_p99"] == pytest.approx(500.0)
    assert figures["time"] == pytest.approx(18.0)


def test_warmup_steps_count_where_there_are_no_others() -> None:
    figures = times_of([0.25] * 20, warmup_steps=20).figures()
    assert figures["throughput"] == pytest.approx(40.0)
    assert figures["latency_p95"] == pytest.approx(250.0)


def test_step_is_timed_with_the_wait_for_its_batch() -> None:
    clock = Clock()
    batches = Batches(clock, [4, 4, 2], load_s=0.5)
    told: list[tuple[int, float]] = []

    def step(inputs: Any, labels: Any) -> None:
        assert inputs["x"].shape == labels.shape
        clock.now_s += 0.25

    times = time_steps(step, batches, tell=lambda *what: told.append(what), clock=clock)
    assert told == [(1, 4 / 0.75), (2, 4 / 0.75), (3, 2 / 0.75)]
    assert times.figures()["throughput"] == pytest.approx(10 / 2.25)
    assert batches.passes == 1
