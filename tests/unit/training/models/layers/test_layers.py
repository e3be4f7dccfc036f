from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from rankline.training.models.layers import DenseFeatures, ScalarDenseFeatures
from rankline.workflows.core.errors import ConfigError
from tests.oracles.tolerance import ROUNDING

fc = tf.feature_column


def embedding(name: str, num_buckets: int, dimension: int, **options: Any) -> Any:
    return fc.embedding_column(fc.categorical_column_with_identity(name, num_buckets), dimension, **options)


def inputs() -> dict[str, Any]:
    return {
        "user": tf.constant([[1], [0], [4]], tf.int64),
        "tags__values": tf.constant([[2], [3], [3]], tf.int64),
        "tags__nnzs": tf.constant([[1], [0], [2]], tf.int32),
        "price": tf.constant([[0.5], [1.5], [-2.0]]),
    }


def columns() -> list[Any]:
    return [embedding("user", 5, 3), fc.numeric_column("price"), embedding("tags", 4, 2)]


def test_columns_stand_side_by_side_in_the_order_of_their_names() -> None:
    layer = DenseFeatures(columns())
    out = layer(inputs()).numpy()
    tags, user = layer.tables["tags"].numpy(), layer.tables["user"].numpy()
    averaged = np.stack([tags[2], 0 * tags[0], tags[3]])
    assert layer.keys == ["price", "tags", "user"]
    np.testing.assert_allclose(out, np.concatenate([inputs()["price"], averaged, user[[1, 0, 4]]], axis=1), **ROUNDING)
    assert layer.output_dim == out.shape[1] == 6


@pytest.mark.parametrize("combiner", ["mean", "sum", "sqrtn"])
def test_lists_are_combined_and_empty_lists_give_zeros(combiner: str) -> None:
    layer = DenseFeatures([embedding("tags", 4, 2, combiner=combiner)])
    out = layer({"tags__values": tf.constant([1, 2, 2], tf.int64), "tags__nnzs": tf.constant([3, 0], tf.int32)})
    table = layer.tables["tags"].numpy()
    total = table[1] + 2 * table[2]
    expected = {"mean": total / 3, "sum": total, "sqrtn": total / np.sqrt(3)}[combiner]
    np.testing.assert_allclose(out, [expected, [0, 0]], **ROUNDING)


def test_gradients_touch_only_looked_up_rows() -> None:
    layer = DenseFeatures([embedding("user", 5, 3), embedding("tags", 4, 2)])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(inputs()))
    gradients = dict(zip(["tags", "user"], tape.gradient(loss, layer.trainable_variables), strict=True))
    assert all(isinstance(gradient, tf.IndexedSlices) for gradient in gradients.values())
    assert set(gradients["tags"].indices.numpy()) == {2, 3}
    np.testing.assert_allclose(tf.convert_to_tensor(gradients["tags"]), [[0, 0], [0, 0], [1, 1], [1, 1]])
    np.testing.assert_allclose(tf.convert_to_tensor(gradients["user"])[:, 0], [1, 1, 0, 0, 1])


@pytest.mark.parametrize("make", [DenseFeatures, partial(ScalarDenseFeatures, fused=False), ScalarDenseFeatures])
def test_no_table_is_read_as_a_whole(make: Any) -> None:
    """Which would copy it, once an optimizer has updated rows of it."""
    layer = make([embedding("user", 5, 3), *([embedding("tags", 4, 2)] if make is DenseFeatures else [])])

    def gradients(rows: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(rows) ** 2)
        return [gradient.values for gradient in tape.gradient(loss, layer.trainable_variables)]

    layer(inputs())
    graph = tf.function(gradients).get_concrete_function(inputs()).graph
    kinds = [operation.type for operation in graph.get_operations()]
    assert kinds.count("ResourceGather") == len(layer.tables)
    assert "ReadVariableOp" not in kinds


def test_indicator_columns_count_ids() -> None:
    ids = fc.categorical_column_with_identity("tags", 4)
    layer = DenseFeatures([fc.indicator_column(ids)])
    np.testing.assert_array_equal(layer(inputs()), [[0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 2]])
    np.testing.assert_array_equal(layer({"tags": tf.constant([[1]], tf.int64)}), [[0, 1, 0, 0]])


def test_the_columns_initializer_is_used() -> None:
    layer = DenseFeatures([embedding("user", 5, 3, initializer=keras.initializers.Constant(0.25))])
    np.testing.assert_array_equal(layer(inputs()), np.full((3, 3), 0.25))


def test_config_round_trip_gives_an_equal_layer() -> None:
    layer = DenseFeatures([*columns(), fc.indicator_column(fc.categorical_column_with_identity("user", 5))], name="x")
    expected = layer(inputs())
    again = DenseFeatures.from_config(layer.get_config())
    again(inputs())
    again.set_weights(layer.get_weights())
    assert again.get_config() == layer.get_config()
    np.testing.assert_array_equal(again(inputs()), expected)


def test_works_in_a_functional_model_with_the_right_static_shape() -> None:
    keras_inputs = {name: keras.Input((1,), name=name, dtype=tensor.dtype) for name, tensor in inputs().items()}
    x = DenseFeatures(columns())(keras_inputs)
    assert tuple(x.shape) == (None, 6)
    model = keras.Model(keras_inputs, x)
    np.testing.assert_array_equal(model(inputs()), model.layers[-1](inputs()))


def test_an_id_outside_its_table_is_an_error() -> None:
    layer = DenseFeatures([embedding("user", 5, 3)])
    with pytest.raises(tf.errors.InvalidArgumentError):
        layer({"user": tf.constant([[5]], tf.int64)})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: [], "at least one"),
        (lambda: [embedding("a", 3, 2), embedding("a", 3, 2)], "each once"),
        (lambda: [fc.categorical_column_with_identity("a", 3)], "expected numeric_column"),
        (lambda: [fc.embedding_column(fc.categorical_column_with_hash_bucket("a", 9), 2)], "expected numeric_column"),
        (lambda: [fc.numeric_column("a", normalizer_fn=lambda x: x / 2)], "normalizer_fn"),
    ],
)
def test_columns_it_cannot_take_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DenseFeatures(make())
