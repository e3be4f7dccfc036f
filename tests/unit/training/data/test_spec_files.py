from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from rankline.training.data.spec_files import DataSet
from rankline.workflows.core.errors import DataError, SpecError
from rankline.workflows.schema.spec_file import CSV, PARQUET, TFRECORD, Chunk, Feature, SpecFile

GENDER = Feature(name="gender", dtype="int8", cardinality=3)
AGE = Feature(name="age", dtype="int8", null_fill=-1)
USER = Feature(name="user", dtype="int32", cardinality=2655)
LABEL = Feature(name="label", dtype="float32")
ITEMS = Feature(name="items", dtype="int64", cardinality=20, is_list=True, max_length=3)


def data_set(directory: Path, *chunks: Chunk, features: tuple[Feature, ...]) -> DataSet:
    spec = SpecFile(features=features, mappings={"train": chunks})
    (directory / "feature_spec.yaml").write_text(spec.to_yaml())
    return DataSet.read(directory)


def table_of(data: DataSet) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = pa.concat_tables(rows.table for rows in data.rows("train")).to_pydict()
    return columns


def csv(directory: Path, *texts: str, features: tuple[Feature, ...]) -> DataSet:
    """One chunk of CSV files."""
    files = tuple(f"{number}.csv" for number in range(len(texts)))
    for name, text in zip(files, texts, strict=True):
        (directory / name).write_text(text)
    names = tuple(feature.name for feature in features)
    return data_set(directory, Chunk(type=CSV, features=names, files=files), features=features)


def records(path: Path, *rows: dict[str, list[Any]]) -> None:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in rows:
            lists = {
                name: tf.train.Feature(float_list=tf.train.FloatList(value=values))
                if values and isinstance(values[0], float)
                else tf.train.Feature(int64_list=tf.train.Int64List(value=values))
                for name, values in row.items()
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=lists)).SerializeToString())


def test_chunks_are_put_side_by_side_whatever_their_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,30\n2,\n")
    (tmp_path / "b.csv").write_text("")
    (tmp_path / "c.csv").write_text("3,-7\n")
    pq.write_table(pa.table({"label": [0, 1, 1], "more": ["x", "y", "z"], "user": [5, 6, 2655]}), tmp_path / "d")
    records(tmp_path / "e", {"items": [1, 2], "n": [1]}, {"items": [], "n": [2]}, {"items": [20], "n": [3]})
    data = data_set(
        tmp_path,
        Chunk(type=CSV, features=("gender", "age"), files=("a.csv", "b.csv", "c.csv"), num_rows=3),
        Chunk(type=PARQUET, features=("user", "label"), files=("d",)),
        Chunk(type=TFRECORD, features=("items", "n"), files=("e",)),
        features=(LABEL, GENDER, AGE, ITEMS, USER, Feature(name="n", dtype="uint8")),
    )
    parts = list(data.rows("train"))
    assert pa.concat_tables(part.table for part in parts).to_pydict() == {
        "label": [0.0, 1.0, 1.0], "gender": [1, 2, 3], "age": [30, -1, -7], "items": [[1, 2], [], [20]],
        "user": [5, 6, 2655], "n": [1, 2, 3],
    }  # fmt: skip
    kinds = {field.name: str(field.type) for field in parts[0].table.schema}
    assert kinds == {
        "label": "float", "gender": "int8", "age": "int8", "items": "list<item: int64>", "user": "int32", "n": "uint8",
    }  # fmt: skip
    assert [(len(part.table), part.origins["gender"], part.origins["user"]) for part in parts] == [
        (2, (tmp_path / "a.csv", 0), (tmp_path / "d", 0)),
        (1, (tmp_path / "c.csv", 0), (tmp_path / "d", 2)),
    ]
    assert sum(part.num_bytes for part in parts) == pytest.approx(data.num_bytes(["train"]))
    assert len(data.files) == 5


