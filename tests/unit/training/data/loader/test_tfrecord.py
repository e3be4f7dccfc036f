from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
import tf_keras as keras
from hypothesis import given
from hypothesis import strategies as st

from rankline.training.data.loader.tensorflow import KerasSequenceLoader
from rankline.training.data.loader.tfrecord import (
    Layout,
    TFRecordLoader,
    parquet_from_tfrecords,
    serialize,
    write_tfrecords,
)
from rankline.workflows.core.errors import ConfigError, DataError
from rankline.workflows.schema.feature_spec import Feature, FeatureSpec
from tests.examples import examples

NUM_ROWS = 4000
Rows = list[tuple[Any, ...]]


@pytest.fixture(scope="module", params=[1, 1500])
def records(request: pytest.FixtureRequest, prepared: Path, spec: FeatureSpec, tmp_path_factory: Any) -> list[Path]:
    """The training rows in two TFRecord files, one row, and more rows per record than a batch has."""
    return write_tfrecords(parquet(prepared), spec, tmp_path_factory.mktemp("records"), prebatch=request.param)


def parquet(prepared: Path) -> list[Path]:
    return sorted((prepared / "train").iterdir())


def keras_loader(prepared: Path, spec: FeatureSpec, **options: Any) -> KerasSequenceLoader:
    names = {"cat_names": [f.name for f in spec.categorical], "cont_names": [f.name for f in spec.continuous]}
    return KerasSequenceLoader(parquet(prepared), 600, [spec.label.name], **names, **options)  # type: ignore[arg-type]


def loader_of(files: list[Path], spec: FeatureSpec, batch_size: int = 600, **options: Any) -> TFRecordLoader:
    return TFRecordLoader(files, spec, batch_size, **{"num_rows": NUM_ROWS, **options})


def rows_of(batches: Any) -> Rows:
    """Each row with its values, in order."""
    return [row for batch in batches for row in _rows_of_batch(*batch)]


def _rows_of_batch(inputs: dict[str, Any], labels: Any) -> Iterator[tuple[Any, ...]]:
    ends = np.cumsum(inputs["genres__nnzs"].numpy()[:, 0])
    genres = np.split(inputs["genres__values"].numpy()[:, 0], ends[:-1])
    singles = [inputs[name].numpy()[:, 0].tolist() for name in ("userId", "movieId", "age")]
    return zip(*singles, (tuple(part.tolist()) for part in genres), labels.numpy()[:, 0].tolist(), strict=True)


# --- There and back

FEATURES = (
    Feature(name="whole", dtype="int64"),
    Feature(name="price", dtype="float32"),
    Feature(name="tags", dtype="int64", is_list=True, max_length=5),
    Feature(name="parts", dtype="float32", is_list=True, max_length=5),
    Feature(name="small", dtype="int8"),
    Feature(name="label", dtype="float64"),
)
SPEC = FeatureSpec(features=FEATURES, channels={"label": ("label",), "continuous": ("price",)})
INT64 = st.integers(-(2**63), 2**63 - 1)
FLOAT32 = st.floats(width=32)
ROWS = st.tuples(
    INT64,
    FLOAT32,
    st.lists(INT64, max_size=5),
    st.lists(FLOAT32, max_size=5),
    st.integers(-128, 127),
    st.sampled_from([0.0, 1.0]),
)


def table_of(rows: list[tuple[Any, ...]]) -> pa.Table:
    kinds = [pa.from_numpy_dtype(np.dtype(feature.dtype)) for feature in FEATURES]
    schema = pa.schema((f.name, pa.list_(kind) if f.is_list else kind) for f, kind in zip(FEATURES, kinds, strict=True))
    columns = zip(*rows, strict=True) if rows else [()] * len(FEATURES)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema)


@examples(1 / 2)
@given(rows=st.lists(ROWS, max_size=30), prebatch=st.integers(1, 12), row_group_size=st.integers(1, 20))
def test_parquet_comes_back_from_tfrecord_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[Any, ...]], prebatch: int, row_group_size: int
) -> None:
    directory = tmp_path_factory.mktemp("trip")
    pq.write_table(table_of(rows), directory / "part.parquet", row_group_size=row_group_size)
    files = write_tfrecords([directory / "part.parquet"], SPEC, directory, prebatch=prebatch)
    back = pq.read_table(parquet_from_tfrecords(files, SPEC, directory / "back")[0])
    assert back.schema == table_of(rows).schema
    # text, because NaN is not equal to itself; it tells floats apart to the last bit
    assert str(back.to_pydict()) == str(table_of(rows).to_pydict())


