"""Split of a Keras model into the layers that look up features, and the dense network after them."""

from typing import Any

import tf_keras as keras

from rankline.training.models.layers import DenseFeatures
from rankline.training.models.layers.sequence_features import SequenceFeatures
from rankline.workflows.core.errors import ExportError


def split_at_features(model: Any) -> tuple[list[Any], Any]:
    """Split a model after its feature layers.

    Args:
        model: functional Keras model that uses its inputs only through `DenseFeatures` layers, Rankline's or Keras'
            own, or through `SequenceFeatures`.

    Returns:
        The feature layers, and the rest as a Keras model whose input is the list of their outputs in the same order:
        tensors or, for `SequenceFeatures`, dicts of tensors.
    """
    kinds = DenseFeatures | SequenceFeatures | keras.layers.DenseFeatures
    layers = [layer for layer in model.layers if isinstance(layer, kinds)]
    try:
        return layers, keras.Model([layer.output for layer in layers], model.output)
    except ValueError as error:
        raise ExportError(
            "the model uses an input outside of DenseFeatures or SequenceFeatures, so it has no serving form "
            f"({error})."
        ) from None
