"""DIEN (Zhou et al. 2019, arXiv:1809.03672): interests that evolve over the latest items.

latest items ─▶ GRU ─▶ attention of the candidate ─▶ AUGRU ─▶ last state ─┐
                 └─▶ auxiliary loss                                      ├─▶ hidden ─▶ sigmoid
candidate, user ─────────────────────────────────────────────────────────┘
"""

from typing import Any

import tensorflow as tf

from training.config import TrainConfig
from training.layers import AuxiliaryLoss, DienBlock
from training.models.base import keras_inputs
from training.models.sequential import REFERENCE, check, hidden, learns_from_negatives, look_up, recent, score
from workflows.feature_spec import FeatureSpec


def build(spec: FeatureSpec, config: TrainConfig) -> Any:
    """Build the model.

    Args:
        spec: says which features there are, and how large their tables are. Without negative histories there is no
            auxiliary loss.
        config: choices about the network; of a history only the `short_history` latest items count.

    Returns:
        A functional `tf.keras.Model`; its inputs are those of `keras_inputs`, its output "output" has shape (N, C).

    Raises:
        SpecError, ConfigError: see `training.models.sequential.check`.
    """
    check(spec, config)
    inputs = keras_inputs(spec)
    num_recent = config.short_history if learns_from_negatives(spec, config) else 0
    found = look_up(inputs, spec, config, num_recent=num_recent, length=config.short_history)
    state = evolved(found["target"], found["history"], found["mask"], found.get("negatives"), config)
    mean, product = recent(found, config.short_history, config)
    x = hidden([found["target"], state, mean, product, found.get("user")], config.hidden, config)
    return tf.keras.Model(inputs, score(x, found, [mean], spec, config))


def evolved(target: Any, latest: Any, present: Any, negatives: Any, config: TrainConfig) -> Any:
    """The interest of the latest items for each candidate.

    Args:
        target: candidates, (N, C, D).
        latest: latest items, (N, T, D).
        present: where there are some, (N, T).
        negatives: items beside them that were not chosen, (N, T, D), for the auxiliary loss; None for none.
        config: choices about the network.

    Returns:
        (N, C, `gru_units`).
    """
    is_reference = config.profile == REFERENCE
    state, states = DienBlock(config.gru_units, reference=is_reference)([target, latest, present])
    if negatives is None:
        return state
    auxiliary = AuxiliaryLoss(config.aux_hidden, config.aux_weight, reference=is_reference)
    return auxiliary([state, states, latest, negatives, present])
