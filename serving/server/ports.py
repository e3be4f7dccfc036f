"""Selection of free ports on the loopback interface."""

import errno
import os
import socket
from collections.abc import Collection
from pathlib import Path
from random import SystemRandom

from rankline.workflows.core.errors import ServerError

LOOPBACK = "127.0.0.1"
GRPC_PORT = 8001
"""Default port of Triton and `rankline serve`; metrics use the next one."""
_OF_CONNECTIONS = Path("/proc/sys/net/ipv4/ip_local_port_range")  # range of ports assigned by the system
_FIRST = 10_000  # lower ports belong to well-known services
_DRAWS = 100


def choose_ports(**wanted: int) -> dict[str, int]:
    """Choose a distinct loopback port for each name: the requested port, or any free port if 0 is requested."""
    chosen = dict(wanted)
    for name, number in wanted.items():
        chosen[name] = _choose(name, number, but=chosen.values())
    return chosen


def free_port() -> int:
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
        f"{name} {wanted} on {LOOPBACK} {problem}. {'Stop the process that uses it, or try' if is_used else 'Try'} "
        "another port, or pass 0 for any free port."
        + " By default, it is chosen next to that of gRPC."
        * (name == "metrics_port")
    )


def _bound(number: int) -> int:
    with socket.socket() as probe:
        # A process started by another thread may inherit this socket, which must not block the port for its server.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((LOOPBACK, number))
        return int(probe.getsockname()[1])


def _drawn() -> list[int]:
    """Return random ports outside the system's ephemeral range, followed by zeros, which stand for any free port."""
    first = int(_OF_CONNECTIONS.read_text(encoding="ascii").split()[0]) if _OF_CONNECTIONS.exists() else 0
    numbers = range(_FIRST, first)
    return [*SystemRandom().sample(numbers, min(_DRAWS, len(numbers))), *[0] * _DRAWS]
