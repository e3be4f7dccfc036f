"""The first rows of a split and their scores, for plots and for comparing two models row by row."""

import numpy as np

from rankline.training.distributed.communicator import SOLO, Array, World

MOST_ROWS = 1_000_000
"""Takes 8 MB for a binary head; the standard error of an AUC over this many rows is below 0.001."""


class FirstRows:
    """Labels and scores of the first rows, at most `MOST_ROWS`, in the order of the split."""

    def __init__(self) -> None:
        self._parts: list[tuple[Array, Array]] = []
        self._room = MOST_ROWS

    def add(self, labels: Array, scores: Array) -> None:
        """Add a batch, up to the maximum number of rows.

        Args:
            labels: shape (N,), or (N, heads).
            scores: shape (N,), or (N, values of all heads).
        """
        if self._room:
            self._parts.append((labels[: self._room].copy(), scores[: self._room].copy()))
            self._room -= len(self._parts[-1][0])

    def gathered(self, world: World = SOLO) -> tuple[Array, Array]:
        """Return labels and scores of all workers in the order of the split. All workers get the same rows."""
        labels, scores = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        return world.all_gather(labels)[:MOST_ROWS], world.all_gather(scores)[:MOST_ROWS]
