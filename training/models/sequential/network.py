"""Building blocks of DIN, DIEN and SIM.

Shapes as in `rankline.training.models.layers.attention`: N rows, C candidates per row (1 in training), T items in a
history, D values per item. All scores of a row share one history, so that ranking many candidates costs little more
than ranking one.
"""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf
import tf_keras as keras

from rankline.training.models import check_rows
from rankline.training.models.base import UniformIds, dropped, logit
from rankline.training.models.config import SequentialConfig
from rankline.training.models.layers import DotProductFeatures, Mlp, PriorShift, RecencyMean, SequenceFeatures
from rankline.workflows.core.errors import SpecError
from rankline.workflows.schema.feature_spec import CATEGORICAL, HISTORY, NEGATIVES, FeatureSpec


def check(spec: FeatureSpec, model: SequentialConfig) -> None:
    check_rows(spec, model)
    if others := [feature.name for feature in (*spec.channel(CATEGORICAL), *spec.continuous)]:
        raise SpecError(
            f"model {model.name!r} takes ids of users, items and histories only, got {others} in other channels. "
            "Leave them out, or put ids into channel 'user_features'."
        )


def learns_from_negatives(spec: FeatureSpec, model: SequentialConfig) -> bool:
    return model.uses_negatives and bool(spec.channel(NEGATIVES))


def longest_history(spec: FeatureSpec) -> int:
    return max(feature.max_length or 0 for feature in spec.channel(HISTORY))


def look_up(inputs: Any, spec: FeatureSpec, model: SequentialConfig, **options: Any) -> dict[str, Any]:
    """Look up users, candidates and histories as embeddings, with penalties and dropout.

    Returns:
        Output of `SequenceFeatures`, with "user" if the model uses users and the spec has any, and with "bias" if the
        model has `linear_terms`.
    """
    layer = SequenceFeatures(
        spec,
        dimension=model.embedding_dim,
        initializer=_initializer(model),
        users=model.user_embeddings,
        biases=model.linear_terms,
        name="features",
        **options,
    )
    found = dict(layer(inputs))  # a copy, because Keras keeps the original
    for name in ("target", "history", "user", "negatives"):
        if name in found:
            found[name] = dropped(_held(found[name], model.l2_embedding, name), model.embedding_dropout)
    if "bias" in found:
        found["bias"] = _held(found["bias"], model.l2_linear, "bias")
    return found


def hidden(parts: Any, units: Any, model: SequentialConfig) -> Any:
    """Apply dense layers to `parts` side by side, see `Beside`; returns (N, C, units[-1])."""
    return Mlp(units, dropout=model.dropout)(Beside()([part for part in parts if part is not None]))


def recent(found: dict[str, Any], max_items: int, model: SequentialConfig) -> tuple[Any | None, Any | None]:
    """Summarize the history by recency, and multiply the summary by the candidates.

    Returns:
        (N, D) and (N, C, D); None for both without `recency`.
    """
    if not model.recency:
        return None, None
    mean = RecencyMean(max_items)([found["history"], found["mask"]])
    return mean, keras.layers.Multiply()([found["target"], mean[:, None]])


def score(x: Any, found: dict[str, Any], summaries: Iterable[Any], spec: FeatureSpec, model: SequentialConfig) -> Any:
    """Return the probabilities "output", (N, C).

    With `linear_terms` the weights of the candidate's ids are added to the logit, with `dot_product_features` the dot
    products of the candidate and the summaries.

    Args:
        x: (N, C, H).
        found: output of `look_up`.
        summaries: summaries of the history, (N, C, D) or (N, D); None entries are skipped.
    """
    logits = logit(x)[..., 0]
    if "bias" in found:
        logits += model.linear_scale * found["bias"]
    for summary in summaries if model.dot_product_features else ():
        if summary is not None:
            logits += DotProductFeatures(model.embedding_dim)([found["target"], summary])
    return probability(logits, "output", spec)


def probability(logits: Any, name: str, spec: FeatureSpec) -> Any:
    """Return the sigmoid of the logits, float32, calibrated to one negative per positive."""
    if (num_negatives := spec.metadata.negatives or 1) > 1:
        logits = PriorShift(num_negatives)(logits)
    return keras.layers.Activation("sigmoid", dtype=tf.float32, name=name)(logits)


class Beside(keras.layers.Layer):  # type: ignore[misc]  # tensorflow has no types
    """Concatenates tensors (N, C, D), and (N, D), which are repeated for all candidates.

    Call with a list whose first tensor is (N, C, D); returns (N, C, sum of all D).
    """

    def call(self, inputs: list[Any]) -> Any:
        axes = tf.shape(inputs[0])[:2]
        parts = [
            x if x.shape.rank == 3 else tf.broadcast_to(x[:, None], tf.concat([axes, [x.shape[-1]]], axis=0))
            for x in inputs
        ]
        return tf.concat(parts, axis=-1)


class SplitHistory(keras.layers.Layer):  # type: ignore[misc]  # tensorflow has no types
    """Splits off the latest items of a history.

    Call with `[history, present]`: (N, T, D) and (N, T). Returns four tensors: the earlier part, (N, max(T - R, 1), D),
    and its mask; the latest part, (N, R, D), and its mask. A part that would be too short is padded in front.
    """

    def __init__(self, num_recent: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_recent = num_recent

    def call(self, inputs: Any) -> tuple[Any, Any, Any, Any]:
        history, present = inputs
        missing = tf.maximum(self.num_recent + 1 - tf.shape(present)[1], 0)
        history, present = tf.pad(history, [[0, 0], [missing, 0], [0, 0]]), tf.pad(present, [[0, 0], [missing, 0]])
        # Splits instead of slices, whose gradients are as large as the whole tensor and must be summed.
        sizes = tf.stack([tf.shape(present)[1] - self.num_recent, self.num_recent])
        (earlier, latest), (present_earlier, present_latest) = (
            tf.split(x, sizes, axis=1, num=2) for x in (history, present)
        )
        return (
            earlier,
            present_earlier,
            tf.ensure_shape(latest, (None, self.num_recent, history.shape[-1])),
            tf.ensure_shape(present_latest, (None, self.num_recent)),
        )

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_recent": self.num_recent}


def _held(x: Any, l2: float, name: str) -> Any:
    """Add a penalty on the squared norm of `x`, averaged over the rows, in float32 to avoid overflow of the squares."""
    return keras.layers.ActivityRegularization(l2=l2, dtype=tf.float32, name=f"{name}_penalty")(x) if l2 else x


def _initializer(model: SequentialConfig) -> Any:
    if model.embedding_init:
        return UniformIds(model.embedding_init)
    if model.is_reference:  # uniform in ± 1/√rows
        return keras.initializers.VarianceScaling(scale=1 / 3, mode="fan_in", distribution="uniform")
    return keras.initializers.TruncatedNormal(stddev=model.embedding_dim**-0.5)
