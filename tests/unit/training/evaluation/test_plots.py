from pathlib import Path

import numpy as np
import pytest

from rankline.training.distributed.communicator import Array
from rankline.training.evaluation.plots import write_pictures
from rankline.workflows.schema.targets import BINARY, MULTICLASS, REGRESSION, Head

RNG = np.random.default_rng(3)
PNG = b"\x89PNG"
CASES = {
    "binary": ([Head("clicked")], RNG.integers(0, 2, 500), RNG.random(500)),
    "one class": ([Head("clicked")], np.ones(20), RNG.random(20)),
    "one score": ([Head("clicked")], np.array([0, 1, 1]), np.full(3, 0.5)),
    "one row": ([Head("price", REGRESSION)], np.ones(1), np.zeros(1)),
    "regression": ([Head("price", REGRESSION)], RNG.normal(size=500), RNG.normal(size=500)),
    "classes": (
        [Head("kind", MULTICLASS, classes=tuple("ab$"))],
        RNG.integers(0, 3, 500),
        RNG.dirichlet(np.ones(3), 500),
    ),
    "several heads": (
        [Head("clicked", BINARY), Head("price", REGRESSION)],
        np.stack([RNG.integers(0, 2, 90), np.where(RNG.random(90) < 0.5, np.nan, 2.0)], axis=1),
        RNG.random((90, 2)),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_task_has_pictures(case: str, tmp_path: Path) -> None:
    heads, labels, scores = CASES[case]
    _draw(heads, labels, scores, tmp_path / "quality.png")
    assert (tmp_path / "quality.png").read_bytes().startswith(PNG)


def _draw(heads: list[Head], labels: Array, scores: Array, path: Path) -> None:
    write_pictures(heads, labels.astype(np.float32), scores.astype(np.float32), path)
