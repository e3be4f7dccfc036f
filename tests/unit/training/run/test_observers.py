import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from rankline.training.config.train import SessionConfig
from rankline.training.models.frameworks import TENSORFLOW
from rankline.training.run.callbacks import ThroughputLogger
from rankline.training.run.observers import Profile, Series, Throughput, check_session
from rankline.workflows.core.errors import ConfigError
from tests.factories.recorders import Clock, MetricRecord


def take(throughput: Throughput, clock: Clock, *, steps: int, step_s: float, num_rows: int = 8) -> None:
    for _ in range(steps):
        clock.now_s += step_s
        throughput.add(num_rows)


def test_throughput_is_rows_by_seconds_since_a_mark() -> None:
    clock = Clock()
    throughput = Throughput(warmup_steps=0, clock=clock)
    take(throughput, clock, steps=3, step_s=9.0)
    mark = throughput.mark()
    take(throughput, clock, steps=4, step_s=0.5)
    assert throughput.since(mark) == pytest.approx(4 * 8 / 2.0)


def test_first_steps_do_not_count() -> None:
    clock = Clock()
    throughput = Throughput(warmup_steps=2, clock=clock)
    begin = throughput.mark()
    take(throughput, clock, steps=2, step_s=10.0)
    assert not throughput.is_warm
    assert throughput.since(begin) == pytest.approx(8 / 10)  # there are no others yet
    take(throughput, clock, steps=3, step_s=0.25)
    assert throughput.is_warm
    assert throughput.since(begin) == pytest.approx(8 / 0.25)


def test_pauses_do_not_count_even_if_they_end_in_an_error() -> None:
    clock = Clock()
    throughput = Throughput(warmup_steps=0, clock=clock)
    mark = throughput.mark()
    take(throughput, clock, steps=2, step_s=0.5)
    with pytest.raises(OSError), throughput.pause():
        clock.now_s += 60
        raise OSError
    take(throughput, clock, steps=2, step_s=0.5)
    assert throughput.since(mark) == pytest.approx(8 / 0.5)


@pytest.mark.parametrize(("num_batches", "steps"), [(20, range(1, 8)), (150, [3, 6])])
def test_series_has_up_to_50_points_per_epoch(num_batches: int, steps: Iterable[int]) -> None:
    log = MetricRecord()
    series = Series(log, num_batches)
    for step in range(1, 8):
        series.on_log(step, {"train_loss": step / 10})
    assert log.points == [(step, {"steps/train_loss": step / 10}) for step in steps]


def test_tensorboard_needs_no_framework_and_is_not_imported_unless_it_is_asked_for(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from rankline.training.run.observers import TensorBoard
assert "tensorboard" not in sys.modules
board = TensorBoard(Path({str(tmp_path)!r}))
board.on_log(1, {{"train_loss": 0.5}})
board.close()
print(*sorted({{"tensorflow", "torch"}} & set(sys.modules)))
"""
    root = Path(__file__).parents[4]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
    assert len(list(tmp_path.iterdir())) == 1


class Recorder:
    """Says which steps it was told of."""

    def __init__(self) -> None:
        self.started = self.stopped = 0
        self.steps: list[int] = []

    def start(self) -> "Recorder":
        self.started += 1
        return self

    def step(self, step: int) -> None:
        self.steps.append(step)

    def stop(self) -> None:
        self.stopped += 1


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (1, 9, [3, 4, 5]),
        (1, 5, [3, 4, 5]),  # the run ends with the last of them
        (1, 4, [3, 4]),  # or is cut off
        (4, 9, [4, 5]),  # or goes on among them
        (6, 9, []),
    ],
)
def test_window_is_profiled_once(begin: int, end: int, expected: list[int]) -> None:
    recorder = Recorder()
    profile = Profile(3, 5, start=recorder.start)
    for step in range(begin, end + 1):
        profile.before_step(step)
    profile.close()
    profile.close()
    assert recorder.steps == expected
    assert recorder.started == recorder.stopped == bool(expected)


def test_steps_to_profile_that_never_come_are_refused() -> None:
    check_session(SessionConfig(profile_steps=(90, 100)), TENSORFLOW, num_steps=100)
    with pytest.raises(ConfigError, match=r"profile_steps is \(90, 100\), expected steps from 1 to 99"):
        check_session(SessionConfig(profile_steps=(90, 100)), TENSORFLOW, num_steps=99)


def steps(logger: ThroughputLogger, clock: Clock, *, number: int, step_s: float) -> dict[str, Any]:
    logs: dict[str, Any] = {}
    for batch in range(number):
        clock.now_s += step_s
        logger.on_train_batch_end(batch, logs)
    return logs


def test_rate_is_of_the_epoch_without_what_is_between_epochs() -> None:
    clock = Clock()
    logger = ThroughputLogger(64, clock)
    logger.on_train_begin()
    logger.on_epoch_begin(0)
    assert steps(logger, clock, number=10, step_s=5.0) == {
        "samples_per_s": pytest.approx(64 / 5)
    }  # there are no others
    assert steps(logger, clock, number=4, step_s=0.5) == {"samples_per_s": pytest.approx(64 / 0.5)}
    clock.now_s += 100  # validation
    logs: dict[str, Any] = {"val_loss": 1.0}
    logger.on_epoch_end(0, logs)
    assert logs == {"val_loss": 1.0, "samples_per_s": pytest.approx(64 / 0.5)}
    logger.on_epoch_begin(1)
    assert steps(logger, clock, number=4, step_s=0.25) == {"samples_per_s": pytest.approx(64 / 0.25)}
