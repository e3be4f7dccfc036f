import threading
from multiprocessing.dummy import Pool
from pathlib import Path
from typing import Any

import keras as keras3
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
        ({"engine": "tape"}, "engine is 'tape', expected parquet or csv"),
        ({"reader_kwargs": {"rows": 3}}, r"reader_kwargs has \['rows'\], expected only cpu and filters"),
        ({"device": 1.5}, "device is 1.5, expected the name or number of a device"),
        ({"list_layout": "lengths"}, "list_layout is 'lengths', expected nnzs or offsets"),
        ({"feature_columns": []}, "Pass only one"),
        ({"cat_names": [], "cont_names": [], "feature_columns": [BUCKETS]}, "'age_bucketized' is a BucketizedColumn"),
    ],
)
def test_contradictory_options_are_refused(prepared: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        loader_of(prepared, **options)


both_versions = pytest.mark.parametrize("version", [keras, keras3], ids=["keras2", "keras3"])


def age_model(version: Any, seen: list[Any]) -> Any:
    """A model with one input that records the ages it is trained on."""
    age = version.Input((1,), name="age", dtype="float32")

    class Recorded(version.Model):  # type: ignore[misc,name-defined]
        def train_step(self, data: Any) -> Any:
            tf.numpy_function(lambda ages: seen.append(ages.ravel()), [data[0]["age"]], [])
            return super().train_step(data)

    model = Recorded({"age": age}, version.layers.Dense(1)(age))
    model.compile("sgd", "mse")
    return model


@both_versions
@pytest.mark.parametrize("shuffle", [True, False])
def test_fit_sees_every_row_once_per_epoch_in_the_loaders_order(prepared: Path, version: Any, shuffle: bool) -> None:
    seen: list[Any] = []
    model = age_model(version, seen)
    loader, same = (loader_of(prepared, cat_names=[], shuffle=shuffle) for _ in range(2))
    model.fit(loader, epochs=2, verbose=0)  # with Keras's default of shuffling the indices
    epochs = np.concatenate(seen).reshape(2, 4000)
    assert np.array_equal(*epochs) is not shuffle
    expected = ages(same)[:, 0]
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch) if shuffle else epoch, np.sort(expected) if shuffle else expected)
    seen.clear()
    model.fit(loader, epochs=1, verbose=0, steps_per_epoch=3)  # a fit that ends early, and another one
    model.fit(loader, epochs=1, verbose=0)
    assert len(np.concatenate(seen)) == 3 * 600 + 4000
    np.testing.assert_array_equal(np.sort(np.concatenate(seen)[1800:]), np.sort(ages(same)[:, 0]))


@both_versions
def test_predictions_are_in_the_order_of_the_files(prepared: Path, version: Any) -> None:
    model = age_model(version, [])
    labelled = loader_of(prepared, cat_names=[], shuffle=False)
    expected = model.predict_on_batch({"age": tf.constant(ages(labelled))})
    for loader in (labelled, loader_of(prepared, cat_names=[], label_names=None, shuffle=False)):
        for data in (loader, loader.as_dataset()):
            np.testing.assert_allclose(model.predict(data, verbose=0), expected, rtol=1e-4)
    if version is keras:
        np.testing.assert_allclose(model.predict(labelled, verbose=0, workers=4), expected, rtol=1e-4)
    labelled.workers = 4
    np.testing.assert_allclose(model.predict(labelled, verbose=0), expected, rtol=1e-4)


