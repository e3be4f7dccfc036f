"""scripts/container-engine.sh where there is no engine that will do: one line each, and what to do about it."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.harness.containers.deployment import ROOT

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
        (DENIED, {}, "you may not talk to the engine at /var/run/docker.sock: have root add you to its group"),
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
