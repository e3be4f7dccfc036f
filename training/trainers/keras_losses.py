"""Loss of Keras models: each head's loss over the rows that have its label."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from rankline.workflows.schema.targets import BINARY, MULTICLASS, Head


def loss_of(heads: Sequence[Head], labels: Any, outputs: Sequence[Any]) -> Any:
    """Return the weighted mean of the losses of all heads, a scalar.

    With one head, all outputs are fitted to its label: SIM has two. With several, a row without a head's label
    contributes zero to its loss, and each loss is a mean over all rows, so that the losses of parts of a batch add up
    to the batch's.

    Args:
        heads: in the order of labels and outputs.
        labels: (N, number of heads), NaN if missing.
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
    """Return the loss of each row, (N,), from labels (N, 1) and an output (N, width)."""
    # Keras computes cross-entropies from logits if the probabilities are the direct output of sigmoid or softmax.
    if head.task == BINARY:
        return keras.losses.binary_crossentropy(labels, output)
    if head.task == MULTICLASS:
        return keras.losses.sparse_categorical_crossentropy(labels, output)
    return tf.reduce_mean(tf.square((labels - output) / head.deviation), axis=1)
