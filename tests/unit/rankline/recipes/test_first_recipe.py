"""Files of any shape → a recipe whose text is read back, by `init` and in Python."""

import gzip
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from rankline.cli.main import app
from rankline.recipes.first_recipe import FirstRecipe, first_recipe
from rankline.recipes.recipe_file import read_recipe
from rankline.training.config.train import TrainConfig
from rankline.training.models.auto import AutoConfig
from rankline.training.models.tabular import MLPConfig
from rankline.workflows.core.errors import DataError
from rankline.workflows.data.autodetect.profile import profile
from rankline.workflows.preprocess.config import RowsConfig
from rankline.workflows.preprocess.raw import StreamedRows

ROWS = 300
USERS = [f"u{n % 60}" for n in range(ROWS)]
FEES = [n / 7 for n in range(ROWS)]
LABELS = [n % 2 for n in range(ROWS)]


def lines_of(columns: dict[str, list[Any]], delimiter: str = ",") -> str:
    rows = zip(*columns.values(), strict=True)
    return "".join(delimiter.join(map(str, row)) + "\n" for row in (columns, *rows))


def read_back(file: Path) -> tuple[FirstRecipe, pa.Table]:
    made = first_recipe([str(file)], [], file.parent)
    assert made.contradiction is None
    (file.parent / "rankline.yaml").write_text(made.text, encoding="utf-8")
    rows = read_recipe(file.parent / "rankline.yaml").dataset.read(file.parent).rows
    assert isinstance(rows, StreamedRows)
    return made, pa.Table.from_batches(rows.batches(), rows.schema)


HEADERS: dict[str, tuple[dict[str, list[Any]], bool]] = {
    "a year": ({"user": USERS, "2024": FEES, "label": LABELS}, True),
    "numbers in a row": ({"0": FEES, "1": FEES, "2": LABELS}, True),
    "a number over texts": ({"1": USERS, "2": [f"p{n % 7}" for n in range(ROWS)], "x": LABELS}, True),
    "data": ({"u1": USERS, "3.5": FEES, "0": LABELS}, False),
    "data, nothing but numbers": ({"7": FEES, "3.5": FEES[::-1], "0": LABELS}, False),
    "data with a missing cell": ({"u1": USERS, "NA": FEES, "0": LABELS}, False),
}


@pytest.mark.parametrize("case", HEADERS)
def test_first_line_of_csv_is_a_header_unless_it_looks_like_data(case: str, tmp_path: Path) -> None:
    columns, is_header = HEADERS[case]
    (tmp_path / "rows.csv").write_text(lines_of(columns))
    made, rows = read_back(tmp_path / "rows.csv")
    assert ("header: false" in made.text) != is_header
    assert len(rows) == ROWS + (not is_header)
    assert {*made.guesses.columns, *made.guesses.labels} == set(
        columns if is_header else [f"column_{n + 1}" for n in range(len(columns))]
    )


NAMES = [f"Gr\xf6\xdfe {n % 9}" for n in range(ROWS)]
TEXT = lines_of({"user": USERS, "name": NAMES, "label": LABELS})
LATE = lines_of({"user": USERS, "name": ["x" * 2_000] * (ROWS - 1) + ["Gr\xf6\xdfe"], "label": LABELS})
WRITTEN: dict[str, tuple[bytes, str]] = {
    "utf-8": (TEXT.encode(), "delimiter: ','"),
    "utf-8 with a mark": (TEXT.encode("utf-8-sig"), "delimiter: ','"),
    "latin-1 at the end": (LATE.encode("latin-1"), "encoding: latin-1"),
    "Windows": (TEXT.replace(",label", " \u20ac,label").encode("cp1252"), "encoding: cp1252"),
    "utf-16": (TEXT.encode("utf-16"), "encoding: utf-16"),
    "utf-16 without a mark": (TEXT.encode("utf-16-le"), "encoding: utf-16-le"),
    "tabs": (TEXT.replace(",", "\t").encode(), r'delimiter: "\t"'),
    "a quote that is never closed": (TEXT.replace("u7,", '"u7,', 1).encode(), "quote: none"),
}


