"""SIM (Pi et al. 2020, arXiv:2006.05639): search in a long history, then attention over what was found.

earlier items ─▶ stage one: attention ─▶ stage_one_hidden ─▶ its own probability, which only learns
             └─▶ search ─▶ attention, mean ─┐
latest items ─▶ DIEN ───────────────────────┼─▶ hidden ─▶ sigmoid
candidate, user ────────────────────────────┘
"""

from typing import Any

import tensorflow as tf

from training.config import TrainConfig
from training.layers import DinAttention, DotAttention, HardSearch, SmoothedMean, SoftSearch
from training.models.base import keras_inputs, logit
from training.models.dien import evolved
from training.models.sequential import (
    REFERENCE,
    SplitHistory,
    check,
    hidden,
    learns_from_negatives,
    longest_history,
    look_up,
    probability,
    recent,
    score,
)
from workflows.feature_spec import FeatureSpec


def build(spec: FeatureSpec, config: TrainConfig) -> Any:
    """Build the model.

    A hard search takes nothing from stage one, which then is left out, as in the paper.

    Args:
        spec: says which features there are, and how large their tables are. Without negative histories there is no
            auxiliary loss.
        config: choices about the network; all but the `short_history` latest items are searched.

    Returns:
        A functional `tf.keras.Model`; its inputs are those of `keras_inputs`, its outputs have shape (N, C): "output",
        and with a soft search "stage_one".

    Raises:
        SpecError, ConfigError: see `training.models.sequential.check`.
    """
    check(spec, config)
    inputs = keras_inputs(spec)
    is_reference, is_soft = config.profile == REFERENCE, config.search == "soft"
    max_items = max(longest_history(spec), config.short_history)
    found = look_up(
        inputs,
        spec,
        config,
        num_recent=config.short_history if learns_from_negatives(spec, config) else 0,
        length=max_items if config.xla else None,
        same=not is_soft,
    )
    target, user = found["target"], found.get("user")
    earlier, present, latest, present_latest = SplitHistory(config.short_history)([found["history"], found["mask"]])
    outputs = []
    if is_soft:
        attended, scores = DotAttention()([target, earlier, present])
        stage_one = logit(hidden([target, attended, user], config.stage_one_hidden, config))[..., 0]
        outputs.append(probability(stage_one, "stage_one", spec))
        kept = SoftSearch(config.num_searched)([scores, present])
    else:
        kept = HardSearch(config.num_searched)(Earlier()([found["same"], present]))
    attended, _ = (DotAttention() if is_reference else DinAttention())([target, earlier, kept])
    product = None if is_reference else tf.keras.layers.Multiply()([target, attended])
    mean = SmoothedMean()([earlier, kept])
    recent_mean, recent_product = recent(found, max_items, config)
    state = evolved(target, latest, present_latest, found.get("negatives"), config)
    parts = [target, attended, product, mean, state, recent_mean, recent_product, user]
    x = hidden(parts, config.hidden, config)
    return tf.keras.Model(inputs, [score(x, found, [attended, recent_mean], spec, config), *outputs])


class Earlier(tf.keras.layers.Layer):  # type: ignore[misc]  # tensorflow has no types
    """What is said of a whole history, for its earlier part.

    Call with `[same, present]`: (N, C, T), and where the earlier part has items, (N, E). Returns (N, C, E).
    """

    def call(self, inputs: Any) -> Any:
        """Cut; see the class."""
        same, present = inputs
        return same[:, :, : tf.shape(present)[1]] * present[:, None]
