"""Observers that measure a run's throughput, log its metrics to MLflow and TensorBoard, and profile it.

TensorBoard is imported only when used, and its scalars need neither TensorFlow nor PyTorch.
"""

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rankline.training.config.train import SessionConfig
from rankline.training.models.frameworks import PYTORCH, TENSORFLOW, Framework
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.optional_packages import require

if TYPE_CHECKING:
    from rankline.training.tracking import RunLog

_WARMUP_STEPS = 10  # tracing, compiling and filling caches
_POINTS = 50  # of a curve, per epoch


class Mark(NamedTuple):
    active_s: float
    num_rows: int


class Throughput:
    """Samples per second between two points of a run, excluding warm-up steps and pauses."""

    def __init__(self, warmup_steps: int = _WARMUP_STEPS, clock: Callable[[], float] = time.perf_counter) -> None:
        self._warmup_steps, self._clock = warmup_steps, clock
        self._num_steps = self._num_rows = 0
        self._paused_s = 0.0
        self._warm = self.mark()

    @property
    def is_warm(self) -> bool:
        return self._num_steps > self._warmup_steps

    def add(self, num_rows: int) -> None:
        self._num_steps += 1
        self._num_rows += num_rows
        if self._num_steps == self._warmup_steps:
            self._warm = self.mark()

    def mark(self) -> Mark:
        return Mark(active_s=self._clock() - self._paused_s, num_rows=self._num_rows)

    def since(self, mark: Mark) -> float:
        start, now = max(mark, self._warm) if self.is_warm else mark, self.mark()
        return (now.num_rows - start.num_rows) / (now.active_s - start.active_s)

    @contextmanager
    def pause(self) -> Iterator[None]:
        began = self._clock()
        try:
            yield
        finally:
            self._paused_s += self._clock() - began


class TrialPruned(Exception):  # noqa: N818  (no error)
    """Raised by the observer of a tuning trial to stop a run that is not worth finishing."""


class Observer:
    """Base class for receivers of a run's events. All methods do nothing."""

    every_step = False
    """Whether to call `on_log` after every step instead of a few times per second."""

    def before_step(self, step: int) -> None:
        """Called before a step; `step` counts from 1 over all epochs."""

    def after_step(self, step: int, num_rows: int) -> None:
        """Called after a step; `num_rows` counts the rows of all workers."""

    def on_log(self, step: int, figures: Mapping[str, float]) -> None:
        """Called every few steps with the metrics since the previous call."""

    def after_epoch(self, step: int, figures: Mapping[str, float]) -> None:
        """Called at the end of an epoch with its training and validation metrics."""

    def after_checkpoint(self, step: int) -> None:
        """Called when the checkpoint of `step` is on disk."""

    def close(self) -> None:
        """Called at the end of the run, including after errors."""


def _forwarded(event: str) -> Callable[..., None]:
    def forward(self: "Observers", *arguments: Any) -> None:
        for observer in self.observers:
            getattr(observer, event)(*arguments)

    return forward


