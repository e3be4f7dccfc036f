"""scripts/container-engine.sh where there is no engine that will do: one line each, and what to do about it."""

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.support.deployment import ROOT

UNAVAILABLE = 69
NOBODY = 65534
DENIED = "echo 'permission denied while trying to connect to the Docker daemon socket' >&2; exit 1"
ABSENT = "echo 'Cannot connect to the Docker daemon' >&2; exit 1"


def engine(path: Path, docker: str, *, user: int | None = None, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run `true` with an engine, where `docker` is a shell script."""
    path.chmod(0o755)
    (path / "docker").write_text(f"#!/bin/sh\n{docker}\n", encoding="utf-8")
    (path / "docker").chmod(0o755)
    return subprocess.run(
        [str(ROOT / "scripts/container-engine.sh"), "true"],
        env={"PATH": f"{path}:{os.environ['PATH']}", "HOME": str(path), **variables},
        user=user,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("docker", "said"),
    [
        ("echo 20.10.24", "the engine is 20.10.24, expected 25 or later: upgrade it"),
        ("[ $1 = version ] && echo 26.1.5", "docker has no Compose plugin: install it"),
        ("[ $1 = version ] && echo 26.1.5 || echo v2.5.0", "Compose is v2.5.0, expected 2.24 or later: upgrade it"),
        (DENIED, "you may not talk to the engine at /var/run/docker.sock: have root add you to its group"),
    ],
)
def test_what_will_not_do_is_said_in_one_line(tmp_path: Path, docker: str, said: str) -> None:
    done = engine(tmp_path, docker)
    assert done.returncode == UNAVAILABLE
    assert done.stderr.startswith(f"container-engine: {said}")
    assert done.stderr.count("\n") == 1


def test_an_address_at_which_none_answers_is_named(tmp_path: Path) -> None:
    done = engine(tmp_path, ABSENT, DOCKER_HOST="tcp://192.0.2.1:2376")
    assert (done.returncode, done.stderr.count("\n")) == (UNAVAILABLE, 1)
    assert "no engine answers at DOCKER_HOST=tcp://192.0.2.1:2376" in done.stderr


def test_one_that_will_do_is_used_as_it_is(tmp_path: Path) -> None:
    done = engine(tmp_path, "[ $1 = version ] && echo 28.2.2 || echo 2.40.0")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(os.geteuid() != 0, reason="root becomes another user")
def test_only_root_may_start_one() -> None:
    with tempfile.TemporaryDirectory() as directory:  # pytest's own is root's alone
        done = engine(Path(directory), ABSENT, user=NOBODY)
    assert (done.returncode, done.stderr.count("\n")) == (UNAVAILABLE, 1)
    assert "only root may start one: start Docker, or set DOCKER_HOST" in done.stderr