@pytest.mark.parametrize("field", ["", " ", "1 2 3", "  1   2 3 ", '"1 2 3"'])
def test_list_in_csv_is_numbers_with_spaces_between_them(tmp_path: Path, field: str) -> None:
    data = csv(tmp_path, f"{field},1\n{field},0\n", features=(ITEMS, LABEL))
    expected = [1, 2, 3] if "1" in field else []
    assert table_of(data) == {"items": [expected, expected], "label": [1.0, 0.0]}


@pytest.mark.parametrize("num_full", [0, 2])
def test_blocks_of_fixed_lists_are_cut_by_rows(tmp_path: Path, num_full: int) -> None:
    """NVIDIA's SIM for TensorFlow 2 writes P rows per record, lists of 100 values each, and the rest in a file."""
    full = {"user": [1, 2], "items": [0, 1, 2, 3, 4, 5], "label": [0, 1]}
    records(tmp_path / "a", *[full] * num_full)
    records(tmp_path / "remainder", {"user": [9], "items": [0, 0, 7], "label": [1]})
    chunk = Chunk(type=TFRECORD, features=("user", "items", "label"), files=("a", "remainder"))
    data = data_set(tmp_path, chunk, features=(USER, ITEMS, Feature(name="label", dtype="bool")))
    assert table_of(data) == {
        "user": [1, 2] * num_full + [9],
        "items": [[0, 1, 2], [3, 4, 5]] * num_full + [[0, 0, 7]],
        "label": [False, True] * num_full + [True],
    }


def test_rows_that_do_not_agree_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n2\n3\n")
    (tmp_path / "b").write_text("30\n40\n")
    (tmp_path / "c").write_text("50\n60\n70\n")
    gender = Chunk(type=CSV, features=("gender",), files=("a",))
    age = Chunk(type=CSV, features=("age",), files=("b", "c"))
    for chunks in ((gender, age), (age, gender)):
        counts = "5, 3" if chunks[0] is age else "3, 5"
        with pytest.raises(SpecError, match=rf"source_spec\.train: its chunks contain \[{counts}\] rows"):
            table_of(data_set(tmp_path, *chunks, features=(GENDER, AGE)))
    counted = Chunk(type=CSV, features=("age",), files=("b", "c"), num_rows=7)
    with pytest.raises(SpecError, match=r"source_spec\.train\[0\]\.num_rows is 7, but the files contain 5 rows"):
        table_of(data_set(tmp_path, counted, features=(AGE,)))


@pytest.mark.parametrize(
    ("column", "feature", "expected"),
    [
        (pa.array([[1, 2, 3], [0, 0, 4]], pa.list_(pa.int16(), 3)), ITEMS, [[1, 2, 3], [0, 0, 4]]),
        (pa.array([1.0, 2.0]), AGE, [1, 2]),
        (pa.array([True, False]), LABEL, [1.0, 0.0]),
    ],
)
def test_parquet_of_other_types_is_read_where_its_values_fit(
    tmp_path: Path, column: pa.Array, feature: Feature, expected: list[Any]
) -> None:
    pq.write_table(pa.table({feature.name: column}), tmp_path / "a")
    chunk = Chunk(type=PARQUET, features=(feature.name,), files=("a",))
    assert table_of(data_set(tmp_path, chunk, features=(feature,))) == {feature.name: expected}


def test_csv_takes_booleans_and_numbers_of_every_kind(tmp_path: Path) -> None:
    features = (
        Feature(name="flag", dtype="bool"),
        Feature(name="half", dtype="float16"),
        Feature(name="wide", dtype="uint64"),
        Feature(name="halves", dtype="float16", is_list=True, max_length=2),
    )
    made = table_of(csv(tmp_path, "1,0.5,18446744073709551615,0.5 2\nfalse,nan,0,\n", features=features))
    assert np.isnan(made["half"].pop())
    assert made == {"flag": [True, False], "half": [0.5], "wide": [2**64 - 1, 0], "halves": [[0.5, 2.0], []]}