@pytest.mark.parametrize("case", WRITTEN)
def test_csv_may_be_written_in_any_way(case: str, tmp_path: Path) -> None:
    data, line = WRITTEN[case]
    (tmp_path / "rows.csv").write_bytes(data)
    made, rows = read_back(tmp_path / "rows.csv")
    assert f"  {line}" in made.text
    assert len(rows) == ROWS
    if case != "latin-1 at the end":
        assert rows[next(name for name in rows.column_names if name.startswith("name"))].to_pylist() == NAMES


def test_model_of_a_table_is_auto_unless_it_has_ids(tmp_path: Path) -> None:
    columns = {"level": [n % 5 for n in range(ROWS)], "fee": [f if f > 3 else "" for f in FEES], "label": LABELS}
    (tmp_path / "rows.csv").write_text(lines_of(columns))
    made, _ = read_back(tmp_path / "rows.csv")
    assert read_recipe(tmp_path / "rankline.yaml").train == TrainConfig(model=AutoConfig())
    assert [guessed.config.role for guessed in made.guesses.columns.values()] == ["numeric", "numeric"]
    assert [guessed.config.missing_indicator for guessed in made.guesses.columns.values()] == [False, True]
    (tmp_path / "rows.csv").write_text(lines_of({"user_id": [f"u{n % 61}" for n in range(ROWS)], **columns}))
    made, _ = read_back(tmp_path / "rows.csv")
    assert isinstance(read_recipe(tmp_path / "rankline.yaml").train.model, MLPConfig)
    assert made.guesses.columns["level"].config.role == "categorical"


def test_column_that_is_empty_where_models_train_is_ignored(tmp_path: Path) -> None:
    times = [f"2024-01-{1 + n // 24:02d} {n % 24:02d}:00" for n in range(ROWS)]
    late = ["" if n < 0.9 * ROWS else f"{n / 7:.2f}" for n in range(ROWS)]
    (tmp_path / "rows.csv").write_text(lines_of({"when": times, "late": late, "fee": FEES, "label": LABELS}))
    made, _ = read_back(tmp_path / "rows.csv")
    assert made.guesses.columns["late"].config.role == "ignored"
    assert made.guesses.columns["late"].why == "no value in the oldest rows, on which models train"
    assert read_recipe(tmp_path / "rankline.yaml").encoding == RowsConfig(split="time")


@pytest.mark.parametrize(
    ("columns", "copies"),
    [
        ({"fee": FEES * 2, "label": LABELS * 2}, "300 of 600 rows repeat another row"),
        ({"fee": FEES, "label": LABELS}, ""),
        ({"level": [n % 5 for n in range(ROWS)], "label": LABELS}, ""),  # equal by chance
    ],
)
def test_rows_that_repeat_others_are_counted(tmp_path: Path, columns: dict[str, list[Any]], copies: str) -> None:
    (tmp_path / "rows.csv").write_text(lines_of(columns))
    made, _ = read_back(tmp_path / "rows.csv")
    assert made.copies.startswith(copies)
    assert bool(made.copies) == bool(copies)


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(TEXT)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(TEXT.encode())[:-9])
    for files in (["a.csv", "b.csv.gz"], ["b.csv.gz"]):
        with pytest.raises(DataError, match=r"b\.csv\.gz cannot be read as csv"):
            first_recipe([str(tmp_path / name) for name in files], [], tmp_path)


def test_names_of_any_characters_are_read_back(tmp_path: Path) -> None:
    names = ["Amount\n(USD)", "a\r\nb", " x ", "tab\there", "line\u2028end", "no", "'", '"', "#", "a: b", "{", "~", "1"]
    columns = {name: [n * 0.7 + place for n in range(ROWS)] for place, name in enumerate(names)}
    pq.write_table(pa.table({**columns, "label\nend": LABELS}), tmp_path / "rows.parquet")
    _, rows = read_back(tmp_path / "rows.parquet")
    assert {name: rows[name].to_pylist() for name in names} == columns


