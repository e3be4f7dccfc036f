"""A part of the hostile corpus; `python -m tests.support.hostile` opens all of it."""

import subprocess
import sys

import pytest

from tests.support.deployment import ROOT
from tests.support.hostile import families


@pytest.mark.parametrize("name", families())
def test_hostile_artifacts_are_refused_and_do_nothing(name: str) -> None:
    command = [sys.executable, "-m", "tests.support.hostile", name, "--every", "24"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