class Observers(Observer):
    """Forwards each event to several observers. Closes all of them even if one fails."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self.observers = tuple(observers)
        self.every_step = any(observer.every_step for observer in self.observers)

    before_step, after_step, on_log = map(_forwarded, ("before_step", "after_step", "on_log"))
    after_epoch, after_checkpoint = map(_forwarded, ("after_epoch", "after_checkpoint"))

    def close(self) -> None:
        with ExitStack() as at_end:
            for observer in self.observers:
                at_end.callback(observer.close)


def check_session(session: SessionConfig, framework: Framework, num_steps: int) -> None:
    if session.profile_steps and session.profile_steps[1] > num_steps:
        raise ConfigError(f"profile_steps is {session.profile_steps}, expected steps from 1 to {num_steps}.")
    if session.profile_steps and framework.name not in _PROFILERS:
        raise ConfigError(
            f"profile_steps is set, but no profiler is available for {framework.name}. Remove profile_steps."
        )
    if session.tensorboard or session.profile_steps:
        require("tensorboard", feature="tensorboard", extra=framework.extra)


def observers_of(
    session: SessionConfig, framework: Framework, directory: Path, log: "RunLog", num_batches: int
) -> list[Observer]:
    observers: list[Observer] = [Series(log, num_batches)]
    if session.tensorboard or session.profile_steps:
        observers.append(TensorBoard(directory))
    if session.profile_steps:
        first, last = session.profile_steps
        observers.append(Profile(first, last, start=lambda: _PROFILERS[framework.name](directory)))
    return observers


class Series(Observer):
    """Logs metrics to MLflow as `steps/NAME`, up to `_POINTS` times per epoch, so that long epochs can be watched."""

    def __init__(self, log: "RunLog", num_batches: int) -> None:
        self._log, self._every, self._logged = log, max(num_batches // _POINTS, 1), 0

    def on_log(self, step: int, figures: Mapping[str, float]) -> None:
        if step - self._logged >= self._every:
            self._logged = step
            self._log.log_metrics({f"steps/{name}": figure for name, figure in figures.items()}, step)


class TensorBoard(Observer):
    def __init__(self, directory: Path) -> None:
        from tensorboard.compat.proto import event_pb2  # type: ignore[import-untyped]
        from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c  # type: ignore[import-untyped]

        self._event, self._checksum = event_pb2.Event, masked_crc32c
        directory.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        self._file = (directory / name).open("ab")
        self._write(file_version="brain.Event:2")

    def on_log(self, step: int, figures: Mapping[str, float]) -> None:
        values = [{"tag": name, "simple_value": figure} for name, figure in figures.items()]
        self._write(step=step, summary={"value": values})

    after_epoch = on_log

    def close(self) -> None:
        self._file.close()

    def _write(self, **content: Any) -> None:
        """Append an event as a TFRecord: length, checksum of the length, event, checksum of the event."""
        event = self._event(wall_time=time.time(), **content).SerializeToString()
        length = len(event).to_bytes(8, "little")
        self._file.write(length + self._crc(length) + event + self._crc(event))
        self._file.flush()

    def _crc(self, content: bytes) -> bytes:
        checksum: int = self._checksum(content)
        return checksum.to_bytes(4, "little")


class Profiler(Protocol):
    """A framework's profiler, already recording."""

    def step(self, step: int) -> None:
        """Mark the start of a step."""

    def stop(self) -> None: ...


class Profile(Observer):
    def __init__(self, first: int, last: int, start: Callable[[], Profiler]) -> None:
        self._first, self._last, self._start = first, last, start
        self._profiler: Profiler | None = None

    def before_step(self, step: int) -> None:
        if step > self._last:
            self.close()
        elif step >= self._first:
            self._profiler = self._profiler or self._start()
            self._profiler.step(step)

    def after_epoch(self, step: int, figures: Mapping[str, float]) -> None:  # noqa: ARG002  (an observer's signature)
        if step >= self._last:
            self.close()

    def close(self) -> None:
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None


class _TensorFlowProfiler:
    """TensorFlow's profiler; view its output with the TensorBoard plugin tensorboard-plugin-profile."""

    def __init__(self, directory: Path) -> None:
        import tensorflow as tf

        self._module = tf.profiler.experimental
        self._step: Any = None
        self._module.start(str(directory))

    def step(self, step: int) -> None:
        self._end_step()
        self._step = self._module.Trace("train", step_num=step, _r=1)  # _r marks a step of the training loop
        self._step.__enter__()

    def stop(self) -> None:
        self._end_step()
        self._module.stop()

    def _end_step(self) -> None:
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None


class _TorchProfiler:
    """PyTorch's profiler; view its output with the TensorBoard plugin torch-tb-profiler, or with Perfetto."""

    def __init__(self, directory: Path) -> None:
        import torch

        write = torch.profiler.tensorboard_trace_handler(str(directory))
        self._profile = torch.profiler.profile(on_trace_ready=write)
        self._profile.start()

    def step(self, step: int) -> None:  # noqa: ARG002  (PyTorch counts steps itself)
        self._profile.step()

    def stop(self) -> None:
        self._profile.stop()


_PROFILERS: Mapping[str, Callable[[Path], Profiler]] = {
    TENSORFLOW.name: _TensorFlowProfiler,
    PYTORCH.name: _TorchProfiler,
}
