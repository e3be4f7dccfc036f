from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from training.layers import DenseFeatures
from training.loader.tensorflow import KerasSequenceLoader, KerasSequenceValidater
from workflows.errors import ConfigError, DataError

CATEGORICAL = ["userId", "movieId", "genres"]


def loader_of(prepared: Path, **options: Any) -> KerasSequenceLoader:
    options = {"cat_names": CATEGORICAL, "cont_names": ["age"], "batch_size": 600, **options}
    return KerasSequenceLoader(prepared / "train", label_names=["rating"], **options)


def small_model() -> Any:
    inputs = {"userId": tf.keras.Input((1,), name="userId", dtype=tf.int64)}
    ids = tf.feature_column.categorical_column_with_identity("userId", 60)
    x = DenseFeatures([tf.feature_column.embedding_column(ids, 4)])(inputs)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1, activation="sigmoid")(x))
    model.compile("sgd", "binary_crossentropy", metrics=["AUC"])
    return model


def test_batches_have_the_documented_names_shapes_and_types(prepared: Path) -> None:
    inputs, label = next(iter(loader_of(prepared)))
    values = int(tf.reduce_sum(inputs["genres__nnzs"]))
    assert {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in inputs.items()} == {
        "userId": ((600, 1), tf.int64),
        "movieId": ((600, 1), tf.int64),
        "genres__values": ((values, 1), tf.int64),
        "genres__nnzs": ((600, 1), tf.int32),
        "age": ((600, 1), tf.float32),
    }
    assert tuple(label.shape) == (600, 1)
    assert label.dtype == tf.float32


def test_each_pass_is_a_new_order_of_the_same_rows(prepared: Path) -> None:
    loader = loader_of(prepared, cat_names=[], parts_per_chunk=4)
    first, second = (np.concatenate([x["age"].numpy()[:, 0] for x, _ in loader]) for _ in range(2))
    assert len(first) == loader.num_rows == 4000
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(np.sort(first), np.sort(second))


def test_paths_may_be_files_a_directory_or_a_glob(prepared: Path) -> None:
    directory = prepared / "train"
    for paths in (
        directory,
        str(directory / "*.parquet"),
        sorted(directory.iterdir()),
        str(prepared / "t*" / "*_?.p*"),
    ):
        assert KerasSequenceLoader(paths, 100, ["rating"], cat_names=["userId"]).num_rows == 4000
    with pytest.raises(DataError, match="no Parquet files"):
        KerasSequenceLoader(str(directory / "*.csv"), 100, ["rating"], cat_names=["userId"])


def test_feature_columns_say_what_to_read(prepared: Path) -> None:
    ids = tf.feature_column.categorical_column_with_identity("genres", 8)
    columns = [tf.feature_column.embedding_column(ids, 2), tf.feature_column.numeric_column("age")]
    inputs, _ = next(iter(loader_of(prepared, cat_names=[], cont_names=[], feature_columns=columns)))
    assert sorted(inputs) == ["age", "genres__nnzs", "genres__values"]


