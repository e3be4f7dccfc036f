import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from rankline.training.data.convert import convert
from rankline.training.data.import_data import import_data, trimmed
from rankline.training.data.spec_files import Rows
from rankline.workflows.compiler.compile import compile_workflow
from rankline.workflows.core.errors import DataError, SpecError
from rankline.workflows.nvt.compat import quiet_nvtabular
from rankline.workflows.preprocess.prepared_data import KIND, PreparedData
from rankline.workflows.schema.ragged import Padded
from rankline.workflows.storage.artifacts import load_manifest

USERS, ITEMS, CATEGORIES, WIDTH = 5, 20, 4, 6
NAMES = ["label", "uid", "item", "cat", "item_sequence", "cat_sequence", "neg_item_sequence", "neg_cat_sequence"]
Columns = dict[str, Any]


def make_rows(num_rows: int, seed: int) -> Columns:
    """Rows as NVIDIA's preparation writes them: ids from 1, histories padded with zeros on the left."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, WIDTH + 1, num_rows)

    def sequences(num_ids: int) -> list[list[int]]:
        return [[0] * (WIDTH - n) + rng.integers(1, num_ids + 1, n).tolist() for n in lengths]

    return {
        "label": np.arange(num_rows) % 2,
        "uid": rng.integers(1, USERS + 1, num_rows),
        "item": rng.integers(1, ITEMS + 1, num_rows),
        "cat": rng.integers(1, CATEGORIES + 1, num_rows),
        **{prefix + "item_sequence": sequences(ITEMS) for prefix in ("", "neg_")},
        **{prefix + "cat_sequence": sequences(CATEGORIES) for prefix in ("", "neg_")},
    }


def without_padding(lists: list[list[int]]) -> list[list[int]]:
    return [[value for value in row if value] for row in lists]


SIM = """
channel_spec:
  label: [label]
  negative_history: [neg_item_sequence, neg_cat_sequence]
  positive_history: [item_sequence, cat_sequence]
  target_item_features: [item, cat]
  user_features: [uid]
feature_spec:
  neg_item_sequence: {cardinality: 20, dimensions: [6], dtype: int64}
  item_sequence: {cardinality: 20, dimensions: [6], dtype: int64}
  item: {cardinality: 20, dtype: int64}
  neg_cat_sequence: {cardinality: 4, dimensions: [6], dtype: int64}
  cat_sequence: {cardinality: 4, dimensions: [6], dtype: int64}
  cat: {cardinality: 4, dtype: int64}
  label: {dtype: bool}
  uid: {cardinality: 5, dtype: int64}
metadata: {online: true}
source_spec:
  test:
  - features: &id001 [label, uid, item, cat, item_sequence, cat_sequence, neg_item_sequence, neg_cat_sequence]
    files: [test.tfrecord]
    type: tfrecord
  train:
  - features: *id001
    files: [train_0.tfrecord, remainder.tfrecord]
    type: tfrecord
"""
"""The layout that NVIDIA's document shows for Amazon's reviews, with the rest of a prebatched mapping in a file."""


def write_records(path: Path, columns: Columns, prebatch: int) -> None:
    """As NVIDIA's script does: a record is P rows, histories P times WIDTH values."""
    num_rows = len(columns["label"])
    with tf.io.TFRecordWriter(str(path)) as writer:
        for start in range(0, num_rows, prebatch):
            lists = {
                name: tf.train.Int64List(value=np.ravel(np.asarray(column)[start : start + prebatch]).tolist())
                for name, column in columns.items()
            }
            feature = {name: tf.train.Feature(int64_list=values) for name, values in lists.items()}
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


@pytest.fixture
def records(tmp_path: Path) -> Path:
    directory = tmp_path / "records"
    directory.mkdir()
    (directory / "feature_spec.yaml").write_text(SIM)
    for name, num_rows, prebatch in (("train_0", 12, 4), ("remainder", 3, 3), ("test", 5, 1)):
        write_records(directory / f"{name}.tfrecord", make_rows(num_rows, seed=num_rows), prebatch)
    return directory


