from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.support.recorders import ProgressRecord
from training.data_set import DataSet
from training.loader.tfrecord import TFRecordLoader
from training.transcode import transcode
from workflows.errors import ArtifactError, ConfigError, DataError, SpecError
from workflows.feature_spec import FeatureSpec
from workflows.spec_file import FILE_TYPES, PARQUET, Chunk, Feature, SpecFile

GENERAL = """
feature_spec:
  user_gender: {dtype: torch.int8, cardinality: 3}
  user_age: {dtype: torch.int8}
  user_id: {dtype: torch.int32, cardinality: 2655}
  item_id: {dtype: torch.int32, cardinality: 856}
  label: {dtype: torch.float32}
source_spec:
  train:
    - {type: csv, features: [user_gender, user_age], files: [train_data_0_0.csv, train_data_0_1.csv]}
    - {type: csv, features: [user_id, item_id, label], files: [train_data_1.csv]}
  test:
    - {type: csv, features: [user_id, item_id, label, user_gender, user_age], files: [test_data.csv]}
channel_spec:
  numeric_inputs: [user_age]
  categorical_user_inputs: [user_gender, user_id]
  categorical_item_inputs: [item_id]
  label_ch: [label]
metadata: {made: 2021-06-30}
"""
"""The example of NVIDIA's description of feature specs."""

TRAIN = {
    "user_gender": [0, 1, 2, 1, 0],
    "user_age": [30, 41, 22, 19, 57],
    "user_id": [5, 2654, 7, 5, 8],
    "item_id": [1, 2, 855, 4, 4],
    "label": [0.0, 1.0, 1.0, 0.0, 1.0],
}
TEST = {"user_gender": [2], "user_age": [-4], "user_id": [9], "item_id": [3], "label": [0.5]}


@pytest.fixture
def general(tmp_path: Path) -> Path:
    directory = tmp_path / "general"
    directory.mkdir()
    (directory / "feature_spec.yaml").write_text(GENERAL)
    (directory / "train_data_0_0.csv").write_text("0,30\n1,41\n2,22\n")
    (directory / "train_data_0_1.csv").write_text("1,19\n0,57\n")
    (directory / "train_data_1.csv").write_text("5,1,0\n2654,2,1\n7,855,1\n5,4,0\n8,4,1\n")
    (directory / "test_data.csv").write_text("9,3,0.5,2,-4\n")
    return directory


def rows_of(path: Path, mapping: str) -> dict[str, list[Any]]:
    rows: dict[str, list[Any]] = pa.concat_tables(part.table for part in DataSet.read(path).rows(mapping)).to_pydict()
    return rows


@pytest.mark.parametrize("to", FILE_TYPES)
def test_chunks_become_one_with_the_same_rows(tmp_path: Path, general: Path, to: str) -> None:
    spec = transcode(general, tmp_path / "new", to)
    old = SpecFile.read(general / "feature_spec.yaml")
    assert SpecFile.read(tmp_path / "new" / "feature_spec.yaml") == spec
    assert (spec.features, spec.channels, spec.metadata) == (old.features, old.channels, old.metadata)
    (chunk,) = spec.mappings["train"]
    assert (chunk.type, chunk.num_rows, chunk.files) == (to, 5, (f"train/part-000.{to}",))
    assert chunk.features == ("user_gender", "user_age", "user_id", "item_id", "label")
    assert (rows_of(tmp_path / "new", "train"), rows_of(tmp_path / "new", "test")) == (TRAIN, TEST)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "feature_spec.yaml", "manifest.json", "test", "train",
    ]  # fmt: skip


def test_csv_has_no_header_and_lists_as_one_field(tmp_path: Path) -> None:
    table = pa.table({"items": [[3, 17], [], [4]], "n": [1, 2, 3], "x": pa.array([0.1, None, -2.5], pa.float32())})
    pq.write_table(table, tmp_path / "a.parquet")
    features = (
        Feature(name="x", dtype="float32", null_fill=9),
        Feature(name="items", dtype="int64", is_list=True, max_length=2),
        Feature(name="n", dtype="int8"),
    )
    chunk = Chunk(type=PARQUET, features=("items", "n", "x"), files=("a.parquet",))
    (tmp_path / "odd.yaml").write_text(SpecFile(features=features, mappings={"train": (chunk,)}).to_yaml())
    transcode(tmp_path / "odd.yaml", tmp_path / "new", "csv")
    text = (tmp_path / "new" / "train" / "part-000.csv").read_text()
    assert text == '0.1,"3 17",1\n9,"",2\n-2.5,"4",3\n'


VALUES: dict[str, Any] = {
    "id": st.integers(0, 2**40),
    "flag": st.booleans(),
    "number": st.floats(width=32, allow_nan=False),
    "items": st.lists(st.integers(0, 2**40), max_size=4),
    "weights": st.lists(st.floats(width=32, allow_nan=False), max_size=4),
}
FEATURES = (
    Feature(name="id", dtype="int64", cardinality=2**40),
    Feature(name="flag", dtype="bool"),
    Feature(name="number", dtype="float32"),
    Feature(name="items", dtype="int64", cardinality=2**40, is_list=True, max_length=4),
    Feature(name="weights", dtype="float32", is_list=True, max_length=4),
)


