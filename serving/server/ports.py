"""Free ports on loopback."""

import errno
import os
import socket
from collections.abc import Collection
from pathlib import Path
from random import SystemRandom

from rankline.workflows.core.errors import ServerError

LOOPBACK = "127.0.0.1"
GRPC_PORT = 8001
"""Triton's own, and of `rankline serve`; metrics have the one after it."""
_OF_CONNECTIONS = Path("/proc/sys/net/ipv4/ip_local_port_range")  # what the system gives where nobody asks for a port
_FIRST = 10_000  # services are known by those below
_DRAWS = 100


def choose_ports(**wanted: int) -> dict[str, int]:
    """Choose ports on loopback by name: the given ones if they are free, or free ones for 0, all different.

    Raises:
        ServerError: one that is asked for cannot be opened.
    """
    chosen = dict(wanted)
    for name, number in wanted.items():
        chosen[name] = _choose(name, number, but=chosen.values())
    return chosen


def free_port() -> int:
    """A port on loopback that nobody listens on."""
    return choose_ports(port=0)["port"]


def _choose(name: str, wanted: int, *, but: Collection[int]) -> int:
    code = errno.EADDRINUSE
    for number in [wanted] if wanted else _drawn():
        try:
            found = _bound(number)
        except OSError as error:
            code = error.errno or 0
            if code != errno.EADDRINUSE:
                break
        else:
            if wanted or found not in but:
                return found
    is_used = code == errno.EADDRINUSE
    problem = "is already in use" if is_used else f"cannot be opened ({os.strerror(code)})"
    raise ServerError(
        f"{name} {wanted} on {LOOPBACK} {problem}. "
        f"{'Stop what uses it, or try' if is_used else 'Try'} another, or 0 for a free one."
    )


def _bound(number: int) -> int:
    with socket.socket() as probe:
        # While another thread starts a process, that has a copy, which must not keep the port from its server.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((LOOPBACK, number))
        return int(probe.getsockname()[1])


def _drawn() -> list[int]:
    """Candidates outside the range of outgoing connections, which could take one meanwhile; then any."""
    first = int(_OF_CONNECTIONS.read_text(encoding="ascii").split()[0]) if _OF_CONNECTIONS.exists() else 0
    numbers = range(_FIRST, first)
    return [*SystemRandom().sample(numbers, min(_DRAWS, len(numbers))), *[0] * _DRAWS]
