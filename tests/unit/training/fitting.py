"""What must hold of a fit whatever the framework, see `training.trainers.base.Trainer`."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from training.config import TrainConfig
from training.trainers.base import Array, Trainer
from workflows.auc import exact_auc
from workflows.feature_spec import FeatureSpec

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
    assert resumed.state().keys() == expected.keys()
    assert_same(resumed.state(), expected)
    assert resumed.loss_sum() == straight.loss_sum()


def assert_state_is_a_copy(trainer: Trainer, batches: list[Batch], other: Trainer, groups: set[str]) -> None:
    """What the fit learns changes no state that was taken before, and another fit of the model has the same names."""
    state = trainer.state()
    kept = {name: array.copy() for name, array in state.items()}
    learn(trainer, batches)
    assert_same(state, kept)
    assert state.keys() == other.state().keys()
    assert {name.split("/")[0] for name in state} == groups


def assert_same(state: dict[str, Array], expected: dict[str, Array]) -> None:
    for name, array in state.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def assert_score_alike(mixed: Trainer, single: Trainer, batches: list[Batch], labels: Array) -> None:
    """A fit in mixed precision has other weights than one in float32, and ranks the labels of the batches as well."""
    assert any(np.any(a != b) for a, b in zip(mixed.weights(), single.weights(), strict=True))
    aucs = []
    for trainer in (mixed, single):
        scores = np.concatenate([trainer.score(inputs) for inputs, _ in batches])
        assert scores.dtype == np.float32
        aucs.append(exact_auc(labels, scores))
    assert aucs[0] == pytest.approx(aucs[1], abs=0.01)
    assert aucs[1] > 0.8