@pytest.mark.parametrize(
    ("text", "features", "kind", "message"),
    [
        ("1,30\n2\n", (GENDER, AGE), DataError, "Expected 2 columns, got 1"),
        ("1,x\n", (GENDER, AGE), DataError, "invalid value 'x'"),
        ("1,300\n", (GENDER, AGE), DataError, "int8: invalid value '300'"),
        ("gender,age\n1,30\n", (GENDER, AGE), DataError, "first line, which is a header"),
        (",30\n", (GENDER, AGE), DataError, "'gender' contains 1 nulls"),
        ("1,3\n4,3\n", (GENDER, AGE), SpecError, "'gender' contains 4 in row 2, but .*cardinality is 3"),
        ("-1,3\n", (GENDER, AGE), SpecError, "contains -1 in row 1"),
        ("1 2,1\n1 2 3 4,0\n", (ITEMS, LABEL), SpecError, "'items' has 4 values in row 2"),
        ("1 2,1\n1 21,0\n", (ITEMS, LABEL), SpecError, "'items' contains 21 in row 2"),
        ("1 2,1\n1;2,0\n", (ITEMS, LABEL), DataError, "lists as space-separated numbers"),
    ],
)
def test_csv_that_does_not_fit_its_spec_is_named(
    tmp_path: Path, text: str, features: tuple[Feature, ...], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=rf"0\.csv.*{message}"):
        table_of(csv(tmp_path, text, features=features))


@pytest.mark.parametrize(
    ("columns", "features", "message"),
    [
        ({"user": [1]}, (USER, AGE), r"a lacks the columns \['age'\]"),
        ({"age": [0.5]}, (AGE,), r"'age' contains 0\.5 in row 1, but feature_spec\.age\.dtype is int8"),
        ({"age": [2, 300]}, (AGE,), "'age' contains 300 in row 2"),
        ({"n": [-1]}, (Feature(name="n", dtype="uint64"),), "'n' contains -1 in row 1"),
        ({"n": [2]}, (Feature(name="n", dtype="bool"),), "'n' contains 2 in row 1"),
        ({"age": ["x"]}, (AGE,), "'age' is string"),
        ({"age": [[1]]}, (AGE,), "'age' contains lists"),
        ({"items": [1]}, (ITEMS,), "'items' contains single values"),
    ],
)
def test_parquet_that_does_not_fit_its_spec_is_named(
    tmp_path: Path, columns: dict[str, list[Any]], features: tuple[Feature, ...], message: str
) -> None:
    pq.write_table(pa.table(columns), tmp_path / "a")
    names = tuple(feature.name for feature in features)
    with pytest.raises(SpecError, match=message):
        table_of(data_set(tmp_path, Chunk(type=PARQUET, features=names, files=("a",)), features=features))


@pytest.mark.parametrize("kind", [PARQUET, TFRECORD])
def test_damaged_files_of_a_spec_are_named(tmp_path: Path, kind: str) -> None:
    records(tmp_path / "a", {"age": [1]}, {"age": [2]})
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:-5])
    with pytest.raises(DataError, match="a is not a complete (Parquet|TFRecord) file"):
        table_of(data_set(tmp_path, Chunk(type=kind, features=("age",), files=("a",)), features=(AGE,)))


def test_spec_files_refuse_missing_files_odd_names_and_uncountable_rows(tmp_path: Path) -> None:
    records(tmp_path / "a", {"items": [1, 2]})
    with pytest.raises(SpecError, match=r"train\[0\]\.features contains only lists, so the"):
        table_of(data_set(tmp_path, Chunk(type=TFRECORD, features=("items",), files=("a",)), features=(ITEMS,)))
    with pytest.raises(SpecError, match=r"train\[0\]\.files\[1\]: file .* does not exist"):
        data_set(tmp_path, Chunk(type=CSV, features=("age",), files=("a", "b")), features=(AGE,))
    for name in ("../train", ".train", "a/b"):
        spec = SpecFile(features=(AGE,), mappings={name: (Chunk(type=CSV, features=("age",), files=("a",)),)})
        with pytest.raises(SpecError, match="expected a name without path separators"):
            DataSet(spec=spec, path=tmp_path / "feature_spec.yaml")
