"""How requests get to the server and answers back, as the load generator sees it.

Messages are bytes that are made before the run, and answers stay bytes, so that sending costs little.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from workflows.errors import ConfigError

OK = "OK"
STATUS_NAMES = (
    OK, "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
"""Names of gRPC's status codes, in the order of their numbers."""

INFER = "/inference.GRPCInferenceService/ModelInfer"
TRANSPORTS = ("http2", "grpcio")
HTTP1 = "http1"
"""For servers that are not Triton: messages are bodies of POSTs, and a url ends with their path."""

CONNECT_TIMEOUT_S = 10


class Answer(NamedTuple):
    """What came back.

    Attributes:
        key: what `send` was given.
        at_ns: when it was read, by the clock of the transport.
        status: gRPC's name of it.
        body: the message of an answer that is OK, else what the server says.
    """

    key: int
    at_ns: int
    status: str
    body: bytes


class Transport(Protocol):
    """One connection for unary calls, used by one thread."""

    @property
    def failure(self) -> str:
        """Why the connection has ended; empty while it is up."""

    @property
    def capacity(self) -> int:
        """How many requests the server lets be in flight."""

    def send(self, key: int, message: bytes) -> None:
        """Begin a call. It goes out at the latest with the next `poll`.

        Args:
            key: comes back with the answer; unique among the calls in flight.
            message: the serialised request.
        """

    def flush(self) -> None:
        """Hand what was sent to the operating system, as far as it takes it now."""

    def poll(self, timeout_s: float) -> Sequence[Answer]:
        """Wait until something comes in, at most `timeout_s`."""

    def cancel(self, key: int) -> None:
        """Give up a call; no answer will come for it."""

    def close(self) -> None:
        """End the connection."""


def connect(name: str, url: str, path: str = INFER) -> Transport:
    """Open a connection.

    Args:
        name: one of `TRANSPORTS`. `http2` costs the client least. `grpcio` is what a program in Python sees.
            Or `HTTP1`.
        url: HOST:PORT, for `HTTP1` HOST:PORT/PATH.
        path: of the method of gRPC.

    Raises:
        ConfigError: no such transport.
        ServerError: nobody answers.
    """
    if name == "http2":
        from serving.benchmark.http2 import Http2Connection

        return Http2Connection(url, path)
    if name == "grpcio":
        from serving.benchmark.grpcio import GrpcioConnection

        return GrpcioConnection(url, path)
    if name == HTTP1:
        from serving.benchmark.http1 import Http1Connection

        return Http1Connection(url)
    raise ConfigError(f"no transport {name!r}. Available: {', '.join(TRANSPORTS)}.")
