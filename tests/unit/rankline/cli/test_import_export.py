"""`rankline export` of what was made elsewhere, the verbs that take its name, and `import` and `convert`."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
import typer
from typer.testing import CliRunner, Result

from rankline.api.verbs import export
from rankline.cli.data import convert_command, import_command
from rankline.cli.main import app
from rankline.recipes.workspace import workspace_of
from rankline.serving.importers.input_binding import Input
from rankline.workflows.core.errors import ConfigError, SpecError
from rankline.workflows.preprocess.prepared_data import KIND, PreparedData
from rankline.workflows.schema.feature_spec import Feature, FeatureSpec, Source
from rankline.workflows.storage.artifacts import publish
from tests.factories.ensembles import publish_tiny
from tests.factories.importable_models import save_saved_model

INPUTS = (Input(name="user", dtype="int64", shape=(None, 1)), Input(name="price", dtype="float32", shape=(None, 1)))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("export")
    save_saved_model(INPUTS, directory / "model")
    rows = pd.DataFrame({"user": np.arange(50), "price": np.linspace(0, 3, 50), "note": "x"})
    rows.to_csv(directory / "rows.csv", index=False)
    pq.write_table(pa.Table.from_pandas(rows), directory / "rows.parquet")
    (directory / "twice.csv").write_text("user,price,user\n1,2,3\n")
    (directory / "rows.dat").write_text("user,price\n1,2\n")
    return directory


@pytest.fixture(autouse=True)
def _here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def call(line: str) -> Result:
    return CliRunner().invoke(app, shlex.split(line))


def test_export_of_a_model_is_scored_listed_and_rolled_back_by_its_name() -> None:
    done = call("export --model model --sample rows.csv --name mine")
    assert done.exit_code == 0, done.output
    assert "model_repository/mine, version 1: parity on " in done.output
    assert "model_repository/mine: version 1 is active" in done.output
    assert "rankline predict mine --input rows.csv" in done.output
    assert call("export --model model --sample rows.parquet --name mine --engine onnx").exit_code == 0
    scored = call("predict mine --user 3 --price 0.5")
    assert json.loads(scored.stdout)["score_click"] == pytest.approx(1 / (1 + np.exp(-(0.3 + 0.125))), rel=1e-6)
    unknown = call("bench nobody")
    assert unknown.exit_code == 1
    assert "It contains mine; choose one of these, or pass another --repository" in unknown.output.replace("\n", " ")
    assert "Traceback" not in unknown.output
    compared = " ".join(call("compare mine@1 mine@2").output.split())
    assert compared.startswith("Error: mine@1 has no MLflow run to compare, because its model was trained elsewhere.")
    listed = call("versions mine").output
    assert "onnx" in listed
    assert "–" in listed  # no quality is known of it
    assert "version 1 is active" in call("rollback mine").output
    whole = call("predict mine --input rows.parquet --output scored.parquet")
    assert whole.exit_code == 0, whole.output
    scored_rows = pq.read_table("scored.parquet")
    assert scored_rows.num_rows == 50
    assert "note" in scored_rows.column_names
    assert '{"user": 3, "price": 0.5, "score_click": ' in call("predict mine --user 3 --price 0.5").output


def test_next_commands_quote_paths(place: Path) -> None:
    (place / "my rows.csv").write_bytes((place / "rows.csv").read_bytes())
    done = call("export --model model --sample 'my rows.csv' --name spaced --repository 'my models'")
    assert "rankline predict spaced --input 'my rows.csv' --output scored.csv --repository 'my models'" in done.output
    assert "rankline serve spaced --repository 'my models'\n" in done.output


def test_damaged_version_is_listed_and_rolled_back(tmp_path: Path) -> None:
    publish_tiny(tmp_path / "tiny", 0)
    damaged = publish_tiny(tmp_path / "tiny", 1)
    (tmp_path / "tiny" / damaged.steps[0] / "config.pbtxt").unlink()
    listed = " ".join(call(f"versions tiny --repository {tmp_path}").output.split())
    assert "version 2 is damaged: " in listed
    assert "no undamaged version is active. Export again, or activate one: rankline rollback tiny" in listed
    assert "cannot be read" in call(f"promote tiny --repository {tmp_path}").output  # the newest
    assert "version 1 is active" in call(f"rollback tiny --repository {tmp_path}").output
    assert "no undamaged version is active" not in call(f"versions tiny --repository {tmp_path}").output


def test_renamed_outputs_are_named_and_so_is_a_model_in_memory(place: Path) -> None:
    assert call("export --model model --sample rows.csv --name renamed").exit_code == 0
    other = tf.Module()
    specs = [tf.TensorSpec(entry.shape, entry.dtype, entry.name) for entry in INPUTS]
    score = tf.function(lambda user, price: {"dense_2": tf.sigmoid(price)}, input_signature=specs)
    tf.saved_model.save(other, str(place / "other"), signatures={"serving_default": score})
    done = call("export --model other --sample rows.csv --name renamed --no-promote")
    assert done.exit_code == 0, done.output
    assert "rankline predict" not in done.output  # it would use version 1
    assert "the outputs are named dense_2, but those of the active version 1 click" in done.output.replace("\n", " ")
    with pytest.raises(ConfigError, match=r"the model is a Module object, expected a path or a merlin-systems graph"):
        export(model=other, sample="rows.csv", name="renamed")


REFUSED = {
    "export": "Pass a recipe, such as movielens, or a model with a sample and a name",
    "export movielens --sample rows.csv": "sample can be used only with a model that was trained elsewhere",
    "export movielens --model model --sample rows.csv --name mine": "a recipe and a model were both passed",
    "export --model model --sample rows.csv --name mine --missing 0": "--missing 0 is supported only for XGBoost",
    "export --model model --sample rows.csv --name movielens": "belongs to a recipe",
    "export --model none --sample rows.csv --name mine": "none does not exist. Expected a model: SavedModel",
    "export --model model --sample rows.csv --name mine --uncompiled LambdaOp": "that cannot be compiled: none",
    "export --model model --sample twice.csv --name mine": "column 'user' appears twice in twice.csv, expected",
    "export --model model --sample model --name mine": "model is a directory, expected a CSV, Parquet or JSON Lines",
    "export --model model --sample no.csv --name mine": "no.csv does not exist, expected a CSV, Parquet or JSON Lines",
    "export --model model --sample rows.dat --name mine": "format of rows.dat is unknown. Rename it to end in .csv,",
    "predict nobody --user 3": "'nobody' was not found in",
    "rollback nobody --repository none": "create one with rankline export, or pass another --repository",
}


@pytest.mark.parametrize("line", REFUSED)
def test_options_that_do_not_go_together_are_refused_in_a_line(line: str) -> None:
    done = call(line)
    assert done.exit_code == 1
    assert REFUSED[line] in done.output.replace("\n", " ")
    assert "Traceback" not in done.output


def test_export_of_a_model_does_not_replace_the_ensemble_of_a_recipe(tmp_path: Path) -> None:
    publish_tiny(tmp_path / "models" / "tiny", 0)
    done = call(f"export --model model --sample rows.csv --name tiny --repository {tmp_path / 'models'}")
    assert done.exit_code == 1
    assert "an ensemble exported from a recipe" in done.output.replace("\n", " ")


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


def call_verb(verb: str, *arguments: object) -> Result:
    app = typer.Typer()
    app.command(name="import")(import_command)
    app.command(name="convert")(convert_command)
    return CliRunner().invoke(app, [verb, *map(str, arguments)])


def output_of(verb: str, *arguments: object) -> str:
    done = call_verb(verb, *arguments)
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
        result = call_verb(*command, *arguments)
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


def test_import_recognizes_channels_of_any_name_by_their_contents(tmp_path: Path, document: Path) -> None:
    output = output_of("import", "movielens", document, "--name", "churn", "--work-dir", tmp_path / "work")
    assert "train a model with: rankline train churn=movielens" in output
    assert "numeric_inputs as continuous" in output
    assert not (tmp_path / "work" / "movielens").exists()
    data = PreparedData.load(tmp_path / "work" / "churn" / "prepared")
    assert data.spec.channels == {
        "continuous": ("user_age",), "categorical": ("user_gender", "user_id", "item_id"), "label": ("label",),
    }  # fmt: skip
    heldout = data.heldout().to_pydict()
    assert (heldout["user_id"], heldout["item_id"], heldout["label"]) == ([0, 3], [0, 2], [1, 0])


def test_data_is_imported_for_a_recipe_file_under_another_name(tmp_path: Path, mine: Path) -> None:
    recipe = tmp_path / "shop.yaml"
    recipe.write_text("name: shop\ndata: {files: [a.csv]}\ncolumns: {x: {}}\nlabels: {label: {}}\n")
    output = output_of("import", recipe, mine, "--name", "churn", "--work-dir", tmp_path / "work")
    assert f"rankline train churn={recipe}" in "".join(output.splitlines())
    PreparedData.load(workspace_of(f"churn={recipe}", tmp_path / "work").prepared)


@pytest.mark.parametrize(
    ("channels", "message"),
    [
        ("{all: [user_age, user_id], label: [label]}", "unknown channel 'all', which contains both ids and numbers"),
        (
            "{user_features: [user_id], more: [item_id], label: [label]}",
            r"unknown channel 'more', which cannot be combined with",
        ),
    ],
)
def test_import_refuses_an_ambiguous_channel(tmp_path: Path, document: Path, channels: str, message: str) -> None:
    spec = DOCUMENT.partition("channel_spec:")[0] + f"channel_spec: {channels}\n"
    (document / "feature_spec.yaml").write_text(spec)
    done = call_verb("import", "movielens", document, "--work-dir", tmp_path / "work")
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
