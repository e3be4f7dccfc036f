"""horovodrun 0.28.1 without two of its habits: python patched_horovodrun.py --gloo …, with horovodrun's arguments.

At each start it imports TensorFlow in a process of its own, for three seconds, to learn whether Horovod has Gloo or
MPI.

With Gloo it writes the environment's secrets into the command lines of ssh and of workers, which everybody on a machine
can read. Here workers of this machine have secrets by inheriting them, and those of other machines from the standard
input of ssh (`rankline/with_secrets.py`). mpirun sends names only.
"""

import re
import shlex
import sys
from pathlib import Path

from horovod.runner import launch
from horovod.runner.common.util import env
from horovod.runner.util import remote

# What a remote shell does first: NAME=value lines, up to an empty one.
_TAKE = 'while IFS= read -r line && [ -n "$line" ]; do export "$line"; done;'


def main() -> None:
    """Run horovodrun with the arguments of this process."""
    ask_the_library()
    if "--gloo" in sys.argv:
        keep_secrets_off_command_lines()
    sys.exit(launch.run_commandline())


def ask_the_library() -> None:
    """Let horovodrun learn without TensorFlow what Horovod was built with."""
    from rankline.horovod_check import built_with

    launch.gloo_built = lambda verbose=False: "gloo" in built_with()  # noqa: ARG005
    launch.mpi_built = lambda verbose=False: "mpi" in built_with()  # noqa: ARG005


def keep_secrets_off_command_lines() -> None:
    """Let horovodrun leave secrets out of the environments that it writes, and give them to ssh's standard input."""
    from rankline.with_secrets import SECRETS

    env.IGNORE_REGEXES |= {f"{re.escape(name)}$" for name in SECRETS}
    ssh_command = remote.get_ssh_command
    give = shlex.join([sys.executable, str(Path(__file__).with_name("with_secrets.py"))])

    def ssh_command_with_secrets(local_command: str, *args: object, **options: object) -> str:
        return f"{give} {ssh_command(f'{shlex.quote(_TAKE)} {local_command}', *args, **options)}"

    remote.get_ssh_command = ssh_command_with_secrets


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).parent))  # put there for this file; Rankline's modules are in `rankline`
    main()
