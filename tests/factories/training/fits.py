"""What must hold of a fit whatever the framework, see `rankline.training.trainers.base.Trainer`."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rankline.training.config.train import TrainConfig
from rankline.training.trainers.base import Array, Trainer
from rankline.workflows.schema.feature_spec import FeatureSpec

Batch = tuple[Any, Any]
NUM_STEPS = 10


def learn(trainer: Trainer, batches: list[Batch]) -> None:
    for number, (inputs, labels) in enumerate(batches, start=1):
        trainer.step(inputs, labels)
        if number % 2 == 0:
            trainer.average()


def fitted(
    kind: type[Trainer], spec: FeatureSpec, config: TrainConfig, batches: list[Batch], num_steps: int = NUM_STEPS
) -> Any:
    """A fit that has learnt from some batches."""
    trainer = kind(spec, config, num_steps)
    learn(trainer, batches)
    return trainer


def assert_goes_on_like_one_without_a_break(
    straight: Trainer, batches: list[Batch], make: Callable[[], Trainer], meanwhile: Callable[[], Any] = lambda: None
) -> None:
    """A fit that `make` gives takes up the state of `straight`, and both learn the same from the batches."""
    saved = straight.state()
    learn(straight, batches)
    resumed = make()
    resumed.restore(saved)
    meanwhile()
    learn(resumed, batches)
    expected = straight.state()
    assert_same(resumed.state(), expected)
    assert resumed.loss_sum() == straight.loss_sum()


def assert_same(state: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    assert state.keys() == expected.keys()
    for name, array in state.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
