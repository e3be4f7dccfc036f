from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tf_keras as keras
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rankline.training.run.callbacks import ThroughputLogger
from tests.factories.recorders import Clock


def steps(logger: ThroughputLogger, clock: Clock, *, number: int, step_s: float) -> dict[str, Any]:
    logs: dict[str, Any] = {}
    for batch in range(number):
        clock.now_s += step_s
        logger.on_train_batch_end(batch, logs)
    return logs


def test_the_rate_is_of_the_epoch_without_what_is_between_epochs() -> None:
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


def test_history_and_tensorboard_have_the_rate(tmp_path: Path) -> None:
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    board = keras.callbacks.TensorBoard(str(tmp_path), update_freq=2, profile_batch=0, write_graph=False)
    rows = np.zeros((64, 3), np.float32)
    fitted = model.fit(
        rows,
        rows[:, 0],
        batch_size=8,
        epochs=2,
        verbose=0,
        callbacks=[ThroughputLogger(8), board],
        validation_split=0.5,
    )
    assert len(fitted.history["samples_per_s"]) == 2
    assert min(fitted.history["samples_per_s"]) > 0
    events = EventAccumulator(str(tmp_path / "train"), {"tensors": 0})
    events.Reload()
    assert {"batch_samples_per_s", "epoch_samples_per_s"} <= set(events.Tags()["tensors"])