def rows_of(data: PreparedData, split: str) -> Columns:
    files = [pq.read_table(data.path / name) for name in data.spec.source(split).files]
    rows: Columns = pa.concat_tables(files).to_pydict()
    return rows


def joined(*parts: Columns) -> Columns:
    return {name: [value for part in parts for value in list(part[name])] for name in parts[0]}


def expected(columns: Columns) -> Columns:
    """Padding cut off, the rest as it was."""
    return {name: without_padding(c) if "sequence" in name else list(c) for name, c in columns.items()}


def check_prepared(data: PreparedData, train: Columns, valid: Columns) -> None:
    assert rows_of(data, "train") == expected(train)
    assert rows_of(data, "valid") == expected(valid)
    spec = data.spec
    assert spec.is_sequential
    assert {feature.name: feature.cardinality for feature in spec.categorical} == {
        "uid": 6, "item": 21, "cat": 5, "item_sequence": 21, "cat_sequence": 5,
        "neg_item_sequence": 21, "neg_cat_sequence": 5,
    }  # fmt: skip
    assert {feature.max_length for feature in spec.categorical if feature.is_list} == {WIDTH}
    assert (spec.label.name, spec.label.dtype) == ("label", "float32")
    assert data.inputs == ("uid", "item", "cat", "item_sequence", "cat_sequence")
    assert (data.candidates, data.group_by, data.item, spec.metadata.online) == (("item", "cat"), "uid", None, False)
    heldout = data.heldout().to_pydict()
    assert heldout == {name: expected(valid)[name] for name in (*data.inputs, "label")}
    assert json.loads((data.path / "metadata.json").read_text())["cardinalities"][1] == {"name": "item", "value": 20}
    assert data.manifest.details["rows"] == {"train": len(train["label"]), "valid": len(valid["label"])}


def test_prebatched_records_come_with_their_remainder(tmp_path: Path, records: Path) -> None:
    data = import_data(records, tmp_path / "data")
    check_prepared(data, joined(make_rows(12, seed=12), make_rows(3, seed=3)), make_rows(5, seed=5))


@pytest.mark.slow
@pytest.mark.parametrize("to", ["csv", "parquet"])
def test_format_of_the_files_makes_no_difference(tmp_path: Path, records: Path, to: str) -> None:
    for name, num_rows in (("train_0", 12), ("remainder", 3), ("test", 5)):
        frame = pd.DataFrame({column: list(values) for column, values in make_rows(num_rows, seed=num_rows).items()})
        if to == "csv":
            lists = {
                column: frame[column].map(lambda ids: " ".join(map(str, ids))) for column in frame if "seq" in column
            }
            frame[NAMES].assign(**lists).to_csv(records / f"{name}.csv", header=False, index=False)
        else:
            frame.to_parquet(records / f"{name}.parquet")
    (records / "other.yaml").write_text(SIM.replace("tfrecord", to).replace("  test:\n", "  valid:\n"))
    direct = import_data(records, tmp_path / "direct")
    other = import_data(records / "other.yaml", tmp_path / "other")
    for split in ("train", "valid"):
        assert rows_of(direct, split) == rows_of(other, split)


def test_served_ids_pass_and_others_are_padding(tmp_path: Path, records: Path) -> None:
    data = import_data(records, tmp_path / "data")
    plan = compile_workflow(data.workflow())
    assert [(spec.name, spec.dtype) for spec in plan.inputs] == [(name, "int64") for name in data.inputs]
    long = np.arange(1, 9)[None]  # two more than the data has: the latest stay
    answer = plan.run(
        {
            "uid": np.array([5]), "item": np.array([21]), "cat": np.array([-1]),
            "item_sequence": Padded(long, np.array([8], np.int32)),
            "cat_sequence": Padded(np.array([[4, 0, 5]]), np.array([3], np.int32)),
        }
    )  # fmt: skip
    ids = {n: (c.ragged().values if isinstance(c, Padded) else c).tolist() for n, c in answer.items()}
    assert ids == {
        "uid": [5],
        "item": [0],
        "cat": [0],
        "item_sequence": [3, 4, 5, 6, 7, 8],
        "cat_sequence": [0, 0, 0, 4, 0, 0],
    }
    rows = data.heldout().select(list(data.inputs)).to_pandas()
    with quiet_nvtabular():
        encoded = data.workflow().transform(rows.copy())
    for name in data.inputs:
        assert [list(np.ravel(value)) for value in encoded[name]] == [list(np.ravel(value)) for value in rows[name]]


