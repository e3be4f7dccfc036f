"""`rankline init`: data of one's own → a recipe file, which is read back."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from rankline.cli.main import app
from rankline.recipes.recipe_file import read_recipe, recipe_schema

ROWS = 300


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["init", *arguments], env={"COLUMNS": "200"})


def write_rows(path: Path) -> None:
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, ROWS)
    lines = ["user_id,Größe (cm),no,paid,label"]
    lines += [
        f"u{n % 60},{rng.normal():.3f},{'xyz'[n % 3]},{('open', 'done')[label[n]]},{label[n]}" for n in range(ROWS)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "my rows.csv")
    return tmp_path


def test_the_recipe_says_what_was_guessed_and_the_summary_the_next_command(here: Path) -> None:
    done = invoke("my rows.csv")
    assert done.exit_code == 0, done.output
    assert "rankline run rankline.yaml" in done.output
    assert "a likely leak: paid" not in done.output
    assert "a likely leak: predicts label alone" in done.output
    text = (here / "rankline.yaml").read_text(encoding="utf-8")
    assert "no: {type: string, role: categorical}  # 3 distinct values" in text.replace("'no'", "no")
    recipe = read_recipe(here / "rankline.yaml")
    assert recipe.name == "my-rows"
    assert recipe.dataset.inputs == ("user_id", "Größe (cm)", "no")
    assert len(recipe.dataset.read(here).rows) == ROWS


def test_a_recipe_is_called_as_its_file_so_that_two_of_the_same_rows_stay_apart(here: Path) -> None:
    assert invoke("my rows.csv", "--output", "only paid.yaml", "--label", "paid").exit_code == 0
    assert read_recipe(here / "only paid.yaml").name == "only-paid"


def test_a_file_that_is_there_is_not_replaced_but_by_force(here: Path) -> None:
    (here / "rankline.yaml").write_text("mine")
    done = invoke("my rows.csv")
    assert done.exit_code == 1
    assert "rankline.yaml is there already" in done.output
    assert (here / "rankline.yaml").read_text() == "mine"
    assert invoke("my rows.csv", "--force").exit_code == 0
    assert (here / "rankline.yaml").read_text() != "mine"


def test_files_are_named_relative_to_the_recipe(here: Path) -> None:
    (here / "recipes").mkdir()
    assert invoke("my rows.csv", "--output", "recipes/a.yaml", "--label", "no").exit_code == 0
    recipe = read_recipe(here / "recipes" / "a.yaml")
    assert recipe.dataset.heads[0].task == "multiclass"
    assert len(recipe.dataset.read(here / "recipes").rows) == ROWS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no files were given"),
        (("none.csv",), "none.csv is not a file, directory or pattern"),
        (("my rows.csv", "--label", "lable"), "Did you mean 'label'"),
        (("my rows.csv", "--output", "a.txt"), "expected a name that ends with .yaml"),
        (("my rows.csv", "--output", "none/a.yaml"), "none is not a directory"),
        (("empty",), "holds no CSV, Parquet or JSON lines"),
        (("header.csv",), "no rows, only a header"),
        (("rows.data",), "the format of rows.data is unknown"),
        (("rows.data", "--format", "xls"), "--format is 'xls'. Available: csv, parquet, jsonl"),
        (("one.csv",), "no column besides the label can be learned from"),
    ],
)
def test_what_cannot_be_looked_at_is_refused_and_nothing_written(
    here: Path, arguments: tuple[str, ...], message: str
) -> None:
    (here / "empty").mkdir()
    (here / "header.csv").write_text("a,b,label\n")
    (here / "rows.data").write_text("a,label\n1,0\n")
    (here / "one.csv").write_text("label\n0\n1\n0\n1\n")
    done = invoke(*arguments)
    assert done.exit_code == 1
    assert message in " ".join(done.output.split())
    assert not list(here.glob("**/*.yaml"))


def test_the_schema_is_printed() -> None:
    done = invoke("--print-schema")
    assert json.loads(done.stdout) == recipe_schema()
