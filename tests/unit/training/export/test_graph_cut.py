import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from rankline.training.export.graph_cut import split_at_features
from rankline.training.models.config import StepConfig
from rankline.training.models.mlp import MLPConfig
from rankline.workflows.core.errors import ExportError
from rankline.workflows.schema.feature_spec import FeatureSpec


def test_the_two_parts_one_behind_the_other_are_the_model(spec: FeatureSpec) -> None:
    model = MLPConfig(linear_terms=True).build(spec, StepConfig())
    layers, head = split_at_features(model)
    row = {name: tf.ones((1, 1), tensor.dtype) for name, tensor in model.input.items()}
    assert [layer.name for layer in layers] == ["features", "linear"]
    np.testing.assert_array_equal(head([layer(row) for layer in layers]), model(row))
    assert {id(weight) for layer in [*layers, head] for weight in layer.weights} == {id(w) for w in model.weights}


def test_a_model_of_keras_own_feature_layers_has_two_parts_too() -> None:
    ids = tf.feature_column.categorical_column_with_identity("user", 5)
    inputs = {"user": keras.Input((1,), name="user", dtype=tf.int64)}
    looked_up = keras.layers.DenseFeatures([tf.feature_column.embedding_column(ids, 2)])(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(looked_up))
    layers, head = split_at_features(model)
    assert [weight.shape.as_list() for weight in layers[0].weights] == [[5, 2]]
    assert [weight.shape.as_list() for weight in head.weights] == [[2, 1], [1]]


def test_an_input_that_is_used_otherwise_is_refused() -> None:
    inputs = {"age": keras.Input((1,), name="age")}
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs["age"]))
    with pytest.raises(ExportError, match="uses an input outside of DenseFeatures"):
        split_at_features(model)