GENERAL = """
feature_spec:
  user_gender: {dtype: torch.int8, cardinality: 3}
  user_age: {dtype: torch.int8}
  user_id: {dtype: torch.int32, cardinality: 2655, embedding_dim: 7}
  tags: {dtype: torch.int32, cardinality: 9, dimensions: [4]}
  unused: {dtype: tf.int64}
  label: {dtype: torch.float32}
source_spec:
  train:
    - {type: csv, features: [user_gender, user_age], files: [a.csv, b.csv]}
    - {type: csv, features: [user_id, tags, unused, label], files: [c.csv]}
  test:
    - {type: csv, features: [tags, user_id, label, user_gender, user_age, unused], files: [d.csv]}
channel_spec: {continuous: [user_age], categorical: [user_gender, user_id, tags], label: [label]}
"""


def general(directory: Path, text: str = GENERAL, **files: str) -> Path:
    directory.mkdir()
    (directory / "feature_spec.yaml").write_text(text)
    contents = {"a": "0,30\n", "b": "3,-4\n", "c": "5,1 2,7,0\n2655,,7,1\n", "d": "4,9,1,2,57,7\n9,9,0,1,0,7\n"}
    for name, content in (contents | files).items():
        (directory / f"{name}.csv").write_text(content)
    return directory


