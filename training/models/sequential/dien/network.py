"""DIEN (Zhou et al. 2019, arXiv:1809.03672): interests that evolve over the latest items.

latest items ─▶ GRU ─▶ attention of the candidate ─▶ AUGRU ─▶ last state ─┐
                 └─▶ auxiliary loss                                      ├─▶ hidden ─▶ sigmoid
candidate, user ─────────────────────────────────────────────────────────┘
"""

from typing import Any

import tf_keras as keras

from rankline.training.models.base import keras_inputs
from rankline.training.models.config import StepConfig
from rankline.training.models.layers import AuxiliaryLoss, DienBlock
from rankline.training.models.sequential.dien import DIENConfig, EvolutionConfig
from rankline.training.models.sequential.network import check, hidden, learns_from_negatives, look_up, recent, score
from rankline.workflows.schema.feature_spec import FeatureSpec


def build(
    spec: FeatureSpec,
    model: DIENConfig,
    step: StepConfig,  # noqa: ARG001  (a network's signature)
) -> Any:
    """Build the model. Without negative histories in `spec` it has no auxiliary loss."""
    check(spec, model)
    inputs = keras_inputs(spec)
    num_recent = model.short_history if learns_from_negatives(spec, model) else 0
    found = look_up(inputs, spec, model, num_recent=num_recent, length=model.short_history)
    state = evolved(found["target"], found["history"], found["mask"], found.get("negatives"), model)
    mean, product = recent(found, model.short_history, model)
    x = hidden([found["target"], state, mean, product, found.get("user")], model.hidden, model)
    return keras.Model(inputs, score(x, found, [mean], spec, model))


def evolved(target: Any, latest: Any, present: Any, negatives: Any, model: EvolutionConfig) -> Any:
    """Return the state of the interests after the latest items, for each candidate: (N, C, `gru_units`).

    Args:
        target: candidates, (N, C, D).
        latest: latest items, (N, T, D).
        present: mask of the latest items, (N, T).
        negatives: a negative for each of these items, (N, T, D), for the auxiliary loss; None for no such loss.
    """
    state, states = DienBlock(model.gru_units, reference=model.is_reference)([target, latest, present])
    if negatives is None:
        return state
    auxiliary = AuxiliaryLoss(model.aux_hidden, model.aux_weight, reference=model.is_reference)
    return auxiliary([state, states, latest, negatives, present])
