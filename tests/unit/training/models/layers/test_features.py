"""Lookups of ids and numbers: one table per column, and fused ones, which give the same."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from hypothesis import given
from hypothesis import strategies as st

from rankline.training.models.base import UniformIds
from rankline.training.models.layers import DenseFeatures, ScalarDenseFeatures
from rankline.workflows.core.errors import ConfigError, SpecError
from tests.examples import examples
from tests.oracles.tolerance import ROUNDING

fc = tf.feature_column


def embedding(name: str, num_buckets: int, dimension: int, **options: Any) -> Any:
    return fc.embedding_column(fc.categorical_column_with_identity(name, num_buckets), dimension, **options)


def some_rows() -> dict[str, Any]:
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
    out = layer(some_rows()).numpy()
    tags, user = layer.tables["tags"].numpy(), layer.tables["user"].numpy()
    averaged = np.stack([tags[2], 0 * tags[0], tags[3]])
    assert layer.keys == ["price", "tags", "user"]
    np.testing.assert_allclose(
        out, np.concatenate([some_rows()["price"], averaged, user[[1, 0, 4]]], axis=1), **ROUNDING
    )
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
        loss = tf.reduce_sum(layer(some_rows()))
    gradients = dict(zip(["tags", "user"], tape.gradient(loss, layer.trainable_variables), strict=True))
    assert all(isinstance(gradient, tf.IndexedSlices) for gradient in gradients.values())
    assert set(gradients["tags"].indices.numpy()) == {2, 3}
    np.testing.assert_allclose(tf.convert_to_tensor(gradients["tags"]), [[0, 0], [0, 0], [1, 1], [1, 1]])
    np.testing.assert_allclose(tf.convert_to_tensor(gradients["user"])[:, 0], [1, 1, 0, 0, 1])


@pytest.mark.parametrize("make", [DenseFeatures, partial(ScalarDenseFeatures, fused=False), ScalarDenseFeatures])
def test_tables_are_never_read_whole(make: Any) -> None:
    """Which would copy it, once an optimizer has updated rows of it."""
    layer = make([embedding("user", 5, 3), *([embedding("tags", 4, 2)] if make is DenseFeatures else [])])

    def gradients(rows: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(rows) ** 2)
        return [gradient.values for gradient in tape.gradient(loss, layer.trainable_variables)]

    layer(some_rows())
    graph = tf.function(gradients).get_concrete_function(some_rows()).graph
    kinds = [operation.type for operation in graph.get_operations()]
    assert kinds.count("ResourceGather") == len(layer.tables)
    assert "ReadVariableOp" not in kinds


def test_indicator_columns_count_ids() -> None:
    ids = fc.categorical_column_with_identity("tags", 4)
    layer = DenseFeatures([fc.indicator_column(ids)])
    np.testing.assert_array_equal(layer(some_rows()), [[0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 2]])
    np.testing.assert_array_equal(layer({"tags": tf.constant([[1]], tf.int64)}), [[0, 1, 0, 0]])


def test_id_outside_its_table_is_an_error() -> None:
    layer = DenseFeatures([embedding("user", 5, 3)])
    with pytest.raises(tf.errors.InvalidArgumentError):
        layer({"user": tf.constant([[5]], tf.int64)})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: [], "one or more"),
        (lambda: [embedding("a", 3, 2), embedding("a", 3, 2)], "distinct"),
        (lambda: [fc.categorical_column_with_identity("a", 3)], "expected numeric_column"),
        (lambda: [fc.embedding_column(fc.categorical_column_with_hash_bucket("a", 9), 2)], "expected numeric_column"),
        (lambda: [fc.numeric_column("a", normalizer_fn=lambda x: x / 2)], "normalizer_fn"),
    ],
)
def test_columns_it_cannot_take_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DenseFeatures(make())


def inputs(columns: list[Any], num_rows: int, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    made = {}
    for column in columns:
        if isinstance(column, type(fc.numeric_column("x"))):
            made[column.key] = tf.constant(rng.normal(size=(num_rows, column.shape[0])), tf.float32)
        else:
            ids = column.categorical_column
            made[ids.key] = tf.constant(rng.integers(0, ids.num_buckets, (num_rows, 1)))
    return made


def same_weights(columns: list[Any], rows: dict[str, Any]) -> tuple[ScalarDenseFeatures, DenseFeatures]:
    """Both layers, the second with the tables of the first."""
    fused, separate = ScalarDenseFeatures(columns), DenseFeatures(columns)
    fused(rows), separate(rows)
    for key, table in separate.tables.items():
        table.assign(fused.table(key))
    return fused, separate


@st.composite
def some_columns(draw: st.DrawFn) -> list[Any]:
    """Embeddings of a few widths, numbers and indicators, in any order of names."""
    names = draw(st.lists(st.text("abcz", min_size=1, max_size=3), min_size=1, max_size=7, unique=True))
    kinds = {
        "embedding": lambda name: embedding(name, draw(st.integers(1, 9)), draw(st.sampled_from([1, 2, 4]))),
        "constant": lambda name: embedding(name, draw(st.integers(1, 9)), 2, trainable=False),
        "number": lambda name: fc.numeric_column(name, draw(st.integers(1, 3))),
        "indicator": lambda name: fc.indicator_column(fc.categorical_column_with_identity(name, 3)),
    }
    return [kinds[draw(st.sampled_from(sorted(kinds)))](name) for name in names]


@examples(1 / 4)
@given(columns=some_columns(), num_rows=st.integers(0, 4), seed=st.integers(0, 99))
def test_fused_tables_give_what_a_table_per_column_gives(columns: list[Any], num_rows: int, seed: int) -> None:
    rows = inputs(columns, num_rows, seed)
    fused, separate = same_weights(columns, rows)
    assert fused.keys == separate.keys
    assert fused(rows).shape == (num_rows, fused.output_dim)
    np.testing.assert_array_equal(fused(rows), separate(rows))


COLUMNS = [embedding("b", 5, 4), embedding("a", 7, 4), embedding("c", 3, 4)]


def test_tables_of_a_width_are_one_variable_that_optimizers_know_as_a_table() -> None:
    layer = ScalarDenseFeatures([*COLUMNS, embedding("d", 9, 2), fc.numeric_column("e")], name="features")
    layer(inputs([*COLUMNS, embedding("d", 9, 2), fc.numeric_column("e")], 2))
    assert {variable.name: tuple(variable.shape) for variable in layer.trainable_variables} == {
        "features/width_4_embedding:0": (15, 4),
        "features/width_2_embedding:0": (9, 2),
    }


def test_fused_sparse_gradient_equals_per_column_gradients() -> None:
    rows = inputs(COLUMNS, 6)
    fused, separate = same_weights(COLUMNS, rows)
    factors = tf.random.normal((6, 12), seed=1)
    dense = []
    for layer in (fused, separate):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(rows) * factors)
        gradients = tape.gradient(loss, layer.trainable_variables)
        assert all(isinstance(gradient, tf.IndexedSlices) for gradient in gradients)
        dense.append(tf.concat([tf.convert_to_tensor(gradient) for gradient in gradients], axis=0))
    assert gradients[0].values.shape == (6, 4)  # of rows that were looked up
    np.testing.assert_allclose(dense[0], dense[1], **ROUNDING)


def test_not_fused_it_has_a_table_per_column_and_fuses_them_for_serving() -> None:
    columns = [*COLUMNS, embedding("d", 9, 2), fc.numeric_column("n")]
    rows = inputs(columns, 6)
    apart = ScalarDenseFeatures(columns, fused=False, name="features")
    out = apart(rows)
    assert {key: tuple(table.shape) for key, table in apart.tables.items()} == {
        "a": (7, 4), "b": (5, 4), "c": (3, 4), "d": (9, 2)
    }  # fmt: skip
    assert all(variable.name.endswith("_embedding:0") for variable in apart.variables)
    served = apart.for_serving()
    assert {name: tuple(table.shape) for name, table in served.tables.items()} == {
        "width_4_embedding": (15, 4), "width_2_embedding": (9, 2)
    }  # fmt: skip
    assert served.for_serving() is served
    np.testing.assert_array_equal(served(rows), out)
    np.testing.assert_array_equal(served.table("b"), apart.table("b"))


def test_stacked_is_concatenated_reshaped() -> None:
    rows = inputs(COLUMNS, 5)
    for fused in (True, False):
        concatenated = ScalarDenseFeatures(COLUMNS, fused=fused)
        stacked = ScalarDenseFeatures(COLUMNS, aggregation="stack", fused=fused)
        flat = concatenated(rows)
        stacked(rows)
        stacked.set_weights(concatenated.get_weights())
        assert stacked(rows).shape == (5, 3, 4)
        np.testing.assert_array_equal(stacked(rows), tf.reshape(flat, (5, 3, 4)))


def test_fused_columns_keep_their_own_initializers() -> None:
    columns = [
        embedding("a", 5, 2, initializer=UniformIds(0.5)),
        embedding("b", 6, 2, initializer=keras.initializers.Constant(3.0)),
        embedding("c", 50, 2, initializer=UniformIds(0.5)),
    ]
    layer = ScalarDenseFeatures(columns)
    layer(inputs(columns, 1))
    for key in "ac":
        table = layer.table(key).numpy()
        assert not table[:3].any()  # reserved ids
        assert table[3:].all()
        assert np.abs(table).max() <= 0.5
    np.testing.assert_array_equal(layer.table("b"), np.full((6, 2), 3.0))
    assert not np.array_equal(layer.table("a")[3:], layer.table("c")[3:5])


@pytest.mark.parametrize("bad", [{"a": 7}, {"a": -1}, {"b": -1}, {"b": 5}, {"c": 3}])
def test_id_outside_its_own_column_is_an_error_and_no_row_of_the_next(bad: dict[str, int]) -> None:
    layer = ScalarDenseFeatures(COLUMNS)
    good = {name: tf.constant([[0], [2]], tf.int64) for name in "abc"}
    assert layer(good).shape == (2, 12)
    with pytest.raises(tf.errors.InvalidArgumentError):
        layer({**good, **{name: tf.constant([[0], [value]], tf.int64) for name, value in bad.items()}})


def test_scalar_features_refuse_what_they_cannot_take() -> None:
    with pytest.raises(ConfigError, match="aggregation is 'sum', expected concat or stack"):
        ScalarDenseFeatures(COLUMNS, aggregation="sum")
    with pytest.raises(ConfigError, match=r"'b_embedding': 4, 'd_embedding': 2}, expected equal widths"):
        ScalarDenseFeatures([embedding("b", 5, 4), embedding("d", 5, 2)], aggregation="stack")
    with pytest.raises(ConfigError, match="ScalarDenseFeatures got the columns .*one or more"):
        ScalarDenseFeatures([])
    lists = {"b__values": tf.constant([[1]], tf.int64), "b__nnzs": tf.constant([[1]], tf.int32)}
    with pytest.raises(SpecError, match=r"columns \['b'\] do not have one value per row"):
        ScalarDenseFeatures([embedding("b", 5, 4)])(lists)
    layer = ScalarDenseFeatures(COLUMNS)
    with pytest.raises(KeyError):
        layer.table("z")


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file:UserWarning")
@pytest.mark.parametrize("fused", [True, False])
def test_scalar_features_can_be_saved_in_every_format(tmp_path: Path, fused: bool) -> None:
    columns = [embedding("a", 5, 2), embedding("b", 4, 2), embedding("c", 3, 1), fc.numeric_column("n")]
    given = {name: keras.Input((1,), name=name, dtype=tf.int64) for name in "abc"} | {"n": keras.Input((1,), name="n")}
    model = keras.Model(given, keras.layers.Dense(1)(ScalarDenseFeatures(columns, fused=fused)(given)))
    rows = inputs(columns, 3)
    expected = model(rows)
    model.save(tmp_path / "saved")
    model.export(str(tmp_path / "exported"))
    for directory in ("saved", "exported"):
        scores = tf.saved_model.load(str(tmp_path / directory)).signatures["serving_default"](**rows)
        np.testing.assert_array_equal(*scores.values(), expected)
    for name in ("m.keras", "m.h5"):
        model.save(tmp_path / name)
        np.testing.assert_array_equal(keras.models.load_model(tmp_path / name)(rows), expected)
    checkpoint = tf.train.Checkpoint(model=model)
    model.save_weights(tmp_path / "weights")
    places = (
        (checkpoint.restore, checkpoint.save(tmp_path / "checkpoint")),
        (model.load_weights, tmp_path / "weights"),
    )
    for restore, path in places:
        for variable in model.weights:
            variable.assign(tf.zeros_like(variable))
        restore(path)
        np.testing.assert_array_equal(model(rows), expected)