def test_several_labels_come_as_a_tuple(prepared: Path) -> None:
    loader = KerasSequenceLoader(prepared / "train", 10, ["rating", "age"], cat_names=["userId"])
    _, labels = next(iter(loader))
    assert [tuple(label.shape) for label in labels] == [(10, 1), (10, 1)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "csv"}, "reads 'parquet' only"),
        ({"feature_columns": []}, "Give only one"),
        ({"cat_names": [], "cont_names": []}, "needs label_names"),
    ],
)
def test_contradictory_options_are_refused(prepared: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        loader_of(prepared, **options)


class _Seen(tf.keras.layers.Layer):  # type: ignore[misc]
    """Adds up the ages that pass through in training."""

    def build(self, input_shape: Any) -> None:
        self.total = self.add_weight(name="total", shape=(), trainable=False, initializer="zeros")

    def call(self, inputs: Any) -> Any:
        self.total.assign_add(tf.reduce_sum(inputs))
        return inputs


def test_fit_sees_every_row_once_per_epoch_although_keras_looks_ahead(prepared: Path) -> None:
    age = tf.keras.Input((1,), name="age", dtype=tf.float32)
    seen = _Seen()
    model = tf.keras.Model({"age": age}, tf.keras.layers.Dense(1)(seen(age)))
    model.compile("sgd", "mse")
    loader = loader_of(prepared, cat_names=[])
    model.fit(loader, epochs=2, verbose=0)  # with Keras's default of shuffling the indices
    expected = sum(float(tf.reduce_sum(inputs["age"])) for inputs, _ in loader)
    assert float(seen.total) == pytest.approx(2 * expected, rel=1e-4)


def test_validater_adds_the_metrics_that_evaluate_gives(prepared: Path) -> None:
    valid = KerasSequenceLoader(prepared / "valid", 128, ["rating"], cat_names=["userId"], shuffle=False)
    model = small_model()
    train = loader_of(prepared, cat_names=["userId"], cont_names=[])
    history = model.fit(train, epochs=2, verbose=0, callbacks=[KerasSequenceValidater(valid)]).history
    assert sorted(history) == ["auc", "loss", "val_auc", "val_loss"]
    assert history["val_loss"][-1] == pytest.approx(model.evaluate(valid, verbose=0)[0], rel=1e-5)


def test_predict_gives_one_score_per_row_each_time(prepared: Path) -> None:
    valid = KerasSequenceLoader(prepared / "valid", 300, ["rating"], cat_names=["userId"], shuffle=False)
    model = small_model()
    first, second = model.predict(valid, verbose=0), model.predict(valid, verbose=0)
    assert first.shape == (1000, 1)
    np.testing.assert_array_equal(first, second)


def ages(loader: KerasSequenceLoader) -> Any:
    return np.concatenate([inputs["age"].numpy() for inputs, _ in loader])


def test_predict_with_several_workers_keeps_the_order_of_the_rows(prepared: Path) -> None:
    age = tf.keras.Input((1,), name="age", dtype=tf.float32)
    model = tf.keras.Model({"age": age}, tf.keras.layers.Lambda(lambda x: x)(age))
    loader = loader_of(prepared, cat_names=[], batch_size=20, shuffle=False)
    expected = ages(loader)
    np.testing.assert_array_equal(model.predict(loader, workers=4, verbose=0), expected)


def test_batches_asked_for_at_once_are_given_by_their_index(prepared: Path) -> None:
    loader = loader_of(prepared, cat_names=[], batch_size=100, shuffle=False)
    expected = ages(loader).reshape(40, 100, 1)
    with ThreadPoolExecutor(7) as pool:
        for start in (1, 8, 15, 22, 29):  # the last one of each seven asks first
            batches = pool.map(lambda index: loader[index][0]["age"].numpy(), range(start + 6, start - 1, -1))
            np.testing.assert_array_equal(np.stack(list(batches)), expected[start : start + 7][::-1])


@pytest.mark.parametrize("index", [1, 4])
def test_an_unshuffled_loader_refuses_another_order(prepared: Path, index: int) -> None:
    loader = loader_of(prepared, shuffle=False)
    _ = loader[0], loader[1]
    with pytest.raises(ConfigError, match=rf"batch {index} was asked for when batch 2 .*shuffle=False in fit"):
        _ = loader[index]


def test_the_epochs_of_several_workers_hold_every_row_once(prepared: Path) -> None:
    loader = loader_of(prepared, cat_names=[], batch_size=100)
    expected = np.sort(ages(loader).ravel())
    with ThreadPoolExecutor(4) as pool:
        for _ in range(2):
            batches = pool.map(lambda index: loader[index][0]["age"].numpy(), reversed(range(len(loader))))
            np.testing.assert_array_equal(np.sort(np.concatenate(list(batches)).ravel()), expected)
            loader.on_epoch_end()
