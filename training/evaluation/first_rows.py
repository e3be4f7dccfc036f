"""The first rows of a split as a model scored them: to be drawn, and to compare two models row by row."""

import numpy as np

from rankline.training.distributed.communicator import SOLO, Array, World

MOST_ROWS = 1_000_000
"""8 MB of a binary head; the standard error of an AUC over as many is below 0.001."""


class FirstRows:
    """Labels and scores of the first rows, at most `MOST_ROWS`, in the order of the split."""

    def __init__(self) -> None:
        self._parts: list[tuple[Array, Array]] = []
        self._room = MOST_ROWS

    def add(self, labels: Array, scores: Array) -> None:
        """Take in a batch, or as much of it as there is room for.

        Args:
            labels: shape (N,), or (N, heads).
            scores: shape (N,), or (N, values of all heads).
        """
        if self._room:
            self._parts.append((labels[: self._room].copy(), scores[: self._room].copy()))
            self._room -= len(self._parts[-1][0])

    def gathered(self, world: World = SOLO) -> tuple[Array, Array]:
        """Labels and scores of all workers, whose shares of a split follow one another; the same for all."""
        labels, scores = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        return world.all_gather(labels)[:MOST_ROWS], world.all_gather(scores)[:MOST_ROWS]
