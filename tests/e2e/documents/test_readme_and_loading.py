"""README and docs/guide/loading.md: their commands and Python, but what `test_pipeline.py` runs."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from rankline.cli.main import app
from rankline.serving.export.config import ExportConfig
from rankline.training.models.config import StepConfig
from rankline.training.models.tabular import MLPConfig
from rankline.workflows.nvt.compat import quiet_nvtabular
from rankline.workflows.schema.feature_spec import Feature, FeatureSpec
from tests.harness.commands.command_line import commands, started, typed

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / "docs" / "guide" / "loading.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
COMMANDS = commands(DOCUMENT)


def small_model() -> Any:
    features = [
        Feature(
            name=name,
            dtype="int64",
            cardinality=60,
            embedding_dim=2,
            is_list=is_list,
            max_length=2 if is_list else None,
        )
        for name, is_list in (("userId", False), ("movieId", False), ("genres", True))
    ]
    channels = {"categorical": ("userId", "movieId", "genres"), "label": ("rating",)}
    spec = FeatureSpec(features=(*features, Feature(name="rating", dtype="float32")), channels=channels)
    model = MLPConfig(hidden=(4,)).build(spec, StepConfig())
    model.compile("sgd", "binary_crossentropy")
    return model


def test_python_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    for split in ("train", "valid"):
        (tmp_path / "prepared" / split).mkdir(parents=True)
        rows = pa.table(
            {
                "userId": rng.integers(3, 60, 8000),
                "movieId": rng.integers(3, 60, 8000),
                "genres": pa.array([[3] * (row % 3) for row in range(8000)]),
                "rating": rng.integers(0, 2, 8000),
            }
        )
        pq.write_table(rows, tmp_path / "prepared" / split / "a.parquet", row_group_size=1000)
    monkeypatch.chdir(tmp_path)
    assert len(EXAMPLES) == 3
    names: dict[str, Any] = {"model": small_model()}
    for example in EXAMPLES:
        exec(compile(example, "docs/guide/loading.md", "exec"), names)
    assert names["rest"] == len(names["train"]) - 3 == 5
    assert tuple(names["begins"].shape)[1:] == (1,)


def test_python_for_those_who_move_runs_as_it_stands(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    moving = (ROOT / "docs" / "guide" / "moving.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    with quiet_nvtabular():
        for example in re.findall(r"```python\n(.*?)```", moving, re.DOTALL):
            exec(compile(example, "docs/guide/moving.md", "exec"), names)
    assert capsys.readouterr().out == "(2,) (2,)\n" * 2 + "torch.Size([2, 1]) torch.Size([2])\n" * 2


def test_commands_run(tmp_path: Path) -> None:
    assert len(COMMANDS) == 3
    for command in ("rankline prepare movielens --rows 5000", *COMMANDS):
        typed(f"{command} --epochs 1" if "train" in command else command, tmp_path)


README = (ROOT / "README.md").read_text(encoding="utf-8")
SERVING = (ROOT / "docs" / "guide" / "serving.md").read_text(encoding="utf-8")


def test_readme_shows_commands() -> None:
    assert commands(README)[0] == "make demo"
    assert len(commands(README)) > 7


def test_make_demo_runs_it_all(tmp_path: Path) -> None:
    short = f"--rows 20000 --epochs 1 --batch-sizes 1 --work-dir {tmp_path} --repository {tmp_path}/repository"
    process = started(f"make demo ARGS='{short}'", ROOT)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert "best attainable" in output


def test_serving_md_names_options_and_files_that_are_there() -> None:
    of_serve = CliRunner().invoke(app, ["serve", "--help-all"]).output
    for option in re.findall(r"`--([a-z-]+)`", SERVING):
        name = option.removeprefix("no-").replace("-", "_")
        assert name in {field.name for field in fields(ExportConfig)} or f"--{option}" in of_serve, option
