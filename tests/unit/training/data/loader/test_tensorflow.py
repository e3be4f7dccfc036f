import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from rankline.training.data.loader.tensorflow import KerasSequenceLoader, KerasSequenceValidater
from rankline.training.models.layers import DenseFeatures
from rankline.workflows.core.errors import ConfigError, DataError

CATEGORICAL = ["userId", "movieId", "genres"]
BUCKETS = tf.feature_column.bucketized_column(tf.feature_column.numeric_column("age"), [1.0])


def loader_of(prepared: Path, **options: Any) -> KerasSequenceLoader:
    names = {"cat_names": CATEGORICAL, "cont_names": ["age"], "label_names": ["rating"]}
    return KerasSequenceLoader(prepared / "train", **{"batch_size": 600, **names, **options})


def small_model() -> Any:
    inputs = {"userId": keras.Input((1,), name="userId", dtype=tf.int64)}
    ids = tf.feature_column.categorical_column_with_identity("userId", 60)
    x = DenseFeatures([tf.feature_column.embedding_column(ids, 4)])(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(x))
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "csv"}, ", expected 'parquet'"),
        ({"list_layout": "lengths"}, "list_layout is 'lengths', expected nnzs or offsets"),
        ({"feature_columns": []}, "Pass only one"),
        ({"cat_names": [], "cont_names": [], "feature_columns": [BUCKETS]}, "'age_bucketized' is a BucketizedColumn"),
    ],
)
def test_contradictory_options_are_refused(prepared: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        len(loader_of(prepared, **options))


class _Seen(keras.layers.Layer):  # type: ignore[misc]
    """Adds up the ages that pass through in training."""

    def build(self, input_shape: Any) -> None:
        self.total = self.add_weight(name="total", shape=(), trainable=False, initializer="zeros")

    def call(self, inputs: Any) -> Any:
        self.total.assign_add(tf.reduce_sum(inputs))
        return inputs


def test_fit_sees_every_row_once_per_epoch_although_keras_looks_ahead(prepared: Path) -> None:
    age = keras.Input((1,), name="age", dtype=tf.float32)
    seen = _Seen()
    model = keras.Model({"age": age}, keras.layers.Dense(1)(seen(age)))
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


def ages(loader: KerasSequenceLoader) -> Any:
    return np.concatenate([inputs["age"].numpy() for inputs, _ in loader])


def test_batches_asked_for_at_once_are_given_by_their_index(prepared: Path) -> None:
    loader = loader_of(prepared, cat_names=[], batch_size=100, shuffle=False)
    expected = ages(loader).reshape(40, 100, 1)
    with ThreadPoolExecutor(7) as pool:
        for start in (1, 8, 15, 22, 29):  # the last one of each seven asks first
            batches = pool.map(lambda index: loader[index][0]["age"].numpy(), range(start + 6, start - 1, -1))
            np.testing.assert_array_equal(np.stack(list(batches)), expected[start : start + 7][::-1])


def test_unshuffled_loader_refuses_another_order(prepared: Path) -> None:
    loader = loader_of(prepared, shuffle=False)
    _ = loader[0], loader[1]
    with pytest.raises(ConfigError, match=r"batch 4 was requested, but batch 2 .*shuffle=False in fit"):
        _ = loader[4]


def test_pass_that_keras_left_early_begins_anew(prepared: Path) -> None:
    loader = loader_of(prepared, shuffle=False)
    expected = ages(loader)
    _ = loader[0], loader[1], loader[2]
    again = [loader[index][0]["age"].numpy() for index in range(len(loader))]
    np.testing.assert_array_equal(np.concatenate(again), expected)


def test_fit_that_fails_leaves_no_thread_once_the_loader_is_closed(prepared: Path) -> None:
    class Fails(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            raise RuntimeError("on purpose")

    before = set(threading.enumerate())  # of loaders that other tests left to the garbage collector, say
    loader = loader_of(prepared, cont_names=[], cat_names=["userId"], batch_size=50)
    with pytest.raises(RuntimeError, match="on purpose"):
        small_model().fit(loader, verbose=0, callbacks=[Fails()])
    loader.close()
    new = set(threading.enumerate()) - before
    assert not any(thread.name.startswith("rankline-loader") for thread in new)
    assert sum(label.shape[0] for _, label in loader) == 4000


def test_failed_first_batch_can_be_asked_for_again(new_prepared: Any, tmp_path: Path) -> None:
    prepared = new_prepared(tmp_path / "p", num_train=600)
    loader = loader_of(prepared, shuffle=False)
    path = prepared / "train" / "part_0.parquet"
    path.rename(tmp_path / "away")
    with pytest.raises(DataError, match="was removed after"):
        _ = loader[0]
    (tmp_path / "away").rename(path)
    assert loader[0][1].shape[0] == 600


def test_processes_of_keras_are_refused(prepared: Path) -> None:
    loader = loader_of(prepared)
    loader._process += 1  # as another process sees it
    with pytest.raises(ConfigError, match=r"process\. Omit use_multiprocessing"):
        _ = loader[0]


def test_lists_may_come_with_offsets(prepared: Path) -> None:
    options = {"shuffle": False, "batch_size": 700}
    for (with_nnzs, _), (with_offsets, _) in zip(
        loader_of(prepared, **options), loader_of(prepared, list_layout="offsets", **options), strict=True
    ):
        offsets = with_offsets["genres__offsets"]
        assert offsets.dtype == tf.int32
        np.testing.assert_array_equal(np.diff(offsets), with_nnzs["genres__nnzs"].numpy()[:, 0])
        np.testing.assert_array_equal(with_offsets["genres__values"], with_nnzs["genres__values"])


@pytest.mark.parametrize("shuffle", [True, False])
def test_tensors_are_the_memory_of_the_batch(prepared: Path, shuffle: bool) -> None:
    loader = loader_of(prepared, shuffle=shuffle, batch_size=512, cont_names=[], cat_names=["userId"])
    batch = next(loader._epochs.stream.batches())
    inputs, _ = loader._tensors(batch)
    assert batch["userId"].ctypes.data % 64 == 0  # type: ignore[union-attr]
    address = np.from_dlpack(tf_dlpack(inputs["userId"])).ctypes.data
    assert address == batch["userId"].ctypes.data  # type: ignore[union-attr]
    before = batch["userId"].copy()  # type: ignore[union-attr]
    tf.function(lambda x: tf.nn.relu(x + 1) * 2)(inputs["userId"])
    np.testing.assert_array_equal(batch["userId"], before)  # no operation worked in its input's place


class tf_dlpack:  # noqa: N801  (an adapter between two function names)
    """What NumPy calls to look at a tensor's memory."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __dlpack__(self) -> Any:
        return tf.experimental.dlpack.to_dlpack(self._tensor)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def test_ids_outside_a_columns_buckets_are_refused(prepared: Path) -> None:
    ids = tf.feature_column.categorical_column_with_identity("movieId", 10)
    loader = loader_of(
        prepared, cat_names=[], cont_names=[], feature_columns=[tf.feature_column.embedding_column(ids, 2)]
    )
    with pytest.raises(
        DataError, match=r"part_\d\.parquet: column 'movieId' contains id \d+, expected ids from 0 to 9"
    ):
        list(loader)


def test_dataset_is_the_loader_and_fit_takes_it(prepared: Path) -> None:
    expected = [(inputs["age"].numpy(), label.numpy()) for inputs, label in loader_of(prepared, seed=4)]
    dataset = loader_of(prepared, seed=4).as_dataset()
    assert int(dataset.cardinality()) == len(expected)
    for (inputs, label), (ages_, labels) in zip(dataset, expected, strict=True):
        np.testing.assert_array_equal(inputs["age"], ages_)
        np.testing.assert_array_equal(label, labels)
    model = small_model()
    history = model.fit(loader_of(prepared, cont_names=[], cat_names=["userId"]).as_dataset(), epochs=2, verbose=0)
    assert len(history.history["loss"]) == 2


def test_keras_loader_reads_what_feature_columns_name(prepared: Path) -> None:
    fc = tf.feature_column
    columns = [
        fc.categorical_column_with_hash_bucket("userId", 9, tf.int64),
        fc.indicator_column(fc.categorical_column_with_vocabulary_list("movieId", [3, 4])),
        fc.embedding_column(fc.categorical_column_with_identity("genres", 8), 2),
        fc.numeric_column("age"),
    ]
    inputs, _ = next(iter(loader_of(prepared, cat_names=[], cont_names=[], feature_columns=columns)))
    assert {name: tensor.dtype for name, tensor in inputs.items()} == {
        **dict.fromkeys(("userId", "movieId", "genres__values"), tf.int64),
        "genres__nnzs": tf.int32,
        "age": tf.float32,
    }
