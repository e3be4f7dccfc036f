"""Files of every kind with something wrong in them: read or refused, and nothing else."""

import random
from collections import Counter
from collections.abc import Iterator

import pytest

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