@both_versions
def test_attribute_set_by_a_callback_takes_effect_at_the_next_epoch(prepared: Path, version: Any) -> None:
    class Halved(version.callbacks.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            loader.batch_size = 300

    seen: list[Any] = []
    loader = loader_of(prepared, cat_names=[], shuffle=False)
    model = age_model(version, seen)
    model.fit(loader, epochs=1, verbose=0, callbacks=[Halved()])
    assert [len(batch) for batch in seen] == [600] * 6 + [400]
    seen.clear()
    model.fit(loader, epochs=1, verbose=0)
    assert [len(batch) for batch in seen] == [300] * 13 + [100]


def test_epochs_of_another_loader_leave_a_pass_alone(prepared: Path) -> None:
    loader = loader_of(prepared)
    expected = [inputs["age"].numpy() for inputs, _ in loader_of(prepared)]
    _ = loader[0], loader[1], loader[2], loader.epochs(2)[0]
    np.testing.assert_array_equal(loader[3][0]["age"], expected[3])


@both_versions
def test_functions_of_map_may_add_sample_weights(prepared: Path, version: Any) -> None:
    model = age_model(version, [])
    loss = model.evaluate(loader_of(prepared, cat_names=[]), verbose=0)
    weighted = loader_of(prepared, cat_names=[]).map(lambda inputs, label: (inputs, label, tf.zeros_like(label)))
    assert loss > model.evaluate(weighted, verbose=0) == 0


@both_versions
def test_validater_adds_the_metrics_that_evaluate_gives(prepared: Path, version: Any) -> None:
    valid = KerasSequenceLoader(prepared / "valid", 128, ["rating"], None, None, ["age"], shuffle=False)
    model = age_model(version, [])
    train = loader_of(prepared, cat_names=[])
    history = model.fit(train, epochs=2, verbose=0, callbacks=[KerasSequenceValidater(valid)]).history
    assert sorted(history) == ["loss", "val_loss"]
    assert history["val_loss"][-1] == pytest.approx(model.evaluate(valid, verbose=0), rel=1e-5)


def ages(loader: KerasSequenceLoader) -> Any:
    return np.concatenate([inputs["age"].numpy() for inputs, _ in loader])


def test_batches_asked_for_at_once_are_given_by_their_index(prepared: Path) -> None:
    loader = loader_of(prepared, cat_names=[], batch_size=100, shuffle=False)
    expected = ages(loader).reshape(40, 100, 1)
    with Pool(8) as pool:  # as Keras's
        for start in range(0, 40, 8):  # the last one of each eight asks first
            batches = pool.map(lambda index: loader[index][0]["age"].numpy(), range(start + 7, start - 1, -1), 1)
            np.testing.assert_array_equal(np.stack(batches), expected[start : start + 8][::-1])


@pytest.mark.parametrize("shuffle", [True, False])
def test_index_is_the_number_of_the_batch(prepared: Path, shuffle: bool) -> None:
    loader, same = (loader_of(prepared, shuffle=shuffle) for _ in range(2))
    expected = [inputs["age"].numpy() for inputs, _ in loader]
    for index in (0, 1, 4, 2, 3, 1):
        np.testing.assert_array_equal(same[index][0]["age"], expected[index])


def test_workers_of_keras_that_skip_a_batch_are_refused(prepared: Path) -> None:
    loader = loader_of(prepared, shuffle=False)
    with pytest.MonkeyPatch.context() as patch, Pool(1) as pool:
        patch.setattr("rankline.training.data.loader.tensorflow._TURN_TIMEOUT_S", 0.1)
        with pytest.raises(ConfigError, match=r"batch 4 was requested, but batch 0 .*shuffle=False in fit"):
            pool.map(loader.__getitem__, [4])


@both_versions
def test_misspelled_column_is_named(prepared: Path, version: Any) -> None:
    with pytest.raises(DataError, match=r"lacks the columns \['aeg'\]"):
        age_model(version, []).fit(loader_of(prepared, cat_names=[], cont_names=["aeg"]), verbose=0)


def test_pass_that_keras_left_early_begins_anew(prepared: Path) -> None:
    loader = loader_of(prepared, shuffle=False)
    expected = ages(loader)
    _ = loader[0], loader[1], loader[2]
    again = [loader[index][0]["age"].numpy() for index in range(len(loader))]
    np.testing.assert_array_equal(np.concatenate(again), expected)


def test_fit_that_fails_leaves_no_thread_once_the_loader_is_stopped(prepared: Path) -> None:
    class Fails(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            raise RuntimeError("on purpose")

    before = set(threading.enumerate())  # of loaders that other tests left to the garbage collector, say
    loader = loader_of(prepared, cont_names=[], cat_names=["userId"], batch_size=50)
    with pytest.raises(RuntimeError, match="on purpose"):
        small_model().fit(loader, verbose=0, callbacks=[Fails()])
    loader.stop()
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
    inputs, _ = loader._tensors(loader._reading, batch)
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


def test_sparse_lists_are_kept_in_a_dataset(prepared: Path) -> None:
    dataset = loader_of(
        prepared, cat_names=["genres"], label_names=None, sparse_names=["genres"], sparse_max={"genres": 9}
    )
    (inputs,) = next(iter(dataset.as_dataset()))
    assert isinstance(inputs["genres"], tf.SparseTensor)
    assert tuple(inputs["genres"].shape) == (600, 9)
    with pytest.raises(ConfigError, match=r"requires the width of \['genres'\]\. Pass it in sparse_max"):
        loader_of(prepared, sparse_names=["genres"]).as_dataset()


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
