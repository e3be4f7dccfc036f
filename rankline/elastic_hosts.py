"""Where the workers of an elastic run may be: hosts, and how many workers each takes; that may change while it runs."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from workflows.errors import ConfigError

LOCAL = "localhost"
_SCRIPT_TIMEOUT_S = 10.0


class Hosts(Protocol):
    """Says where workers may be at the moment."""

    def find(self) -> Mapping[str, int]:
        """Host → how many workers it takes.

        Raises:
            ConfigError: nobody can say.
        """


class FixedHosts:
    """The same hosts as long as the run lasts.

    Args:
        places: host → how many workers it takes.
    """

    def __init__(self, places: Mapping[str, int]) -> None:
        self._places = dict(places)

    @classmethod
    def parse(cls, text: str) -> "FixedHosts":
        """Read "a:2,b:1"; a host without a number takes one worker.

        Raises:
            ConfigError: a host has no name, is named twice, or its number is not at least 1.
        """
        return cls(_parsed(text.split(","), text))

    def find(self) -> Mapping[str, int]:
        """See `Hosts`."""
        return self._places


class HostScript:
    """Hosts as a program prints them, one `HOST:NUMBER` a line: the script that `horovodrun` would take.

    Args:
        path: the program.
    """

    def __init__(self, path: Path) -> None:
        if not (path.is_file() and os.access(path, os.X_OK)):
            raise ConfigError(f"{path} is not a program. Give one that prints a line HOST:NUMBER for each host.")
        self._path = path

    def find(self) -> Mapping[str, int]:
        """See `Hosts`."""
        command = [str(self._path.absolute())]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SCRIPT_TIMEOUT_S, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise ConfigError(f"{self._path} does not say where workers may be: {error}") from None
        return _parsed(done.stdout.split(), str(self._path))


def _parsed(entries: list[str], origin: str) -> dict[str, int]:
    places: dict[str, int] = {}
    for entry in entries:
        host, _, number = entry.strip().partition(":")
        if not host or host in places or not (number or "1").isdecimal() or int(number or "1") < 1:
            raise ConfigError(f"{entry!r} in {origin!r} is not a host: expected NAME:NUMBER, each name once.")
        places[host] = int(number or "1")
    return places
