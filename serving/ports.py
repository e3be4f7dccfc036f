"""Ports that nobody has."""

import errno
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom

from workflows.errors import ServerError

LOOPBACK = "127.0.0.1"
GRPC_PORT = 8001
"""Triton's own, and of `rankline serve`; metrics have the one after it."""
_OF_CONNECTIONS = Path("/proc/sys/net/ipv4/ip_local_port_range")  # what the system gives where nobody asks for a port
_FIRST = 10_000  # services are known by those below
_DRAWS = 100


@dataclass(frozen=True, kw_only=True)
class Port:
    """A port that is wanted.

    Attributes:
        name: what errors call it.
        host: IP address to listen on.
        number: 0 takes a free one.
    """

    name: str = "port"
    host: str = LOOPBACK
    number: int = 0


def choose_ports(*wanted: Port) -> tuple[int, ...]:
    """Those asked for if they are free, else any that are, none of them twice.

    Raises:
        ServerError: one that is asked for cannot be opened.
    """
    chosen = [port.number for port in wanted]
    for place, port in enumerate(wanted):
        chosen[place] = _choose(port, but=chosen)
    return tuple(chosen)


def _choose(port: Port, *, but: list[int]) -> int:
    code = errno.EADDRINUSE
    for number in [port.number] if port.number else _drawn():
        try:
            found = _bound(port.host, number)
        except OSError as error:
            code = error.errno or 0
            if code != errno.EADDRINUSE:
                break
        else:
            if port.number or found not in but:
                return found
    is_used = code == errno.EADDRINUSE
    problem = "is already in use" if is_used else f"cannot be opened ({os.strerror(code)})"
    raise ServerError(
        f"{port.name} {port.number} on {port.host} {problem}. "
        f"{'Stop what uses it, or try' if is_used else 'Try'} another, or 0 for a free one."
    )


def _bound(host: str, number: int) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        # While another thread starts a process, that has a copy, which must not keep the port from its server.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, number))
        return int(probe.getsockname()[1])


def _drawn() -> list[int]:
    """Some that no connection is given before their server opens them, which takes seconds; at last 0, any."""
    first = int(_OF_CONNECTIONS.read_text(encoding="ascii").split()[0]) if _OF_CONNECTIONS.exists() else 0
    numbers = range(_FIRST, first)
    return [*SystemRandom().sample(numbers, min(_DRAWS, len(numbers))), *[0] * _DRAWS]
