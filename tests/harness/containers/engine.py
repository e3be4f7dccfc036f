"""A container engine for tests: the machine's, or one that `scripts/container-engine.sh` starts while they run."""

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from tests.harness.containers.deployment import ROOT

_UNAVAILABLE = 69
_SAY_HOW = 'echo "$DOCKER_HOST"; echo "$DOCKER_CONFIG"; echo "$PATH"; exec cat'


@contextmanager
def container_engine() -> Iterator[Mapping[str, str]]:
    """The environment in which `docker` and `docker compose` speak to it.

    Skips the test, with the reason, where there is none.

    One that was started ends with the `with` block or with this process, since it ends when it can read no more.
    """
    command = [str(ROOT / "scripts/container-engine.sh"), "sh", "-c", _SAY_HOW]
    variables = {"DOCKER_HOST": "", "DOCKER_CONFIG": "", **os.environ}
    with subprocess.Popen(
        command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        said = [running.stdout.readline().strip() for _ in ("DOCKER_HOST", "DOCKER_CONFIG", "PATH")]
        if not said[-1]:
            _, reason = running.communicate()
            if running.returncode == _UNAVAILABLE:
                pytest.skip(reason.strip())
            raise AssertionError(f"scripts/container-engine.sh ended with {running.returncode}: {reason}")
        chosen = zip(("DOCKER_HOST", "DOCKER_CONFIG", "PATH"), said, strict=True)
        try:
            yield {**os.environ, **{name: value for name, value in chosen if value}}
        finally:
            running.communicate()