def test_rows_without_histories_are_imported_by_their_channels(tmp_path: Path) -> None:
    data = import_data(general(tmp_path / "mine"), tmp_path / "data")
    assert rows_of(data, "train") == {
        "user_gender": [0, 3], "user_age": [30.0, -4.0], "user_id": [5, 2655], "tags": [[1, 2], []],
        "label": [0.0, 1.0],
    }  # fmt: skip
    assert data.spec["user_id"].embedding_shape == (2656, 7)
    assert data.spec["user_gender"].embedding_shape == (4, 16)
    assert data.inputs == ("user_gender", "user_id", "tags", "user_age")
    assert (data.candidates, data.group_by) == ((), None)
    plan = compile_workflow(data.workflow())
    heldout = data.heldout()
    tags = Padded(np.array([[4], [9]]), np.array([1, 1], np.int32))
    answer = plan.run({**{n: heldout[n].to_numpy() for n in data.inputs if n != "tags"}, "tags": tags})
    assert answer["user_age"].tolist() == [57.0, 0.0]  # type: ignore[union-attr]
    assert answer["user_id"].tolist() == [9, 9]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{continuous: [user_age]", "{all: [user_age, user_id]", "channel_spec has an unknown channel 'all'"),
        ("label: [label]}", "}", "channel 'label' is empty"),
        ("label: [label]}", "label: [label]}\nmetadata: {heads: [{column: b}]}", "heads lists .*b"),
        ("label: [label]}", "label: [label]}\nmetadata: {heads: [{task: b}]}", r"a head\.column: field"),
        ("user_gender, user_id, tags]", "user_age]", r"feature_spec\.user_age.* is missing 'cardinality'"),
        ("[user_age], categorical: [user_gender, user_id, tags]", "[tags]", r"feature_spec\.tags"),
        ("user_id: {dtype: torch.int32", "user_id: {dtype: tf.float32", r"user_id\.dtype is float32"),
        ("  train:", "  fit:", r"source_spec has \['fit', 'test'\]"),
        ("  test:", "  other:", r"source_spec has \['other', 'train'\]"),
        ("categorical: [user_gender", "target_item_features: [user_gender], categorical: [user_id",
         r"'target_item_features' and 'positive_history' have features with \[4\] and \[\] ids"),
    ],
)  # fmt: skip
def test_import_data_names_unusable_channels(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GENERAL
    with pytest.raises(SpecError, match=rf"feature_spec\.yaml: .*{message}"):
        import_data(general(tmp_path / "mine", GENERAL.replace(old, new)), tmp_path / "data")
    assert not (tmp_path / "data").exists()


SEVERAL = (
    GENERAL.replace("  label:", "  spend: {dtype: torch.int8}\n  label:")
    .replace("unused, label]", "unused, spend, label]")
    .replace("label, user_gender", "spend, label, user_gender")
    .replace("label: [label]}", "label: [spend, label]}\nmetadata: {heads: [{column: spend, task: regression}, "
             "{column: label}]}")
)  # fmt: skip
SEVERAL_FILES = {
    "b": "3,-4\n1,5\n",
    "c": "5,1 2,7,3,0\n2655,,7,,1\n6,,7,5,\n",
    "d": "4,9,2,1,2,57,7\n9,9,,0,1,0,7\n7,7,4,,0,1,7\n",
}


def test_missing_labels_among_several_become_nan(tmp_path: Path) -> None:
    data = import_data(general(tmp_path / "mine", SEVERAL, **SEVERAL_FILES), tmp_path / "data")
    train, nan = rows_of(data, "train"), np.nan
    np.testing.assert_array_equal(train["spend"], [3, nan, 5])
    np.testing.assert_array_equal(train["label"], [0, 1, nan])
    np.testing.assert_array_equal(data.heldout()["spend"], [2, nan, 4])


@pytest.mark.parametrize("to", ["parquet", "tfrecord"])
def test_converted_data_with_missing_labels_is_imported_unchanged(tmp_path: Path, to: str) -> None:
    data = import_data(general(tmp_path / "mine", SEVERAL, **SEVERAL_FILES), tmp_path / "data")
    if to == "tfrecord":
        copied = import_data(convert(data.path, tmp_path / "records", to, prebatch=2).path, tmp_path / "copy")
    else:
        for path in data.path.glob("*/part*.parquet"):  # as `rankline prepare` writes them
            table = pq.read_table(path)
            nulls = pa.array(table["spend"].to_numpy(), from_pandas=True)
            pq.write_table(table.set_column(table.column_names.index("spend"), "spend", nulls), path)
        copied = import_data(data.path, tmp_path / "copy")
    np.testing.assert_array_equal(rows_of(copied, "train")["spend"], [3, np.nan, 5])


def test_label_is_never_filled(tmp_path: Path) -> None:
    filled = GENERAL.replace("label: {dtype: torch.float32}", "label: {dtype: torch.float32, null_fill: 0}")
    with pytest.raises(SpecError, match=r"feature_spec\.label has null_fill, but a missing label must not be filled"):
        import_data(general(tmp_path / "filled", filled), tmp_path / "data")
    with pytest.raises(DataError, match=r"'label' contains 1 nulls\. Remove these rows\."):
        import_data(general(tmp_path / "missing", c="5,1,7,0\n1,,7,\n"), tmp_path / "data")


@pytest.mark.parametrize(
    ("files", "kind", "message"),
    [
        ({"c": "5,1,7,0\n1,,7,0.5\n"}, DataError, r"c\.csv: row 2: 'label' is 0\.5"),
        ({"d": "4,9,1,2,57,7\n"}, DataError, "every label in the valid split is 1"),
        ({"c": "5,1,7,0\n"}, SpecError, r"its chunks contain \[2, 1\] rows"),
        ({"c": "5,1,7,0\n2656,,7,1\n"}, SpecError, "'user_id' contains 2656 in row 2, but .*cardinality is 2655"),
    ],
)
def test_import_data_names_unusable_rows_and_keeps_earlier_data(
    tmp_path: Path, files: dict[str, str], kind: type[Exception], message: str
) -> None:
    import_data(general(tmp_path / "good"), tmp_path / "data")
    before = load_manifest(tmp_path / "data", KIND)
    with pytest.raises(kind, match=message):
        import_data(general(tmp_path / "mine", **files), tmp_path / "data")
    assert load_manifest(tmp_path / "data", KIND) == before


def test_import_data_needs_a_spec(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"has no feature_spec\.yaml"):
        import_data(tmp_path, tmp_path / "data")


IDS = st.integers(1, 2**40)


def rows(**columns: list[list[int]]) -> Rows:
    table = pa.table({name: pa.array(lists, pa.list_(pa.int64())) for name, lists in columns.items()})
    return Rows(table=table, origins=dict.fromkeys(columns, (Path("a.csv"), 10)), num_bytes=0)


def lists_of(made: Any) -> dict[str, list[list[int]]]:
    return {name: column.to_pylist() for name, column in made.items()}


@st.composite
def padded(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]], list[tuple[int, int]]]:
    """Histories of two features, and zeros to put before and behind each row."""
    lengths = draw(st.lists(st.integers(0, 4), max_size=6))
    first, second = ([draw(st.lists(IDS, min_size=n, max_size=n)) for n in lengths] for _ in range(2))
    return first, second, [draw(st.tuples(st.integers(0, 3), st.integers(0, 3))) for _ in lengths]


