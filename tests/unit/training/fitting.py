"""What must hold of a fit whatever the framework, see `training.fit.Fit`."""

from collections.abc import Callable
from typing import Any

import numpy as np

from training.config import TrainConfig
from training.fit import Array, Fit
from workflows.feature_spec import FeatureSpec

Batch = tuple[Any, Any]
NUM_STEPS = 10


def learn(fit: Fit, batches: list[Batch]) -> None:
    for number, (inputs, labels) in enumerate(batches, start=1):
        fit.step(inputs, labels)
        if number % 2 == 0:
            fit.average()


def fitted(
    kind: type[Fit], spec: FeatureSpec, config: TrainConfig, batches: list[Batch], num_steps: int = NUM_STEPS
) -> Any:
    """A fit that has learnt from some batches."""
    fit = kind(spec, config, num_steps)
    learn(fit, batches)
    return fit


def assert_goes_on_like_one_without_a_break(
    straight: Fit, batches: list[Batch], make: Callable[[], Fit], meanwhile: Callable[[], Any] = lambda: None
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


def assert_state_is_a_copy(fit: Fit, batches: list[Batch], other: Fit, groups: set[str]) -> None:
    """What the fit learns changes no state that was taken before, and another fit of the model has the same names."""
    state = fit.state()
    kept = {name: array.copy() for name, array in state.items()}
    learn(fit, batches)
    assert_same(state, kept)
    assert state.keys() == other.state().keys()
    assert {name.split("/")[0] for name in state} == groups


def assert_same(state: dict[str, Array], expected: dict[str, Array]) -> None:
    for name, array in state.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
