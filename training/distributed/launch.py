"""Detection of processes that were started as workers. Importing this module does not import a framework."""

import os
from collections.abc import Mapping

from rankline.training.distributed.communicator import SOLO, World
from rankline.training.distributed.config import WorkersConfig
from rankline.workflows.core.errors import ConfigError

# Set for each worker by horovodrun with Gloo and by Open MPI.
_SIZE_VARIABLES = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE")
# Set by unsupported launchers: MPICH and Intel MPI, MVAPICH.
_FOREIGN_SIZE_VARIABLES = ("PMI_SIZE", "MV2_COMM_WORLD_SIZE")


def num_started(environment: Mapping[str, str]) -> int:
    """Return the number of processes that a launcher started together with this one; 1 without a launcher."""
    names = (*_SIZE_VARIABLES, *_FOREIGN_SIZE_VARIABLES)
    return next((int(environment[name]) for name in names if name in environment), 1)


def join_world(config: WorkersConfig | None = None) -> World:
    """Join the other workers, if horovodrun or mpirun started this process as one of several.

    This imports TensorFlow and Horovod, and waits for the others.

    Args:
        config: how workers communicate, and how long they wait for each other; None for the defaults.

    Returns:
        `SOLO` for a process that was started alone.

    Raises:
        ConfigError: Horovod is not installed or was built for another TensorFlow, or the launcher is not supported.
        WorkerLostError: another worker did not arrive in time.
    """
    if not any(name in os.environ for name in _SIZE_VARIABLES):
        if (number := num_started(os.environ)) > 1:
            raise ConfigError(
                f"this is one of {number} processes of a launcher that is neither Open MPI's nor horovodrun, and each "
                "would train alone in the same place. Start it once with --workers, or with Open MPI's mpirun."
            )
        return SOLO
    from rankline.training.distributed.horovod import HorovodWorld

    config = config or WorkersConfig()
    return HorovodWorld(compression=config.compression, timeout_s=config.timeout_s)
