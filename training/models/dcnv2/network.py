"""DCN-V2 (Wang et al. 2020, arXiv:2008.13535): cross layers over embeddings and numbers, then dense layers.

This is the stacked variant: the dense layers follow the cross layers and see their explicit products. Without `hidden`
it is the cross network alone.
"""

from typing import Any

import tf_keras as keras

from rankline.training.models.base import dense_layers, embedded, keras_inputs, scores
from rankline.training.models.config import StepConfig
from rankline.training.models.dcnv2 import DCNv2Config
from rankline.training.models.layers import Cross
from rankline.workflows.schema.feature_spec import FeatureSpec


def build(spec: FeatureSpec, model: DCNv2Config, step: StepConfig) -> Any:
    inputs = keras_inputs(spec)
    start = x = embedded(inputs, spec, model, step)
    for _ in range(model.cross_layers):
        x = Cross(model.cross_rank)([start, x])
    x = dense_layers(x, model.hidden, model.dropout)
    return keras.Model(inputs=inputs, outputs=scores(x, inputs, spec, model, step))
