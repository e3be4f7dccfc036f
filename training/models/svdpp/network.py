"""SVD++ (Koren 2008, "Factorization meets the neighborhood"), with grades and attention.

candidate ─▶ embeddings ─▶ linear terms ───────────────────────────────┐
                 └───────┬─▶ sums over the rated items ─▶ all pairs ───┤
history ───▶ embeddings ─┴─▶ kernel regression of the grades ─▶ linear ┴─▶ sigmoid
                                                    └─▶ hidden ────────┘

There is no vector of a user: users are what they rated. So an unknown one is one without ratings, and no weight can
learn what the rating of a row is from the grades that are left when it is left out.
"""

from typing import Any

import tensorflow as tf
import tf_keras as keras

from training.layers import Mlp, RatedHistory, SequenceFeatures
from training.models import check_rows
from training.models.base import UniformIds, dropped, keras_inputs, logit
from training.models.config import StepConfig
from training.models.svdpp import SVDppConfig
from workflows.feature_spec import FeatureSpec


def build(spec: FeatureSpec, model: SVDppConfig, step: StepConfig) -> Any:  # noqa: ARG001  (any step is laid out so)
    """The diagram above.

    Raises:
        SpecError: the rows have no histories, or histories without grades.
    """
    check_rows(spec, model)
    inputs = keras_inputs(spec)
    layer = SequenceFeatures(
        spec,
        dimension=model.embedding_dim,
        initializer=UniformIds(model.embedding_init) if model.embedding_init else "truncated_normal",
        users=False,
        biases=model.linear_terms,
        grades=True,
        name="features",
    )
    found = dict(layer(inputs))
    target = _held(found["target"], model.l2_embedding, "target")
    rated = [target, *(found[name] for name in ("history", "mask", "own", "grade"))]
    graded, implicit, numbers = RatedHistory(model.heads)(rated)
    vectors = [dropped(part, model.embedding_dropout) for part in (target, graded, implicit)]
    logits = logit(numbers)[..., 0] + _pairs(*vectors)
    if model.linear_terms:
        logits += model.linear_scale * _held(found["bias"], model.l2_linear, "bias")
    if model.hidden:
        deep = Mlp(model.hidden, dropout=model.dropout)(tf.concat([*vectors, target * graded, numbers], axis=2))
        logits += logit(deep)[..., 0]
    return keras.Model(inputs, keras.layers.Activation("sigmoid", dtype=tf.float32, name="output")(logits))


def _pairs(target: Any, graded: Any, implicit: Any) -> Any:
    """The dot products of all pairs, (N, C)."""
    return tf.reduce_sum(target * graded + target * implicit + graded * implicit, axis=2)


def _held(x: Any, l2: float, name: str) -> Any:
    """`x` with a penalty on its squared norm, averaged over the rows."""
    return keras.layers.ActivityRegularization(l2=l2, dtype=tf.float32, name=f"{name}_penalty")(x) if l2 else x
