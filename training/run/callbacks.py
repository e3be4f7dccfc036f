"""Callbacks for Keras's own `fit`."""

import time
from collections.abc import Callable
from typing import Any

import tf_keras as keras

from rankline.training.run.observers import Throughput


class ThroughputLogger(keras.callbacks.Callback):  # type: ignore[misc]  # tensorflow has no types
    """Adds `samples_per_s` to the logs of each step, for its epoch so far, and of each epoch.

    The progress bar, `History` and the callbacks after this one find it there, so TensorBoard's goes behind it. It is
    what NVIDIA's notebook on Criteo has as `callbacks.ThroughputLogger(BATCH_SIZE)`. The first steps, which trace and
    compile, do not count as long as there are others, nor does validation.

    Args:
        batch_size: rows of a step. Keras tells no callback how many there were: a smaller last batch counts as whole.
    """

    _supports_tf_logs = True  # else Keras hands it a copy of the logs, which TensorBoard's callback does not see

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
