"""Damaged files are read or refused, and hostile artifacts do nothing.

`python -m tests.harness.hostile.fuzzing` and `python -m tests.harness.hostile.files` try many more.
"""

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.harness.containers.deployment import ROOT
from tests.harness.hostile.files import families
from tests.harness.hostile.fuzzing import Target, fuzz, targets

KINDS = ("manifest", "spec", "recipe", "plan", "config")
FEW = 60


@pytest.fixture(scope="module")
def found() -> Iterator[dict[str, Target]]:
    with targets() as made:
        yield made


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_read_or_refused(kind: str, found: dict[str, Target]) -> None:
    ours = {name: target for name, target in found.items() if name.partition(" ")[0] == kind}
    rng = random.Random(kind)
    counts: Counter[str] = Counter()
    for target in ours.values():
        counts += fuzz(target, max(FEW // len(ours), 5), rng)
    assert set(counts) <= {"read", "refused"}  # each refusal says why
    assert counts["refused"] > counts.total() / 2  # what is damaged is mostly seen


@pytest.mark.slow
@pytest.mark.parametrize("name", families())
def test_hostile_artifacts_are_refused_and_do_nothing(name: str) -> None:
    command = [sys.executable, "-m", "tests.harness.hostile.files", name, "--every", "24"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
