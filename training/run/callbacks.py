"""Callbacks for Keras's own `fit`."""

import time
from collections.abc import Callable
from typing import Any

import tf_keras as keras

from rankline.training.run.observers import Throughput


class ThroughputLogger(keras.callbacks.Callback):  # type: ignore[misc]  # tensorflow has no types
    """Adds `samples_per_s` to the logs: the running average after each step, and the overall average after the epoch.

    The progress bar, `History` and later callbacks can read it, so TensorBoard's callback must come after this one. It
    replaces `callbacks.ThroughputLogger(BATCH_SIZE)` of NVIDIA's Criteo notebook. Validation does not count, nor do the
    first steps, which trace and compile, unless there are no others.

    Args:
        batch_size: rows per step. Keras does not tell callbacks the number of rows, so a smaller last batch counts as a
            full one.
    """

    _supports_tf_logs = True  # otherwise Keras passes a copy of the logs, and later callbacks do not see the addition

    def __init__(self, batch_size: int, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__()
        self._batch_size, self._clock = batch_size, clock
        self._rate = 0.0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002  (Keras's signature)
        self._throughput = Throughput(clock=self._clock)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        self._began = self._throughput.mark()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        self._throughput.add(self._batch_size)
        self._rate = self._throughput.since(self._began)
        self._add_to(logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        self._add_to(logs)

    def _add_to(self, logs: dict[str, Any] | None) -> None:
        if logs is not None:
            logs["samples_per_s"] = self._rate