@examples(1 / 4)
@given(
    rows=st.lists(st.fixed_dictionaries(VALUES), min_size=1, max_size=12),
    way=st.permutations(FILE_TYPES),
    prebatch=st.integers(1, 5),
)
def test_any_way_around_the_rows_come_back(rows: list[dict[str, Any]], way: list[str], prebatch: int) -> None:
    columns = {name: [row[name] for row in rows] for name in VALUES}
    schema = pa.schema(
        [("id", pa.int64()), ("flag", pa.bool_()), ("number", pa.float32()),
         ("items", pa.list_(pa.int64())), ("weights", pa.list_(pa.float32()))]
    )  # fmt: skip
    with TemporaryDirectory() as scratch:
        directory = Path(scratch)
        pq.write_table(pa.table(columns, schema=schema), directory / "a.parquet")
        chunk = Chunk(type=PARQUET, features=tuple(VALUES), files=("a.parquet",))
        (directory / "feature_spec.yaml").write_text(SpecFile(features=FEATURES, mappings={"all": (chunk,)}).to_yaml())
        for number, to in enumerate([*way, PARQUET]):
            new = directory / str(number)
            transcode(directory, new, to, prebatch=prebatch if to == "tfrecord" else 1)
            directory = new
        assert rows_of(directory, "all") == columns


def test_what_is_prebatched_is_read_by_the_loader(tmp_path: Path, prepared: Path) -> None:
    transcode(prepared, tmp_path / "new", "tfrecord", prebatch=300)
    spec = FeatureSpec.read(tmp_path / "new")
    source = spec.source("train")
    files = [tmp_path / "new" / name for name in source.files]
    loader = TFRecordLoader(files, spec, 512, num_rows=source.num_rows, shuffle=False)
    users = [user for inputs, _ in loader for user in inputs["userId"].numpy()[:, 0].tolist()]
    assert users == rows_of(prepared, "train")["userId"]
    assert len(users) == 4000


@pytest.mark.parametrize("to", FILE_TYPES)
def test_progress_goes_over_all_bytes(tmp_path: Path, general: Path, to: str) -> None:
    progress = ProgressRecord()
    transcode(general, tmp_path / "new", to, progress=progress)
    size = sum(path.stat().st_size for path in general.glob("*.csv"))
    done = [report[0] for report in progress.reports]
    assert done == sorted(done)
    assert progress.reports[-1] == (pytest.approx(size), size, "6 rows")


def test_large_mappings_become_several_files_of_whole_blocks(tmp_path: Path, prepared: Path) -> None:
    spec = transcode(prepared, tmp_path / "new", "tfrecord", prebatch=30, block_rows=100, file_rows=1500)
    (chunk,) = spec.mappings["train"]
    assert chunk.files == tuple(f"train/part-{number:03d}.tfrecord" for number in range(3))
    counts = []
    for name in chunk.files:
        records = tf.data.TFRecordDataset(str(tmp_path / "new" / name)).as_numpy_iterator()
        examples = [tf.train.Example.FromString(record).features.feature for record in records]
        sizes = [len(example["userId"].int64_list.value) for example in examples]
        assert set(sizes[:-1]) == {30}
        counts.append(sum(sizes))
    assert counts == [1530, 1530, 940]
    assert rows_of(tmp_path / "new", "train") == rows_of(prepared, "train")


def test_impossible_choices_are_refused_and_leave_what_was_there(tmp_path: Path, general: Path) -> None:
    for to, prebatch, message in (("orc", 1, "'orc'. Available: p"), ("csv", 4, "batch is 4"), ("tfrecord", 0, "is 0")):
        with pytest.raises(ConfigError, match=message):
            transcode(general, tmp_path / "new", to, prebatch=prebatch)
    with pytest.raises(ArtifactError, match="not an artifact"):
        transcode(general, general, "parquet")
    transcode(general, tmp_path / "new", "parquet")
    (general / "train_data_1.csv").write_text("5,1,0\n")
    with pytest.raises(SpecError, match=r"source_spec\.train: its chunks hold \[5, 1\] rows"):
        transcode(general, tmp_path / "new", "csv")
    assert rows_of(tmp_path / "new", "train") == TRAIN
    (general / "test_data.csv").write_text("")
    (general / "train_data_1.csv").write_text("5,1,0\n" * 5)
    with pytest.raises(DataError, match=r"source_spec\.test have no rows"):
        transcode(general, tmp_path / "new", "csv")
    (general / "feature_spec.yaml").write_text("feature_spec: {}\nchannel_spec: {}")
    with pytest.raises(DataError, match="nothing to transcode"):
        transcode(general, tmp_path / "new", "csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["general", "new"]
