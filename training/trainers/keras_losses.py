"""What a Keras model is fitted by: the loss of each head, over the rows that have its label."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from rankline.workflows.schema.targets import BINARY, MULTICLASS, Head


def loss_of(heads: Sequence[Head], labels: Any, outputs: Sequence[Any]) -> Any:
    """The mean of the losses of all heads by their weights, a scalar.

    Of one head, all outputs are fitted to its label: SIM has two. Of several, a row without the label of a head adds
    nothing to that one, and each head's loss is a mean over all rows, so that parts of a batch add up to the whole.

    Args:
        heads: in the order of labels and outputs.
        labels: (N, number of heads), NaN where there is none.
        outputs: (N, width) each, as `rankline.training.models.base.scores` makes them.
    """
    if len(heads) == 1:
        losses = [tf.reduce_mean(_row_losses(heads[0], labels, output)) for output in outputs]
        return tf.add_n(losses) / len(losses)
    weighted = []
    for head, own, output in zip(heads, tf.unstack(labels[..., None], axis=1), outputs, strict=False):
        has_label = tf.math.is_finite(own)
        losses = _row_losses(head, tf.where(has_label, own, tf.zeros_like(own)), output)
        weighted.append(head.weight * tf.reduce_mean(losses * tf.cast(has_label[:, 0], losses.dtype)))
    return tf.add_n(weighted) / sum(head.weight for head in heads)


def _row_losses(head: Head, labels: Any, output: Any) -> Any:
    """Labels (N, 1) against an output (N, width): shape (N,)."""
    # Keras takes cross-entropies from the logits where probabilities come straight from a sigmoid or softmax.
    if head.task == BINARY:
        return keras.losses.binary_crossentropy(labels, output)
    if head.task == MULTICLASS:
        return keras.losses.sparse_categorical_crossentropy(labels, output)
    return tf.reduce_mean(tf.square((labels - output) / head.deviation), axis=1)
