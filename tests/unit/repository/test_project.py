"""What hosts of code and contributors' tools read: it says nothing that the Makefile and pyproject.toml do not."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", WORKFLOWS),
        ("custom.github-workflows-require-timeout", WORKFLOWS),
        ("vendor.github-issue-forms", sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml"))),
        ("vendor.citation-file-format", [ROOT / "CITATION.cff"]),
    ],
)
def test_a_file_follows_its_schema(schema: str, files: list[Path]) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert files
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_what_runs_anywhere(workflow: Path) -> None:
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"].values()
    commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    assert commands
    for command in commands:
        words = command.split()
        assert words[0] in ("make", ".ci/run", ".venv/bin/python"), command
        assert words[0] != "make" or words[1] in TARGETS, command


def test_every_python_that_is_supported_is_tried() -> None:
    matrix = yaml.safe_load((GITHUB / "workflows" / "checks.yml").read_text())["jobs"]["test"]["strategy"]["matrix"]
    low, high = re.findall(r"requires-python = \">=3\.(\d+),<3\.(\d+)\"", (ROOT / "pyproject.toml").read_text())[0]
    assert matrix["python"] == [f"3.{minor}" for minor in range(int(low), int(high))]


def test_a_release_has_one_version() -> None:
    version = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[:1]
    assert re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE) == version
    assert re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[:1] == version
