"""Start a program that ends when its parent ends: `python launch.py PARENT_PID PROGRAM ARGUMENT…`.

A file of its own, run before the program in the new process, because `preexec_fn` of `subprocess` would run Python
between fork and exec in a parent that has threads (gRPC's, TensorFlow's), where it may hang.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Ask Linux for SIGTERM on the parent's death, then become the program."""
    parent_pid, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent_pid):  # it died before prctl
        sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
