"""Validation of saved trainer states."""

from collections.abc import Mapping

import numpy as np

from rankline.training.trainers.base import Array
from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.core.formatting import listed

_SHOWN = 3


def check_state(state: Mapping[str, Array], expected: Mapping[str, tuple[int, ...]]) -> None:
    shapes = [
        f"{name} {np.shape(state[name])} instead of {shape}"
        for name, shape in expected.items()
        if name in state and np.shape(state[name]) != shape
    ]
    parts = {
        "lacks": sorted(expected.keys() - state.keys()),
        "has the unknown": sorted(state.keys() - expected.keys()),
        "has": shapes,
    }
    if differences := [f"it {verb} {listed(names, _SHOWN)}" for verb, names in parts.items() if names]:
        raise ArtifactError(
            f"the saved state is of another model: {'; '.join(differences)}. "
            "Go on with the configuration that it was saved under, or start anew."
        )