@given(padded())
def test_padding_at_either_end_goes_and_all_ids_stay(
    case: tuple[list[list[int]], list[list[int]], list[tuple[int, int]]],
) -> None:
    first, second, zeros = case

    def with_zeros(lists: list[list[int]]) -> list[list[int]]:
        return [[0] * before + row + [0] * behind for row, (before, behind) in zip(lists, zeros, strict=True)]

    given = rows(item=with_zeros(first), cat=with_zeros(second), other=with_zeros(second))
    assert lists_of(trimmed(given, ["item", "cat"], ["other"])) == {"item": first, "cat": second, "other": second}


def test_rows_of_a_slice_and_unpadded_features_keep_their_own() -> None:
    whole = rows(item=[[9], [0, 0, 4, 5], []], cat=[[1], [7, 8], []])
    part = Rows(table=whole.table.slice(1), origins=whole.origins, num_bytes=0)
    assert lists_of(trimmed(part, ["item", "cat"], [])) == {"item": [[4, 5], []], "cat": [[7, 8], []]}


def test_history_may_come_without_negatives() -> None:
    made = trimmed(rows(item=[[0, 1, 2]], other=[[0, 0, 0]]), ["item"], ["other"])
    assert lists_of(made) == {"item": [[1, 2]], "other": [[]]}
    assert trimmed(rows(item=[[1]]), [], []) == {}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"item": [[1], [0, 1, 0, 2]], "cat": [[1], [0, 1, 1, 2]]}, "row 12: 'item' has a 0 between ids"),
        (
            {"item": [[1], [1, 2]], "cat": [[1], [0, 2]]},
            "row 12: 'cat' has 1 ids but 'item' has 2, expected the same number",
        ),
        ({"item": [[0, 1]], "cat": [[1, 0]]}, "row 11: 'cat' and 'item' are padded at different ends"),
        ({"item": [[1], [1, 2]], "cat": [[1], [1, 2]], "other": [[], [3]]}, "row 12: 'other' has 1 ids but 'item'"),
    ],
)
def test_history_that_contradicts_itself_is_named_by_file_and_row(
    columns: dict[str, list[list[int]]], message: str
) -> None:
    with pytest.raises(DataError, match=rf"a\.csv: {message}"):
        trimmed(rows(**columns), ["item", "cat"], ["other"] if "other" in columns else [])


def test_ids_are_int64_whatever_the_file_has() -> None:
    table = pa.table({"item": pa.array([[0, 3]], pa.list_(pa.int8()))})
    made = trimmed(Rows(table=table, origins={"item": (Path("a"), 0)}, num_bytes=0), ["item"], [])
    assert made["item"].values.to_numpy().dtype == np.int64
