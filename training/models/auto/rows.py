"""The rows that learners get, and their division into folds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rankline.training.models.matrix import Matrix
from rankline.workflows.schema.targets import MULTICLASS, Head

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Fold = tuple[Ints, Ints]
"""The numbers of the rows to learn from, and of those held out."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    matrix: Matrix  # (N, F)
    labels: Floats  # (N,)
    head: Head
    num_ids: Mapping[int, int]  # column of the matrix that holds ids → number of ids
    groups: Ints | None = None  # (N,): rows of a group stay in one fold
    in_order: bool = False  # whether later rows are predicted from earlier ones only
    seed: int = 0

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, numbers: Ints) -> "Rows":
        groups = self.groups[numbers] if self.groups is not None else None
        return replace(self, matrix=self.matrix[numbers], labels=self.labels[numbers], groups=groups)

    @property
    def targets(self) -> Floats:
        """The label as a column (N, 1), or one column per class (N, classes)."""
        if self.head.task != MULTICLASS:
            return self.labels[:, None]
        return np.eye(self.head.width)[self.labels.astype(np.int64)]

    @property
    def is_constant(self) -> bool:
        return bool((self.labels == self.labels[0]).all())


def fold_numbers(rows: Rows, count: int) -> Ints:
    """Return the number of each row's fold: by time, by group, or at random with equal shares of each label."""
    if rows.in_order:
        return np.arange(len(rows)) * count // len(rows)
    rng = np.random.default_rng(rows.seed)
    if rows.groups is not None:
        distinct, of_rows = np.unique(rows.groups, return_inverse=True)
        chosen: Ints = rng.permutation(np.arange(len(distinct)) % count)[of_rows]
        return chosen
    order = rng.permutation(len(rows))
    order = order[np.argsort(rows.labels[order], kind="stable")]
    numbers = np.empty(len(rows), np.int64)
    numbers[order] = np.arange(len(rows)) % count
    return numbers


def folds(rows: Rows, count: int) -> Sequence[Fold]:
    """Return the folds that can be learned from: those whose remaining rows do not all have the same label."""
    numbers = fold_numbers(rows, count)
    is_learned = np.less if rows.in_order else np.not_equal
    made = [(np.flatnonzero(is_learned(numbers, held)), np.flatnonzero(numbers == held)) for held in range(count)]
    return [
        (learned, held) for learned, held in made if len(learned) and len(held) and not rows.take(learned).is_constant
    ]
