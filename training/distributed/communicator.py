"""Workers that train together, as the rest of training sees them. Importing this file imports no framework.

A run has one worker, or several that Horovod started. Each has the whole model and a share of the rows; they exchange
gradients in each step. Worker 0 logs and writes.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy.typing as npt

Array = npt.NDArray[Any]


class World(Protocol):
    """What one of the workers knows of the others, and how it exchanges with them.

    All workers call the methods in the same order. Each method raises `WorkerLostError` where another worker has died,
    does not answer in time, or has left.
    """

    @property
    def rank(self) -> int:
        """Number of this worker; 0 logs and writes."""

    @property
    def size(self) -> int:
        """How many there are."""

    def all_reduce(self, values: Sequence[Any], shapes: Sequence[Sequence[int]], most_rows: int) -> list[Any]:
        """Sums over all workers, in a graph.

        Args:
            values: float32 tensors, or `tf.IndexedSlices`, which stay so. Of slices only the rows that a worker touched
                are sent, each once.
            shapes: of the values; of the whole table for slices.
            most_rows: slices of a table with no more rows than that are sent as a whole.
        """

    def broadcast(self, variables: Sequence[Any]) -> None:
        """Give TensorFlow variables the values that worker 0 has."""

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Element-wise sums over all workers, in float64."""

    def all_gather(self, array: Array) -> Array:
        """The arrays of all workers one behind the other, by rank; they may differ in their first dimension."""

    def all_gather_object(self, value: Any) -> list[Any]:
        """What each worker passed, by rank; plain values that JSON can hold."""

    def explained(self) -> AbstractContextManager[None]:
        """In the block, in which workers exchange, an error of a framework is what it comes from.

        Raises:
            WorkerLostError: another worker died, left or does not answer.
            KeyboardInterrupt: this one was stopped meanwhile.
        """

    def propagating_errors(self) -> AbstractContextManager[None]:
        """In the block an error of one worker ends all of them, and worker 0 raises the first one.

        It may stand within another such block.

        Raises:
            WorkersError: another worker failed; the message has its number and its error.
            WorkerLostError: another worker died, or does not answer.
        """


class Solo:
    """The world of a run with one worker; does without Horovod."""

    rank = 0
    size = 1

    def all_reduce(
        self,
        values: Sequence[Any],
        shapes: Sequence[Sequence[int]],  # noqa: ARG002  (a world's signature)
        most_rows: int,  # noqa: ARG002
    ) -> list[Any]:
        return list(values)

    def broadcast(self, variables: Sequence[Any]) -> None:
        pass

    def sum(self, numbers: Sequence[float]) -> list[float]:
        return list(numbers)

    def all_gather(self, array: Array) -> Array:
        return array

    def all_gather_object(self, value: Any) -> list[Any]:
        return [value]

    def explained(self) -> AbstractContextManager[None]:
        return nullcontext()

    def propagating_errors(self) -> AbstractContextManager[None]:
        return nullcontext()


SOLO = Solo()
