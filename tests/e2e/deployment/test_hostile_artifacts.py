"""A part of the hostile corpus; `python -m tests.harness.hostile.files` opens all of it."""

import subprocess
import sys

import pytest

from tests.harness.containers.deployment import ROOT
from tests.harness.hostile.files import families


@pytest.mark.parametrize("name", families())
def test_hostile_artifacts_are_refused_and_do_nothing(name: str) -> None:
    command = [sys.executable, "-m", "tests.harness.hostile.files", name, "--every", "24"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
