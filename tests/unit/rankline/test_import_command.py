from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from rankline.cli.import_data import import_command
from rankline.cli.transcode import transcode_command
from workflows.errors import ConfigError, SpecError
from workflows.prepared import PreparedData
from workflows.spec_file import SpecFile

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


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.command(name="import")(import_command)
    app.command(name="transcode")(transcode_command)
    return app


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    directory = tmp_path / "mine"
    directory.mkdir()
    (directory / "feature_spec.yaml").write_text(SPEC)
    for name, text in (("a", "1,30\n2,40\n"), ("b", "0\n1\n"), ("c", "1,50,9\n0,60,3\n")):
        (directory / f"{name}.csv").write_text(text)
    return directory


def test_files_are_transcoded_and_then_imported(app: typer.Typer, tmp_path: Path, mine: Path) -> None:
    done = CliRunner().invoke(app, ["transcode", str(mine), str(tmp_path / "new"), "--to", "parquet"])
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1] == f"parquet: {tmp_path / 'new'} (2 train, 2 test rows)"
    assert SpecFile.read(tmp_path / "new" / "feature_spec.yaml").mappings["test"][0].type == "parquet"
    work = ["--work-dir", str(tmp_path / "work")]
    done = CliRunner().invoke(app, ["import", "movielens", str(tmp_path / "new"), *work])
    assert done.exit_code == 0, done.output
    prepared = tmp_path / "work" / "movielens" / "prepared"
    assert done.output.splitlines()[-1] == f"prepared data: {prepared} (2 train, 2 valid rows)"
    assert PreparedData.load(prepared).inputs == ("user", "age")


def test_a_spec_of_another_name_is_given_by_its_name(app: typer.Typer, tmp_path: Path, mine: Path) -> None:
    (mine / "feature_spec.yaml").rename(mine / "other.yaml")
    command = ["import", "movielens", str(mine), "--work-dir", str(tmp_path / "work")]
    done = CliRunner().invoke(app, [*command, "--spec", "other.yaml"])
    assert done.exit_code == 0, done.output
    for arguments, kind, message in (
        ([], SpecError, "neither feature_spec.yaml nor metadata.json"),
        (["--spec", "none.yaml"], ConfigError, "none.yaml is not a file"),
        (["--spec", "other.yaml", "--num-user-features", "1"], ConfigError, "a feature spec has channels"),
    ):
        result = CliRunner().invoke(app, [*command, *arguments])
        assert isinstance(result.exception, kind)
        assert message in str(result.exception)
