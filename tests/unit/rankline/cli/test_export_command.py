"""`rankline export` of what was made elsewhere, and the verbs that take its name."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from rankline.cli.main import app
from rankline.serving.importers.input_binding import Input
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
    return directory


@pytest.fixture(autouse=True)
def _here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def call(line: str) -> Result:
    return CliRunner().invoke(app, line.split())


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
    assert "In there: mine, or name another --repository" in unknown.output.replace("\n", " ")
    assert "Traceback" not in unknown.output
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


REFUSED = {
    "export": "give a recipe, such as movielens, or a model with a sample and a name",
    "export movielens --sample rows.csv": "sample: only with a model that was trained elsewhere",
    "export movielens --model model --sample rows.csv --name mine": "a recipe and a model were both given",
    "export --model model --sample rows.csv --name mine --missing 0": "--missing 0 is for XGBoost",
    "export --model model --name mine": "a model needs a sample, raw rows to compare on, and a name",
    "export --model model --sample rows.csv --name movielens": "not the name of a recipe",
    "export --model model --sample none.csv --name mine": "none.csv does not exist",
    "export --model none --sample rows.csv --name mine": "none does not exist. Expected a model: SavedModel",
    "export --model model --sample rows.csv --name mine --rename user": "expected COLUMN=INPUT",
    "export --model model --sample rows.csv --name mine --uncompiled LambdaOp": "without a compiled form: none",
    "export --model model --sample rows.csv --name mine --engine torch": "engine is 'torch', expected one that takes",
    "predict nobody --user 3": "nothing was exported as 'nobody' to",
    "predict mine.yaml --user 3": "mine.yaml",
    "rollback nobody --repository none": "Nothing is there: rankline export makes one, or name another --repository",
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
    assert "an ensemble that a recipe made" in done.output.replace("\n", " ")
