"""The verbs `import` and `convert`."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner, Result

from rankline.cli.data import convert_command, import_command
from rankline.workflows.core.errors import ConfigError, SpecError
from rankline.workflows.preprocess.prepared_data import KIND, PreparedData
from rankline.workflows.schema.feature_spec import Feature, FeatureSpec, Source
from rankline.workflows.storage.artifacts import publish

SPEC = """
feature_spec:
  user: {dtype: int32, cardinality: 9}
  age: {dtype: torch.int8}
  label: {dtype: torch.float32}
source_spec:
  train:
  - {type: csv, features: [user, age], files: [a.csv]}
  - {type: csv, features: [label], files: [b.csv]}
  test:
  - {type: csv, features: [label, age, user], files: [c.csv]}
channel_spec: {categorical: [user], continuous: [age], label: [label]}
"""


def call(verb: str, *arguments: object) -> Result:
    app = typer.Typer()
    app.command(name="import")(import_command)
    app.command(name="convert")(convert_command)
    return CliRunner().invoke(app, [verb, *map(str, arguments)])


def output_of(verb: str, *arguments: object) -> str:
    done = call(verb, *arguments)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    directory = tmp_path / "mine"
    directory.mkdir()
    (directory / "feature_spec.yaml").write_text(SPEC)
    for name, text in (("a", "1,30\n2,40\n"), ("b", "0\n1\n"), ("c", "1,50,9\n0,60,3\n")):
        (directory / f"{name}.csv").write_text(text)
    return directory


def test_import_of_files_with_a_feature_spec(tmp_path: Path, mine: Path) -> None:
    output = output_of("import", "movielens", mine, "--work-dir", tmp_path / "work")
    prepared = tmp_path / "work" / "movielens" / "prepared"
    assert output.splitlines()[-1] == f"prepared data: {prepared} (2 train, 2 valid rows)"
    assert PreparedData.load(prepared).inputs == ("user", "age")


def test_import_of_a_spec_of_another_name(tmp_path: Path, mine: Path) -> None:
    (mine / "feature_spec.yaml").rename(mine / "other.yaml")
    command = ["import", "movielens", mine, "--work-dir", tmp_path / "work"]
    output_of(*command, "--spec", "other.yaml")
    for arguments, kind, message in (
        ([], SpecError, "has no feature_spec.yaml"),
        (["--spec", "none.yaml"], ConfigError, "none.yaml is not a file"),
    ):
        result = call(*command, *arguments)
        assert isinstance(result.exception, kind)
        assert message in str(result.exception)


DOCUMENT = """
feature_spec:
  user_gender: {dtype: torch.int8, cardinality: 3}
  user_age: {dtype: torch.int8}
  user_id: {dtype: torch.int32, cardinality: 5}
  item_id: {dtype: torch.int32, cardinality: 4}
  label: {dtype: torch.float32}
source_spec:
  train:
  - {type: csv, features: [user_gender, user_age], files: [a0.csv, a1.csv]}
  - {type: csv, features: [user_id, item_id, label], files: [b.csv]}
  test:
  - {type: csv, features: [user_id, item_id, label, user_gender, user_age], files: [t.csv]}
channel_spec:
  numeric_inputs: [user_age]
  categorical_user_inputs: [user_gender, user_id]
  categorical_item_inputs: [item_id]
  label_ch: [label]
"""


@pytest.fixture
def document(tmp_path: Path) -> Path:
    """NVIDIA's first example of a feature spec: channels of other names, two chunks, ids from 0."""
    directory = tmp_path / "document"
    directory.mkdir()
    (directory / "feature_spec.yaml").write_text(DOCUMENT)
    files = {
        "a0": "0,30\n1,40\n",
        "a1": "2,50\n0,20\n",
        "b": "0,0,1\n1,1,0\n4,3,1\n2,0,0\n",
        "t": "0,0,1,0,33\n3,2,0,1,22\n",
    }
    for name, text in files.items():
        (directory / f"{name}.csv").write_text(text)
    return directory


def test_import_tells_channels_of_any_name_by_what_they_hold(tmp_path: Path, document: Path) -> None:
    output = output_of("import", "movielens", document, "--name", "churn", "--work-dir", tmp_path / "work")
    assert "train it with: rankline train churn=movielens" in output
    assert "numeric_inputs as continuous" in output
    assert not (tmp_path / "work" / "movielens").exists()
    data = PreparedData.load(tmp_path / "work" / "churn" / "prepared")
    assert data.spec.channels == {
        "continuous": ("user_age",), "categorical": ("user_gender", "user_id", "item_id"), "label": ("label",),
    }  # fmt: skip
    heldout = data.heldout().to_pydict()
    assert (heldout["user_id"], heldout["item_id"], heldout["label"]) == ([0, 3], [0, 2], [1, 0])


@pytest.mark.parametrize(
    ("channels", "message"),
    [
        ("{all: [user_age, user_id], label: [label]}", "'all', which no model knows, and holds ids beside numbers"),
        (
            "{user_features: [user_id], more: [item_id], label: [label]}",
            r"'more', which no model knows, beside \['user_f",
        ),
    ],
)
def test_import_refuses_a_channel_that_could_be_anything(
    tmp_path: Path, document: Path, channels: str, message: str
) -> None:
    spec = DOCUMENT.partition("channel_spec:")[0] + f"channel_spec: {channels}\n"
    (document / "feature_spec.yaml").write_text(spec)
    done = call("import", "movielens", document, "--work-dir", tmp_path / "work")
    assert isinstance(done.exception, SpecError)
    assert re.search(message, str(done.exception))


@pytest.fixture
def work_dir(tmp_path: Path) -> Path:
    spec = FeatureSpec(
        features=(Feature(name="age", dtype="float32"), Feature(name="label", dtype="float32")),
        channels={"continuous": ("age",), "label": ("label",)},
        sources={"train": Source(files=("train/a.parquet",), num_rows=10)},
    )
    with publish(tmp_path / "movielens" / "prepared", KIND) as staging:
        (staging / "train").mkdir()
        columns = {"age": np.arange(10, dtype=np.float32), "label": np.ones(10, np.float32)}
        pq.write_table(pa.table(columns), staging / "train" / "a.parquet")
        (staging / "feature_spec.yaml").write_text(spec.to_yaml())
    return tmp_path


def test_convert_of_prepared_data_in_place_and_back(work_dir: Path) -> None:
    prepared = work_dir / "movielens" / "prepared"
    before = pq.read_table(prepared / "train" / "a.parquet")
    place = ["--work-dir", work_dir]
    assert "10 of 10 rows converted" in output_of("convert", "movielens", "--to", "tfrecord", "--prebatch", 4, *place)
    source = PreparedData.load(prepared).spec.source("train")
    assert (source.type, source.files) == ("tfrecord", ("train/a.tfrecord",))
    output_of("convert", "movielens", "--to", "parquet", *place)
    assert pq.read_table(prepared / "train" / "a.parquet") == before
