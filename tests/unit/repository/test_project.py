"""What hosts of code and contributors' tools read, and where there is no engine for containers."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.harness.containers.deployment import ROOT, schema_faults

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
def test_file_follows_its_schema(schema: str, files: list[Path]) -> None:
    assert files
    assert schema_faults(schema, *files) == ""


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_calls_what_runs_anywhere(workflow: Path) -> None:
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"].values()
    commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    assert commands
    for command in commands:
        words = command.split()
        assert words[0] in ("make", ".ci/run", ".venv/bin/python"), command
        assert words[0] != "make" or words[1] in TARGETS, command


def test_ci_covers_supported_pythons() -> None:
    matrix = yaml.safe_load((GITHUB / "workflows" / "checks.yml").read_text())["jobs"]["test"]["strategy"]["matrix"]
    low, high = re.findall(r"requires-python = \">=3\.(\d+),<3\.(\d+)\"", (ROOT / "pyproject.toml").read_text())[0]
    assert matrix["python"] == [f"3.{minor}" for minor in range(int(low), int(high))]


def test_release_has_one_version() -> None:
    version = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[:1]
    assert re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE) == version
    assert re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[:1] == version


UNAVAILABLE = 69
DENIED = "echo 'permission denied while trying to connect to the Docker daemon socket' >&2; exit 1"
ABSENT = "echo 'Cannot connect to the Docker daemon' >&2; exit 1"


def engine(path: Path, docker: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run `true` with an engine, where `docker` is a shell script."""
    path.chmod(0o755)
    (path / "docker").write_text(f"#!/bin/sh\n{docker}\n", encoding="utf-8")
    (path / "docker").chmod(0o755)
    return subprocess.run(
        [str(ROOT / "scripts/container-engine.sh"), "true"],
        env={"PATH": f"{path}:{os.environ['PATH']}", "HOME": str(path), **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("docker", "variables", "said"),
    [
        ("echo 20.10.24", {}, "the engine is 20.10.24, expected 25 or later: upgrade it"),
        ("[ $1 = version ] && echo 26.1.5", {}, "docker has no Compose plugin: install it"),
        (DENIED, {}, "you lack permission for the engine at /var/run/docker.sock: have root add you to its group"),
        (ABSENT, {"DOCKER_HOST": "tcp://192.0.2.1:2376"}, "no engine answers at DOCKER_HOST=tcp://192.0.2.1:2376"),
    ],
)
def test_unsuitable_engine_is_reported_in_one_line(
    tmp_path: Path, docker: str, variables: dict[str, str], said: str
) -> None:
    done = engine(tmp_path, docker, **variables)
    assert done.returncode == UNAVAILABLE
    assert done.stderr.startswith(f"container-engine: {said}")
    assert done.stderr.count("\n") == 1


def test_suitable_engine_is_used_as_it_is(tmp_path: Path) -> None:
    done = engine(tmp_path, "[ $1 = version ] && echo 28.2.2 || echo 2.40.0")
    assert (done.returncode, done.stderr) == (0, "")
