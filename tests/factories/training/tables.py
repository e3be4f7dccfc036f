"""Rows as the learners of `rankline.training.models.auto` get them."""

from typing import Any

import numpy as np

from rankline.training.models.auto.rows import Rows
from rankline.workflows.schema.targets import BINARY, MULTICLASS, REGRESSION, Head

TASKS = {BINARY: Head("y"), REGRESSION: Head("y", REGRESSION), MULTICLASS: Head("y", MULTICLASS, ("a", "b", "c"))}
NUM_IDS = {0: 7, 1: 40}
"""The columns of ids. Ids 0 to 2 are padding, null and unseen; of the others, the last one has no rows."""


def table_rows(task: str, num_rows: int = 300, seed: int = 0, **options: Any) -> Rows:
    """Return rows of two ids and two numbers. The label depends on all of them."""
    rng = np.random.default_rng(seed)
    ids = np.stack([rng.integers(3, count - 1, num_rows) for count in NUM_IDS.values()], axis=1)
    numbers = rng.normal(size=(num_rows, 2)) * [1.0, 50.0] + [0.0, 200.0]
    effects = np.random.default_rng(7).normal(size=40)
    signal = effects[ids[:, 0]] + effects[ids[:, 1]] + numbers[:, 0] + (numbers[:, 1] - 200) / 50
    noisy = signal + rng.normal(0, 0.3, num_rows)
    labels = {BINARY: noisy > 0, REGRESSION: 100 + 10 * noisy, MULTICLASS: np.digitize(noisy, [-1, 1])}[task]
    return Rows(
        matrix=np.concatenate([ids, numbers], axis=1).astype(np.float32),
        labels=np.asarray(labels, np.float64),
        head=TASKS[task],
        num_ids=NUM_IDS,
        **options,
    )
