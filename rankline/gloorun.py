"""horovodrun, but for the environment's secrets, which it would write into the command lines of ssh and of workers.

Everybody on a machine reads command lines. Here workers of this machine have secrets by inheriting them, and those of
other machines from the standard input of ssh (`rankline/with_secrets.py`). For Gloo alone: mpirun sends names only.
"""

import re
import shlex
import sys
from pathlib import Path

from horovod.runner.common.util import env
from horovod.runner.launch import run_commandline
from horovod.runner.util import remote

from rankline.with_secrets import SECRETS

# What a remote shell does first: NAME=value lines, up to an empty one.
_TAKE = 'while IFS= read -r line && [ -n "$line" ]; do export "$line"; done;'


def main() -> None:
    """Run horovodrun with the arguments of this process."""
    env.IGNORE_REGEXES |= {f"{re.escape(name)}$" for name in SECRETS}
    ssh_command = remote.get_ssh_command
    give = shlex.join([sys.executable, str(Path(__file__).with_name("with_secrets.py"))])

    def ssh_command_with_secrets(local_command: str, *args: object, **options: object) -> str:
        return f"{give} {ssh_command(f'{shlex.quote(_TAKE)} {local_command}', *args, **options)}"

    remote.get_ssh_command = ssh_command_with_secrets
    run_commandline()


if __name__ == "__main__":
    main()
