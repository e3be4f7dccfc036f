"""Criteo through the command line: every command of docs/reference/criteo.md, a DLRM, real MLflow store and server."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from rankline.workflows.data.criteo.reader import COLUMNS, LABEL
from tests.harness.commands.command_line import commands, rankline, typed
from tests.oracles.tolerance import SCORE_ROUNDING

QUICK = ["--batch-size", "512", "--epochs", "1"]
SMALL = {"criteo-dlrm": ["--top-mlp", "32,16", "--bottom-mlp", "16"], "criteo-dcnv2": ["--hidden", "32,16"]}
DLRM = [*SMALL["criteo-dlrm"], *QUICK]
MISSING = "null"


RUN, *OTHERS = commands((Path(__file__).parents[3] / "docs" / "reference" / "criteo.md").read_text(encoding="utf-8"))
DAYS = "work/raw/generated-criteo-8000-1-0.001"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the document's whole run has been made, of fewer clicks and a smaller model."""
    path = tmp_path_factory.mktemp("criteo")
    shorter = f"--rows 8000 --json result.json --batch-sizes 1 {shlex.join(DLRM)}"
    said = typed(f"{RUN} {shorter}", path)
    assert "criteo-dlrm, version 1: trained, served and measured" in said
    assert "recommend" not in said  # it has no items
    clicks = pd.read_csv(path / DAYS / "day_0", sep="\t", names=COLUMNS, dtype=str, nrows=100)
    clicks.drop(columns=LABEL).to_csv(path / "clicks.csv", index=False)
    return path


@pytest.fixture(scope="module")
def result(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "result.json").read_text())  # type: ignore[no-any-return]


def test_server_ranks_the_last_day_as_training_did(directory: Path, result: dict[str, Any]) -> None:
    days = sorted((directory / DAYS).glob("day_*"))
    lines = [len(day.read_text().splitlines()) for day in days]
    assert result["rows"] == {"train": sum(lines[:-1]), "valid": lines[-1]}
    quality = result["quality"]
    assert quality["served_auc"] == pytest.approx(quality["valid_auc"], abs=1e-4)
    assert quality["valid_auc"] > 0.55


def test_predict_takes_missing_numbers_and_hexadecimal_categories(directory: Path) -> None:
    row = pq.read_table(directory / "work/criteo-dlrm/prepared/heldout").slice(0, 1).to_pylist()[0]
    del row["label"]
    spelt = {name: str(value).upper() if name.startswith("C") and value else value for name, value in row.items()}
    nothing: dict[str, Any] = dict.fromkeys(row)
    lines = "".join(json.dumps(one) + "\n" for one in (row, spelt, nothing, {**nothing, "C3": "00c0ffee"}))
    scores = predicted(directory, "--input", "-", stdin=lines)
    assert len(scores) == 4
    assert all(0 < score < 1 for score in scores)
    assert scores[1] == pytest.approx(scores[0], abs=SCORE_ROUNDING)
    texts = {name: MISSING if value is None else str(value) for name, value in spelt.items()}
    options = [word for name, text in texts.items() for word in (f"--{name}", text)]
    assert predicted(directory, *options) == [pytest.approx(scores[0], abs=SCORE_ROUNDING)]


def predicted(directory: Path, *arguments: str, stdin: str | None = None) -> list[float]:
    done = rankline("predict", "criteo-dlrm", *arguments, cwd=directory, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return [float(json.loads(line)["score"]) for line in done.stdout.splitlines()]


def test_recommend_says_that_there_are_no_items(directory: Path) -> None:
    done = rankline("recommend", "criteo-dlrm", "--user", "1", cwd=directory)
    assert done.returncode == 1
    assert "has no user column and no item column and no catalog of items, which `recommend` requires" in done.stderr


@pytest.mark.parametrize(
    ("recipe", "prepare", "train", "export"),
    [
        ("criteo-dcnv2", ["--hash-buckets", "8"], ["--precision", "bfloat16", "--xla"], ["--engine", "onnx"]),
        (
            "criteo-dlrm",
            ["--frequency-threshold", "2"],
            ["--precision", "float16", "--checkpoint-every", "5"],
            ["--no-fused"],
        ),
    ],
)
def test_ensembles_of_all_options_agree(
    tmp_path: Path, directory: Path, recipe: str, prepare: list[str], train: list[str], export: list[str]
) -> None:
    for arguments in (
        ["prepare", recipe, "--data-dir", str(directory / DAYS), *prepare],
        ["train", recipe, *SMALL[recipe], *QUICK, *train],
        ["export", recipe, *export],
    ):
        done = rankline(*arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert "parity" in done.stdout + done.stderr


def test_commands_of_the_document_work(directory: Path, tmp_path: Path) -> None:
    """In their order, and on a copy: they train anew."""
    again = shutil.copytree(directory, tmp_path / "again", symlinks=True)
    for command in OTHERS:
        assert typed(f"{command} {shlex.join(DLRM)}" if "train" in command else command, again)
