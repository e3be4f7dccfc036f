"""How a process becomes one of several workers. Importing this file imports no framework."""

import os

from training.config import WorkersConfig
from training.world import SOLO, World

# Set for each worker: by horovodrun with Gloo, by Open MPI.
_SIZE_VARIABLES = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE")


def join_world(config: WorkersConfig | None = None) -> World:
    """Join the other workers, if horovodrun or mpirun started this process as one of several.

    It then imports TensorFlow and Horovod and waits for the others.

    Args:
        config: how workers exchange, and how long they wait for each other; None for the defaults.

    Returns:
        `SOLO` for a process that was started alone.

    Raises:
        ConfigError: Horovod is not installed, or was built for another TensorFlow.
        WorkerLostError: another worker did not come in time.
    """
    if not any(name in os.environ for name in _SIZE_VARIABLES):
        return SOLO
    from training.horovod_world import HorovodWorld

    config = config or WorkersConfig()
    return HorovodWorld(compression=config.compression, timeout_s=config.timeout_s)
