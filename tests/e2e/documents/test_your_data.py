"""docs/guide/your-data.md: its commands on a click log; and odd tables from `init` to scores, nothing edited."""

import csv
import io
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq
import pytest
import yaml

from bench.harness.synthetic_rows import write_click_log
from rankline.recipes.recipe_file import RecipeFile
from rankline.recipes.yaml_config import read_yaml
from tests.harness.commands.command_line import commands, rankline, shortened, typed

ROWS = 1_200


def odd_names(path: Path) -> None:
    """Names with spaces, signs, dots and letters of other languages; a label of words."""
    rng = np.random.default_rng(0)
    size, kind = rng.normal(size=ROWS), rng.integers(0, 3, ROWS)
    clicked = size + (kind == 1) + rng.normal(size=ROWS) > 0
    columns = {
        "Is member?": rng.random(ROWS) < 0.5,
        "Größe (cm)": size,
        "a.b": np.array(list("xyz"))[kind],
        "日本": rng.choice(["p", "q"], ROWS),
        "a b": rng.integers(0, 100, ROWS),
        "a?b": rng.integers(0, 100, ROWS),
        "50% off": rng.choice(["r", "s"], ROWS),
        "Did click?": np.where(clicked, "yes", "no"),
    }
    pa_csv.write_csv(pa.table(columns), path)


def all_numbers(path: Path) -> None:
    """Numbers only, without a header, and a number to predict."""
    rng = np.random.default_rng(2)
    numbers = rng.normal(size=(ROWS, 6))
    label = numbers @ np.arange(6) + rng.normal(size=ROWS)
    np.savetxt(path, np.column_stack([numbers, label]), delimiter=";", fmt="%.4f")


def many_classes(path: Path) -> None:
    """Forty classes."""
    rng = np.random.default_rng(3)
    kind = rng.integers(0, 40, ROWS)
    columns = {
        "u": kind + rng.normal(size=ROWS),
        "v": rng.choice(["p", "q"], ROWS),
        "class": [f"class {k}" for k in kind],
    }
    pq.write_table(pa.table(columns), path)


def nulls_everywhere(path: Path) -> None:
    """Every column lacks a third of its values, the label too; one has none."""
    rng = np.random.default_rng(4)

    def some(values: list[Any]) -> list[Any]:
        return [None if rng.random() < 0.33 else value for value in values]

    columns: Mapping[str, list[Any]] = {
        "i": some(rng.integers(0, 1_000, ROWS).tolist()),
        "f": some(rng.normal(size=ROWS).tolist()),
        "s": some(rng.choice(list("abcdef"), ROWS).tolist()),
        "t": some([f"2024-{1 + n // 28 % 12:02}-{1 + n % 28:02}T{n % 24:02}:00:00Z" for n in range(ROWS)]),
        "b": some((rng.random(ROWS) < 0.5).tolist()),
        "tags": some([rng.choice(["m", "n", "o"], n % 3).tolist() for n in range(ROWS)]),
        "empty": [None] * ROWS,
        "label": some(rng.integers(0, 2, ROWS).tolist()),
    }
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")


ODD_TABLES: Mapping[str, Callable[[Path], None]] = {
    "odd names.csv": odd_names,
    "numbers.csv": all_numbers,
    "classes.parquet": many_classes,
    "nulls.jsonl": nulls_everywhere,
}
"""File → what writes it."""


DOCUMENT = (Path(__file__).parents[3] / "docs" / "guide" / "your-data.md").read_text(encoding="utf-8")
LOG_ROWS = 4_000
SHORTER = {"rankline run": "--batch-sizes 1 --epochs 1"}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all commands of the document were run, one after the other."""
    path = tmp_path_factory.mktemp("your-data")
    write_click_log(path / "clicks.csv", LOG_ROWS)
    for command in commands(DOCUMENT):
        typed(shortened(command, SHORTER), path)
    return path


def test_raw_file_is_scored_as_it_is(workplace: Path) -> None:
    raw, scored = (pa_csv.read_csv(workplace / name) for name in ("clicks.csv", "scored.csv"))
    assert scored.column_names == [*raw.column_names, "score"]
    assert len(scored) == LOG_ROWS
    assert scored["user_id"].equals(raw["user_id"])
    assert 0 < min(scored["score"].to_pylist()) < max(scored["score"].to_pylist()) < 1


def test_row_that_is_typed_is_scored_like_one_in_a_file(workplace: Path) -> None:
    lines = (workplace / "clicks.csv").read_text().splitlines(keepends=True)
    (workplace / "one.csv").write_text("".join(lines[:2]))
    (row,) = csv.DictReader(io.StringIO("".join(lines[:2])))
    features = read_yaml(workplace / "rankline.yaml", RecipeFile).features
    typed_in = [f"--{name}={value}" for name, value in row.items() if name in features]
    scores = []
    for arguments in (typed_in, ["--input", "one.csv"], ["--input", "-"]):
        done = rankline("predict", "rankline.yaml", *arguments, cwd=workplace, stdin="".join(lines[:2]))
        assert done.returncode == 0, done.stderr
        scores.append(float(re.findall(r"0\.\d+", done.stdout)[-1]))
    assert scores == pytest.approx([scores[0]] * 3, abs=1e-6)


def test_recipe_that_was_changed_since_is_not_mistaken_for_what_it_was(workplace: Path) -> None:
    recipe = yaml.safe_load((workplace / "rankline.yaml").read_text())
    split = recipe | {"rows": recipe.get("rows", {}) | {"valid_share": 0.35}}
    (workplace / "split.yaml").write_text(yaml.safe_dump(split, sort_keys=False))
    done = rankline("train", "split.yaml", cwd=workplace)
    assert done.returncode == 1
    assert "was prepared before the recipe changed rows.valid_share, or by another" in done.stderr
    texts = recipe | {"data": recipe["data"] | {"missing": ["", "0"]}}
    (workplace / "texts.yaml").write_text(yaml.safe_dump(texts, sort_keys=False))
    done = rankline("predict", "texts.yaml", "--input", "clicks.csv", cwd=workplace)
    assert done.returncode == 1
    assert (
        "was exported before the recipe changed its data.missing. Restore the recipe, or train and export again"
        in done.stderr
    )


@pytest.mark.parametrize("name", ODD_TABLES)
def test_odd_table_reaches_scores_with_nothing_edited(tmp_path: Path, name: str) -> None:
    ODD_TABLES[name](tmp_path / name)
    scored = f"scored{Path(name).suffix}"
    assert rankline("init", name, cwd=tmp_path).returncode == 0
    is_auto = "name: auto" in (tmp_path / "rankline.yaml").read_text(encoding="utf-8")
    short = ("--time-limit", "2") if is_auto else ("--epochs", "1")
    for arguments in (
        ("prepare", "rankline.yaml"),
        ("train", "rankline.yaml", *short),
        ("export", "rankline.yaml"),
        ("predict", "rankline.yaml", "--input", name, "--output", scored),
    ):
        done = rankline(*arguments, cwd=tmp_path)
        assert done.returncode == 0, f"{arguments}\n{done.stdout}{done.stderr}"
    read = {".csv": pa_csv.read_csv, ".jsonl": pa_json.read_json, ".parquet": pq.read_table}[Path(name).suffix]
    assert len(read(tmp_path / scored)) == ROWS
