"""What DIN, DIEN and SIM are built from.

Shapes as in `rankline.training.models.layers.attention`: N rows, C candidates of each (1 in training), T items of a
history, D numbers per item. Every score of a row uses one history, so that ranking many candidates costs little more
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
    """Refuse what a model with histories cannot be built from."""
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
    """Users, candidates and histories as embeddings, with penalties and dropout.

    Returns:
        What `SequenceFeatures` gives. "user" is there if the model uses users and there are any; "bias" with
        `linear_terms`.
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
    found = dict(layer(inputs))  # Keras keeps the original
    for name in ("target", "history", "user", "negatives"):
        if name in found:
            found[name] = dropped(_held(found[name], model.l2_embedding, name), model.embedding_dropout)
    if "bias" in found:
        found["bias"] = _held(found["bias"], model.l2_linear, "bias")
    return found


def hidden(parts: Any, units: Any, model: SequentialConfig) -> Any:
    """Dense layers on `parts` side by side, see `Beside`; (N, C, units[-1])."""
    return Mlp(units, dropout=model.dropout)(Beside()([part for part in parts if part is not None]))


def recent(found: dict[str, Any], max_items: int, model: SequentialConfig) -> tuple[Any | None, Any | None]:
    """What the history is by how long ago its items were chosen, and its product with the candidates.

    Returns:
        (N, D) and (N, C, D), with `recency`; else nothing.
    """
    if not model.recency:
        return None, None
    mean = RecencyMean(max_items)([found["history"], found["mask"]])
    return mean, keras.layers.Multiply()([found["target"], mean[:, None]])


def score(x: Any, found: dict[str, Any], summaries: Iterable[Any], spec: FeatureSpec, model: SequentialConfig) -> Any:
    """The probabilities "output", (N, C).

    With `linear_terms` the weights of the candidate's ids join the logit, with `dot_product_features` the dot products
    of candidate and summaries.

    Args:
        x: (N, C, H).
        found: of `look_up`.
        summaries: of the history, (N, C, D) or (N, D); None for one that there is not.
        spec: the features.
        model: its choices.
    """
    logits = logit(x)[..., 0]
    if "bias" in found:
        logits += model.linear_scale * found["bias"]
    for summary in summaries if model.dot_product_features else ():
        if summary is not None:
            logits += DotProductFeatures(model.embedding_dim)([found["target"], summary])
    return probability(logits, "output", spec)


def probability(logits: Any, name: str, spec: FeatureSpec) -> Any:
    """Their sigmoid, float32; of one negative for each positive, however many the rows of `spec` have."""
    if (num_negatives := spec.metadata.negatives or 1) > 1:
        logits = PriorShift(num_negatives)(logits)
    return keras.layers.Activation("sigmoid", dtype=tf.float32, name=name)(logits)


class Beside(keras.layers.Layer):  # type: ignore[misc]  # tensorflow has no types
    """Puts tensors side by side: (N, C, D), and (N, D), which is the same for all candidates.

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
    """Cuts a history before its latest items.

    Call with `[history, present]`: (N, T, D) and (N, T). Returns four tensors: the earlier part, (N, max(T - R, 1), D),
    and where it has items; the latest part, (N, R, D), and where it has items. A part that would be too short has a
    place without an item in front.
    """

    def __init__(self, num_recent: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_recent = num_recent

    def call(self, inputs: Any) -> tuple[Any, Any, Any, Any]:
        history, present = inputs
        missing = tf.maximum(self.num_recent + 1 - tf.shape(present)[1], 0)
        history, present = tf.pad(history, [[0, 0], [missing, 0], [0, 0]]), tf.pad(present, [[0, 0], [missing, 0]])
        # Not slices, whose gradients are as large as the whole, and are added up.
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
    """`x` with a penalty on its squared norm, averaged over the rows; in float32, in which no square overflows."""
    return keras.layers.ActivityRegularization(l2=l2, dtype=tf.float32, name=f"{name}_penalty")(x) if l2 else x


def _initializer(model: SequentialConfig) -> Any:
    if model.embedding_init:
        return UniformIds(model.embedding_init)
    if model.is_reference:  # uniform in ± 1/√rows
        return keras.initializers.VarianceScaling(scale=1 / 3, mode="fan_in", distribution="uniform")
    return keras.initializers.TruncatedNormal(stddev=model.embedding_dim**-0.5)
