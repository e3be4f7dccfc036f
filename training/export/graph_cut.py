"""A Keras model in two parts: the layers that look features up, and the dense network behind them."""

from typing import Any

import tf_keras as keras

from rankline.training.models.layers import DenseFeatures
from rankline.training.models.layers.sequence_features import SequenceFeatures
from rankline.workflows.core.errors import ExportError


def split_at_features(model: Any) -> tuple[list[Any], Any]:
    """Cut a model behind its feature layers.

    Args:
        model: functional Keras model that uses its inputs through `DenseFeatures` layers, ours or Keras' own, or
            `SequenceFeatures` only.

    Returns:
        The feature layers, and the rest as a Keras model that takes a list of their results, in the same order; these
        are tensors or, of `SequenceFeatures`, dicts of tensors.
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
