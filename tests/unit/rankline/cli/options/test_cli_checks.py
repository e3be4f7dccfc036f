"""A place for a result is tried before the work, and nothing is made of it by a command that is refused."""

import json
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rankline.cli.main import app
from rankline.cli.options.checks import check_writable
from rankline.workflows.core.errors import ConfigError
from tests.factories.ensembles import publish_tiny
from tests.harness.commands.command_line import RANKLINE


def test_a_place_is_tried_without_leaving_anything(tmp_path: Path) -> None:
    check_writable(None)
    check_writable(tmp_path / "new" / "deep" / "result.json")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_takes_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file is a file, expected a directory for result.json"):
        check_writable(tmp_path / "file" / "result.json")
    with pytest.raises(ConfigError, match="is a directory, expected a file to be written: .*result.json"):
        check_writable(tmp_path)


@pytest.mark.parametrize("verb", [["runs"], ["compare", "a", "b"], ["bench"]])
def test_a_refused_command_leaves_no_directory_of_its_result(
    verb: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, [*verb, "--json", "new/deep/result.json"]).exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_json_for_another_program_is_alone_on_standard_output(tmp_path: Path) -> None:
    publish_tiny(tmp_path / "repository" / "tiny", 1)
    command = [RANKLINE, "status", "--repository", str(tmp_path / "repository"), "--json", "-"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [ensemble["name"] for ensemble in json.loads(done.stdout)["ensembles"]] == ["tiny"]
    assert "tiny" in done.stderr
    assert not (tmp_path / "-").exists()


def test_the_directory_of_a_result_is_made_with_it(tmp_path: Path) -> None:
    publish_tiny(tmp_path / "repository" / "tiny", 1)
    file = tmp_path / "new" / "status.json"
    command = ["status", "--repository", str(tmp_path / "repository"), "--json", str(file)]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert file.is_file()