def test_failed_write_leaves_no_file(tmp_path: Path, prepared: Path, spec: FeatureSpec) -> None:
    pq.write_table(pa.table({"userId": [1, 2]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"b\.parquet"):
        write_tfrecords([tmp_path / "b.parquet"], spec, tmp_path / "out")
    (tmp_path / "c.parquet").write_bytes(parquet(prepared)[0].read_bytes())
    damaged = bytearray((tmp_path / "c.parquet").read_bytes())
    damaged[4:2000] = bytes(1996)
    (tmp_path / "c.parquet").write_bytes(damaged)
    with pytest.raises(DataError, match=r"c\.parquet"):
        write_tfrecords([tmp_path / "c.parquet"], spec, tmp_path / "out")
    assert [path.name for path in tmp_path.glob("out/*")] == []


# --- The loader


def test_batches_are_those_of_the_parquet_loader(prepared: Path, spec: FeatureSpec, records: list[Path]) -> None:
    loader, expected = loader_of(records, spec, shuffle=False), keras_loader(prepared, spec, shuffle=False)
    assert (len(loader), loader.num_rows) == (len(expected), expected.num_rows)
    for (inputs, labels), (their_inputs, their_labels) in zip(loader, expected, strict=True):
        assert list(inputs) == list(their_inputs)
        for ours, theirs in [(labels, their_labels), *((inputs[name], their_inputs[name]) for name in inputs)]:
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


@pytest.mark.slow
def test_tfrecord_rows_come_once_per_epoch_in_seeded_order(
    prepared: Path, spec: FeatureSpec, records: list[Path]
) -> None:
    one, same, other = (loader_of(records, spec, seed=seed) for seed in (5, 5, 6))
    first, second = rows_of(one), rows_of(one)
    assert first != second
    assert sorted(first) == sorted(second) == sorted(rows_of(keras_loader(prepared, spec)))
    assert [first, second] == [rows_of(same), rows_of(same)]
    assert rows_of(other) not in (first, second)


@pytest.mark.slow
def test_tfrecord_loader_is_a_dataset_for_fit_whose_passes_are_epochs(spec: FeatureSpec, records: list[Path]) -> None:
    loader = loader_of(records, spec)
    dataset = loader.as_dataset()
    assert int(dataset.cardinality()) == len(loader) == 7
    expected = loader_of(records, spec)
    assert [rows_of(dataset), rows_of(dataset)] == [rows_of(expected), rows_of(expected)]
    age = keras.Input((1,), name="age", dtype=tf.float32)
    model = keras.Model({"age": age}, keras.layers.Dense(1)(age))
    model.compile("sgd", "mse")
    model.fit(dataset.map(lambda inputs, labels: ({"age": inputs["age"]}, labels)), epochs=2, verbose=0)
    assert int(model.optimizer.iterations) == 14


@pytest.mark.parametrize("num_rows", [NUM_ROWS - 1, NUM_ROWS + 1])
def test_wrong_number_of_rows_is_an_error_at_the_end(spec: FeatureSpec, records: list[Path], num_rows: int) -> None:
    batches = iter(loader_of(records, spec, num_rows=num_rows))
    for _ in range(7):
        next(batches)
    with pytest.raises(DataError, match=f"contain 4,000 rows, but the feature spec says {num_rows:,}"):
        next(batches)


# --- Files of other people


def example(**columns: list[Any]) -> bytes:
    lists = {
        name: tf.train.Feature(float_list=tf.train.FloatList(value=values))
        if isinstance(values[0], float)
        else tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        for name, values in columns.items()
    }
    serialized: bytes = tf.train.Example(features=tf.train.Features(feature=lists)).SerializeToString()
    return serialized


GOOD: dict[str, list[Any]] = {"rating": [1.0], "genres": [3, 4], "age": [0.5], "movieId": [7], "userId": [5]}


def write(path: Path, records: list[bytes]) -> Path:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    return path


def without(name: str) -> dict[str, list[Any]]:
    return {key: values for key, values in GOOD.items() if key != name}


def test_order_further_features_and_left_out_empty_lists_do_not_matter(tmp_path: Path, spec: FeatureSpec) -> None:
    path = write(tmp_path / "theirs.tfrecord", [example(**without("genres")), example(**GOOD, more=[1, 2])])
    table = pq.read_table(parquet_from_tfrecords([path], spec, tmp_path)[0])
    assert table.to_pylist() == [
        {"userId": 5, "movieId": 7, "genres": genres, "age": 0.5, "rating": 1.0} for genres in ([], [3, 4])
    ]
    loader = loader_of([path], spec, num_rows=2, shuffle=False)
    assert rows_of(loader) == [(5, 7, 0.5, (), 1.0), (5, 7, 0.5, (3, 4), 1.0)]


BAD = {
    "single missing": (without("age"), "age .*required but could not be found"),
    "wrong type": (without("userId") | {"userId": [1.5]}, "userId.*(?i: expected type: int64)"),
    "wrong type of list": (without("genres") | {"genres": [1.5]}, "genres.*(?i: expected type: int64)"),
    "id out of range": (
        GOOD | {"movieId": [40]},
        "'movieId' contains an id out of range, the feature spec says 0 to 39",
    ),
    "two values": (GOOD | {"age": [0.5, 0.5]}, "age.*"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_record_is_named_by_file_and_feature(tmp_path: Path, spec: FeatureSpec, case: str) -> None:
    (columns, message), num_good = BAD[case], 50
    good = write(tmp_path / "good.tfrecord", [example(**GOOD)] * 50)
    path = write(tmp_path / "bad.tfrecord", [example(**GOOD)] * num_good + [example(**columns)])
    message = rf"bad\.tfrecord, record {num_good + 1}\b.*{message}"
    with pytest.raises(DataError, match=message):
        list(loader_of([good, path], spec, num_rows=51 + num_good))
    with pytest.raises(DataError, match=message):
        parquet_from_tfrecords([good, path], spec, tmp_path / "out")
    assert not (tmp_path / "out" / "bad.parquet").exists()


def test_list_column_must_be_in_a_record_of_one_of_the_files(tmp_path: Path, spec: FeatureSpec) -> None:
    files = [write(tmp_path / "without.tfrecord", [example(**without("genres"))] * 3)]
    for read in (lambda: loader_of(files, spec, num_rows=3), lambda: parquet_from_tfrecords(files, spec, tmp_path)):
        with pytest.raises(DataError, match=r"without\.tfrecord lacks feature 'genres'. Available: \['age', 'movieId'"):
            read()
    files.append(write(tmp_path / "with.tfrecord", [example(**GOOD)]))
    inputs, _ = next(iter(loader_of(files, spec, num_rows=4, shuffle=False)))
    assert inputs["genres__nnzs"].numpy()[:, 0].tolist() == [0, 0, 0, 2]
    tables = map(pq.read_table, parquet_from_tfrecords(files, spec, tmp_path))
    assert [table["genres"].to_pylist() for table in tables] == [[[]] * 3, [[3, 4]]]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("prebatch", [1, 3])
def test_several_labels_come_as_a_tuple_and_nulls_are_filled(tmp_path: Path, shuffle: bool, prebatch: int) -> None:
    features = (
        Feature(name="fee", dtype="float32", null_fill=9.0),
        Feature(name="click", dtype="int64"),
        Feature(name="buy", dtype="float32"),
    )
    spec = FeatureSpec(features=features, channels={"continuous": ("fee",), "label": ("click", "buy")})
    table = pa.table({"fee": [0.0, None, 2.0, None], "click": [0, 1, 2, 3], "buy": [0.5, 1.5, 2.5, 3.5]})
    pq.write_table(table, tmp_path / "a.parquet")
    files = write_tfrecords([tmp_path / "a.parquet"], spec, tmp_path, prebatch=prebatch)
    loader = TFRecordLoader(files, spec, 3, num_rows=4, shuffle=shuffle, drop_last=False)
    rows = [tf.concat([inputs["fee"], *labels], axis=1).numpy().tolist() for inputs, labels in loader]
    assert sorted(chain(*rows)) == [[0, 0, 0.5], [2, 2, 2.5], [9, 1, 1.5], [9, 3, 3.5]]
    dropped = TFRecordLoader(files, spec, 3, num_rows=4, shuffle=shuffle, drop_last=True)
    assert [[len(label) for label in labels] for _, labels in dropped] == [[3, 3]]
    with pytest.raises(ConfigError, match="drop_last drops all rows because the data has 4 rows and batch_size is"):
        TFRecordLoader(files, spec, 5, num_rows=4, drop_last=True)


COUNT = Feature(name="count", dtype="int64")
TAGS = Feature(name="tags", dtype="int64", is_list=True, max_length=3)
PRICE = Feature(name="price", dtype="float32")


def layout(*features: Feature, block_rows: int = 1, has_nnzs: bool = False) -> Layout:
    return Layout(features=features, counted=features[0], block_rows=block_rows, has_nnzs=has_nnzs)


def test_lists_of_a_block_without_their_numbers_have_one_length() -> None:
    blocks = [{"count": [1, 2], "tags": [5, 6, 7, 8]}, {"count": [3], "tags": [9, 10]}, {"count": [4, 5]}]
    parsed = layout(COUNT, TAGS, block_rows=2).parse(tf.constant([example(**block) for block in blocks]))
    assert parsed["tags__nnzs"].numpy()[:, 0].tolist() == [2, 2, 2, 0, 0]
    assert parsed["tags__values"].numpy()[:, 0].tolist() == [5, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("block_rows", [1, 2])
def test_missing_values_of_a_record_are_filled(block_rows: int) -> None:
    fills = (replace(PRICE, null_fill=0.5), Feature(name="genre", dtype="int32", cardinality=9, null_fill=3))
    records = [example(count=[1] * block_rows, price=[0.25] * block_rows), example(count=[2] * block_rows)]
    parsed = layout(COUNT, *fills, block_rows=block_rows).parse(tf.constant(records))
    assert parsed["price"].numpy()[:, 0].tolist() == [0.25] * block_rows + [0.5] * block_rows
    assert parsed["genre"].numpy()[:, 0].tolist() == [3] * 2 * block_rows


@pytest.mark.parametrize(
    ("column", "feature", "message"),
    [
        (np.array([0.5]), COUNT, "'count' is float64, but the feature spec says int64"),
        (np.array([[1, 2]]), COUNT, "'count' does not contain single values"),
        (np.array([1]), replace(TAGS, name="count"), "does not contain lists"),
        (np.array([1]), replace(COUNT, dtype="str"), "'count' is str, expected an integer, float"),
    ],
)
def test_column_that_does_not_fit_its_feature_is_not_written(column: Any, feature: Feature, message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(serialize({"count": column}, [feature], prebatch=1, path=Path("rows.parquet")))


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "no TFRecord files"),
        ([b"\xff\xff"], r"record 1 of .*0\.tfrecord is not a tf\.train\.Example"),
        ([example(**GOOD, genres__nnzs=[2]), example(**GOOD)], r"1\.tfrecord has one row per record"),
    ],
    ids=["none", "no example", "two layouts"],
)
def test_tfrecord_loader_refuses_files_that_are_no_rows(
    tmp_path: Path, spec: FeatureSpec, records: list[bytes], message: str
) -> None:
    files = [write(tmp_path / f"{number}.tfrecord", [record]) for number, record in enumerate(records)]
    with pytest.raises(DataError, match=message):
        TFRecordLoader(files, spec, 10, num_rows=len(files))


def cut(content: bytes) -> bytes:
    return content[:-20]


def flipped(content: bytes) -> bytes:
    return content[:-30] + bytes([content[-30] ^ 1]) + content[-29:]


def not_records(content: bytes) -> bytes:
    return b"PAR1" * 100


@pytest.mark.parametrize("damage", [cut, flipped, not_records])
def test_damaged_tfrecord_is_named(tmp_path: Path, spec: FeatureSpec, damage: Any) -> None:
    path = write(tmp_path / "bad.tfrecord", [example(**GOOD)] * 300)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        DataError, match=r"bad\.tfrecord is not a complete TFRecord file \((truncated|corrupted) record"
    ):
        list(loader_of([path], spec, num_rows=300))
    with pytest.raises(DataError, match=r"bad\.tfrecord is not a complete TFRecord file"):
        parquet_from_tfrecords([path], spec, tmp_path / "out")
    assert not (tmp_path / "out" / "bad.parquet").exists()


def test_vanished_tfrecord_is_named(tmp_path: Path, spec: FeatureSpec) -> None:
    path = write(tmp_path / "gone.tfrecord", [example(**GOOD)])
    loader = loader_of([path], spec, num_rows=1)
    path.unlink()
    with pytest.raises(DataError, match=r"gone\.tfrecord does not exist"):
        list(loader)


def test_tfrecord_values_must_fit_their_dtype(tmp_path: Path) -> None:
    feature = Feature(name="age", dtype="int8")
    spec = FeatureSpec(features=(feature, Feature(name="rating", dtype="float32")), channels={"label": ("rating",)})
    path = write(tmp_path / "a.tfrecord", [example(rating=[1.0], age=[300])])
    with pytest.raises(DataError, match=r"a\.tfrecord: feature 'age' cannot be converted to int8.*300"):
        parquet_from_tfrecords([path], spec, tmp_path)
    with pytest.raises(DataError, match=r"'count' is int64, but its null_fill is 0\.5"):
        layout(PRICE, replace(COUNT, null_fill=0.5))


def test_write_tfrecords_refuses_impossible_choices(tmp_path: Path, prepared: Path, spec: FeatureSpec) -> None:
    with pytest.raises(ConfigError, match="prebatch is 0"):
        write_tfrecords(parquet(prepared), spec, tmp_path, prebatch=0)
    with pytest.raises(ConfigError, match="files would get the same name"):
        write_tfrecords(parquet(prepared) * 2, spec, tmp_path)
