"""Communication between workers that train together. Importing this module does not import a framework.

A run has one worker, or several started by Horovod. Each has the whole model and a share of the rows; they exchange
gradients in each step. Worker 0 logs and writes.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy.typing as npt

from rankline.training.distributed.config import WorkersConfig
from rankline.workflows.core.errors import ConfigError

Array = npt.NDArray[Any]


class Communicator(Protocol):
    """One worker's connection to all workers.

    All workers must call the methods in the same order. Each method raises `WorkerLostError` if another worker died,
    left or does not respond in time.
    """

    @property
    def rank(self) -> int:
        """Rank of this worker. Worker 0 logs and writes files."""

    @property
    def size(self) -> int: ...

    def all_reduce(self, values: Sequence[Any], shapes: Sequence[Sequence[int]], max_rows: int) -> list[Any]:
        """Sum each tensor over all workers, inside a TensorFlow graph.

        Args:
            values: float32 tensors or `tf.IndexedSlices`, whose sums are slices again. Of slices only the rows used by
                a worker are sent, each once.
            shapes: shapes of the values; for slices, of the whole table.
            max_rows: slices of a table with at most this many rows are sent as a whole table.
        """

    def broadcast(self, variables: Sequence[Any]) -> None:
        """Set TensorFlow variables to the values of worker 0."""

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Return element-wise sums over all workers, in float64."""

    def all_gather(self, array: Array) -> Array:
        """Return the arrays of all workers, concatenated in rank order. Their first dimensions may differ."""

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return the values of all workers in rank order. Values must be JSON-serializable."""

    def translate_errors(self) -> AbstractContextManager[None]:
        """Translate framework errors raised by communication inside the `with` block.

        Raises:
            WorkerLostError: another worker died, left or does not respond.
            KeyboardInterrupt: this worker was stopped in the meantime.
        """

    def propagating_errors(self) -> AbstractContextManager[None]:
        """Stop all workers if any of them fails in the block. Worker 0 raises the first error. Blocks can be nested.

        Raises:
            WorkersError: another worker failed; the message has its number and its error.
            WorkerLostError: another worker died or does not respond.
        """


class SingleProcess:
    """A world with a single worker. Does not use Horovod."""

    rank = 0
    size = 1

    def all_reduce(self, values: Sequence[Any], shapes: Sequence[Sequence[int]], max_rows: int) -> list[Any]:  # noqa: ARG002
        return list(values)

    def broadcast(self, variables: Sequence[Any]) -> None:
        pass

    def sum(self, numbers: Sequence[float]) -> list[float]:
        return list(numbers)

    def all_gather(self, array: Array) -> Array:
        return array

    def all_gather_object(self, value: Any) -> list[Any]:
        return [value]

    def translate_errors(self) -> AbstractContextManager[None]:
        return nullcontext()

    def propagating_errors(self) -> AbstractContextManager[None]:
        return nullcontext()


SOLO = SingleProcess()


# Set for each worker by horovodrun with Gloo and by Open MPI.
_SIZE_VARIABLES = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE")
# Set by unsupported launchers: MPICH and Intel MPI, MVAPICH.
_FOREIGN_SIZE_VARIABLES = ("PMI_SIZE", "MV2_COMM_WORLD_SIZE")


def num_started(environment: Mapping[str, str]) -> int:
    names = (*_SIZE_VARIABLES, *_FOREIGN_SIZE_VARIABLES)
    return next((int(environment[name]) for name in names if name in environment), 1)


def join_world(config: WorkersConfig | None = None) -> Communicator:
    """Join the other workers if horovodrun or mpirun started this process.

    This imports TensorFlow and Horovod, and waits for the others.

    Raises:
        ConfigError: Horovod is not installed or was built for another TensorFlow, or the launcher is not supported.
        WorkerLostError: another worker did not arrive in time.
    """
    if not any(name in os.environ for name in _SIZE_VARIABLES):
        if (number := num_started(os.environ)) > 1:
            raise ConfigError(
                f"this is one of {number} processes started by a launcher other than Open MPI or horovodrun, and "
                "each would train separately and write to the same directory. Start one process with --workers, or use "
                "Open MPI's mpirun."
            )
        return SOLO
    from rankline.training.distributed.horovod import HorovodWorld

    config = config or WorkersConfig()
    return HorovodWorld(compression=config.compression, timeout_s=config.timeout_s)
