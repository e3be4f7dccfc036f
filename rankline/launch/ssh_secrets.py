"""Runs a command with this environment's secrets on its standard input: NAME=value lines, and an empty one."""

import os
import sys
from typing import Any

SECRETS = (
    *("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"),
    *("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_CONNECTION_STRING"),
)
"""Variables that MLflow and its stores sign in with."""

KEY_VARIABLE = "RANKLINE_HOROVOD_KEY"
"""Holds the key of the processes by which horovodrun looks for interfaces of hosts; see `horovodrun_patches`."""

GIVEN = (*SECRETS, KEY_VARIABLE)


def with_key(settings: Any) -> Any:
    """Add this process's key to horovodrun's settings, and remove it from the environment."""
    settings.key = bytes.fromhex(os.environ.pop(KEY_VARIABLE))
    return settings


def main() -> None:
    reading, writing = os.pipe()
    # A pipe takes 64 KiB before anybody reads, more than an environment has in such variables.
    with os.fdopen(writing, "w") as pipe:
        pipe.writelines(f"{name}={os.environ[name]}\n" for name in GIVEN if "\n" not in os.environ.get(name, "\n"))
        pipe.write("\n")
    os.dup2(reading, sys.stdin.fileno())
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
