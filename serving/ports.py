"""Ports that nobody has."""

import errno
import os
import socket
from contextlib import ExitStack
from dataclasses import dataclass

from workflows.errors import ConfigError, ServerError

GRPC_PORT = 8001
"""Triton's own, and of `rankline serve`; HTTP has the one before it, metrics the one after."""


@dataclass(frozen=True, kw_only=True)
class Port:
    """A port that is wanted.

    Attributes:
        name: what errors call it.
        host: IP address to listen on.
        number: 0 takes a free one.
    """

    name: str
    host: str
    number: int = 0


@dataclass(frozen=True, kw_only=True)
class Ports:
    """Where a server listens.

    Attributes:
        grpc_port, http_port, metrics_port: 0 takes a free one.

    Raises:
        ConfigError: one is no port.
    """

    grpc_port: int = 0
    http_port: int = 0
    metrics_port: int = 0

    def __post_init__(self) -> None:
        for name, number in self.ports.items():
            if not 0 <= number <= 65535:
                raise ConfigError(f"{name} is {number}, expected 0 (any free port) to 65535.")

    @property
    def ports(self) -> dict[str, int]:
        """Those asked for, by name."""
        return {name: getattr(self, name) for name in ("grpc_port", "http_port", "metrics_port")}


def choose_ports(*wanted: Port) -> tuple[int, ...]:
    """Those asked for if they are free, else any that are; no port twice.

    Raises:
        ServerError: one that is asked for cannot be opened.
    """
    with ExitStack() as stack:  # kept open until all are chosen
        return tuple(_bind(port, stack).getsockname()[1] for port in wanted)


def _bind(port: Port, stack: ExitStack) -> socket.socket:
    probe = stack.enter_context(socket.socket(socket.AF_INET6 if ":" in port.host else socket.AF_INET))
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind((port.host, port.number))
    except OSError as error:
        is_used = error.errno == errno.EADDRINUSE
        problem = "is already in use" if is_used else f"cannot be opened ({os.strerror(error.errno or 0)})"
        raise ServerError(
            f"{port.name} {port.number} on {port.host} {problem}. "
            f"{'Stop what uses it, or try' if is_used else 'Try'} another, or 0 for a free one."
        ) from None
    return probe
