"""Interface of the load generator's connections to a server.

Messages are serialized before the run, and responses stay serialized, so that sending costs little.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

OK = "OK"
STATUS_NAMES = (
    OK, "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
"""Names of gRPC's status codes, by number."""

INFER = "/inference.GRPCInferenceService/ModelInfer"
TRANSPORTS = ("http2", "grpcio")

CONNECT_TIMEOUT_S = 10


class Answer(NamedTuple):
    """A response. `body` is the serialized message if the gRPC status is OK, and the error message otherwise."""

    key: int
    at_ns: int
    status: str
    body: bytes


class Transport(Protocol):
    """One connection for unary calls, used by one thread."""

    @property
    def failure(self) -> str:
        """The reason why the connection has failed, or an empty string while it is open."""

    @property
    def capacity(self) -> int:
        """Number of requests that the server accepts in flight."""

    def send(self, key: int, message: bytes) -> None:
        """Start a call, which is sent by the next `poll` at the latest. `key` must be unique among calls in flight."""

    def flush(self) -> None:
        """Send as much buffered data as the operating system accepts without blocking."""

    def poll(self, timeout_s: float) -> Sequence[Answer]:
        """Wait up to `timeout_s` for data, and return the responses that have arrived."""

    def cancel(self, key: int) -> None:
        """Cancel a call, so that its response is never returned."""

    def close(self) -> None:
        pass


Connect: TypeAlias = Callable[[], Transport]
"""Opens a connection in the calling process; raises ServerError if no server responds."""
