"""Workers that train together. Only this file imports Horovod.

A run has one worker, or several that Horovod started. Each has the whole model but for tables that are split, and a
share of the rows; they exchange gradients in each step. Worker 0 logs and writes.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from training.fit import Array


class World(Protocol):
    """What one of the workers knows of the others, and how it exchanges with them.

    All workers call the methods in the same order.

    Attributes:
        rank: number of this worker; 0 logs and writes.
        size: how many there are.
    """

    rank: int
    size: int

    def broadcast(self, variables: Sequence[Any]) -> None:
        """Give TensorFlow variables the values that worker 0 has."""

    def mean(self, gradients: Sequence[Any], num_rows: Any) -> list[Any]:
        """Gradients of the mean loss over the rows of all workers, in a graph.

        Args:
            gradients: of the mean loss over this worker's rows; `tf.IndexedSlices` stay so, and only the rows that
                a worker touched are sent.
            num_rows: rows of this worker's batch, an integer scalar; they may differ between workers.
        """

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Element-wise sums over all workers, in float64."""

    def gathered(self, array: Array) -> Array:
        """The arrays of all workers one behind the other, by rank; they may differ in their first dimension."""

    def all_of(self, value: Any) -> list[Any]:
        """What each worker passed, by rank; plain values that JSON can hold."""


class Solo:
    """The world of a run with one worker; does without Horovod."""

    rank = 0
    size = 1

    def broadcast(self, variables: Sequence[Any]) -> None:
        """See `World`."""

    def mean(self, gradients: Sequence[Any], num_rows: Any) -> list[Any]:  # noqa: ARG002  (a world's signature)
        """See `World`."""
        return list(gradients)

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """See `World`."""
        return list(numbers)

    def gathered(self, array: Array) -> Array:
        """See `World`."""
        return array

    def all_of(self, value: Any) -> list[Any]:
        """See `World`."""
        return [value]


SOLO = Solo()
