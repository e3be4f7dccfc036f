"""horovodrun, but TensorFlow is not imported to learn whether Horovod has Gloo or MPI: python quick_horovodrun.py …

Horovod 0.28.1 does so at each start, in a process of its own, for three seconds of processor time.
"""

import sys
from pathlib import Path


def main() -> None:
    """Do what horovodrun does with the same arguments."""
    from horovod.runner import launch

    from rankline.horovod_check import built_with

    launch.gloo_built = lambda verbose=False: "gloo" in built_with()  # noqa: ARG005
    launch.mpi_built = lambda verbose=False: "mpi" in built_with()  # noqa: ARG005
    sys.exit(launch.run_commandline())


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).parent))  # put there for this file; Rankline's modules are in `rankline`
    main()