def test_init_names_a_row_that_contradicts_its_guesses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankline.recipes.first_recipe.profile", partial(profile, sample_rows=30))
    (tmp_path / "rows.csv").write_text(lines_of({"fee": [*FEES[:-1], "many"], "user": USERS, "label": LABELS}))
    recipe = tmp_path / "rankline.yaml"
    done = CliRunner().invoke(app, ["init", str(tmp_path / "rows.csv"), "--output", str(recipe)])
    assert done.exit_code == 1
    said = " ".join(done.output.split())
    assert "rankline.yaml was written, but some rows do not match it" in said
    assert "rows.csv, row 300: column 'fee' is 'many', expected a number" in said
    assert read_recipe(recipe).dataset.inputs == ("fee", "user")


def test_lists_of_numbers_and_texts_are_lists_of_texts(tmp_path: Path) -> None:
    rows = [{"tags": ["a", 2] if n % 9 else ["b"], "label": n % 2} for n in range(ROWS)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert read_back(tmp_path / "rows.jsonl")[1]["tags"][1].as_py() == ["a", "2"]


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


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "my rows.csv")
    return tmp_path


def test_init_writes_what_was_guessed_and_prints_the_next_command(here: Path) -> None:
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


def test_init_replaces_a_file_by_force_only(here: Path) -> None:
    (here / "rankline.yaml").write_text("mine")
    done = invoke("my rows.csv")
    assert done.exit_code == 1
    assert "rankline.yaml already exists" in done.output
    assert (here / "rankline.yaml").read_text() == "mine"
    assert "no.csv is not a file, directory or pattern" in invoke("no.csv").output  # the first thing to correct
    assert invoke("my rows.csv", "--force").exit_code == 0
    assert (here / "rankline.yaml").read_text() != "mine"


def test_init_names_files_relative_to_the_recipe(here: Path) -> None:
    (here / "recipes").mkdir()
    assert invoke("my rows.csv", "--output", "recipes/a.yaml", "--label", "no").exit_code == 0
    recipe = read_recipe(here / "recipes" / "a.yaml")
    assert recipe.dataset.heads[0].task == "multiclass"
    assert len(recipe.dataset.read(here / "recipes").rows) == ROWS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no files were passed"),
        (("my rows.csv", "--output", "a.txt"), "expected a file name ending in .yaml"),
        (("my rows.csv", "--output", "none/a.yaml"), "none is not a directory. Create the directory first"),
        (("rows.data",), "the format of rows.data is unknown"),
        (("rows.data", "--format", "xls"), "--format is 'xls'. Available: csv, parquet, jsonl"),
        (("one.csv",), "no column besides the label that can be used as a feature. Provide files with more columns."),
        (
            ("total.csv",),
            "as a feature. Ignored: 'x' (numbers, except in 1 row such as 'Total': correct or delete this row). "
            "Correct these columns, or provide files with more columns.",
        ),
        (
            ("same.csv",),
            "Ignored: 'a' (one value in all rows), 'b' (one value in all rows), 'c' (one value in all rows), "
            "'d' (one value in all rows), 'e' (one value in all rows), …. Correct",
        ),
    ],
)
def test_init_refuses_unusable_input_and_writes_nothing(here: Path, arguments: tuple[str, ...], message: str) -> None:
    (here / "rows.data").write_text("a,label\n1,0\n")
    (here / "one.csv").write_text("label\n0\n1\n0\n1\n")
    (here / "total.csv").write_text(lines_of({"x": [*FEES, "Total"], "y": [*LABELS, 150]}))
    (here / "same.csv").write_text(lines_of({**dict.fromkeys("abcdef", [7] * ROWS), "label": LABELS}))
    done = invoke(*arguments)
    assert done.exit_code == 1
    assert message in " ".join(done.output.split())
    assert not list(here.glob("**/*.yaml"))
