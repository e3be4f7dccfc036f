"""Run a command, passing it secrets from the environment on standard input: NAME=value lines and then an empty line."""

import os
import sys
from typing import Any

SECRETS = (
    *("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"),
    *("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_CONNECTION_STRING"),
)
"""Credentials of MLflow and its artifact stores."""

KEY_VARIABLE = "RANKLINE_HOROVOD_KEY"
"""Variable with the key for horovodrun's search for network interfaces; see `horovodrun_patches`."""

GIVEN = (*SECRETS, KEY_VARIABLE)


def with_key(settings: Any) -> Any:
    """Move the key from this process's environment into horovodrun's settings."""
    settings.key = bytes.fromhex(os.environ.pop(KEY_VARIABLE))
    return settings


def main() -> None:
    reading, writing = os.pipe()
    # A pipe buffers 64 KiB, which is more than these variables hold.
    with os.fdopen(writing, "w") as pipe:
        pipe.writelines(f"{name}={os.environ[name]}\n" for name in GIVEN if "\n" not in os.environ.get(name, "\n"))
        pipe.write("\n")
    os.dup2(reading, sys.stdin.fileno())
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
