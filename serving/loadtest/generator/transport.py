"""The load generator's connections to a server.

Messages are bytes that are made before the run, and answers stay bytes, so that sending costs little.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

OK = "OK"
STATUS_NAMES = (
    OK, "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
"""Names of gRPC's status codes, in the order of their numbers."""

INFER = "/inference.GRPCInferenceService/ModelInfer"
TRANSPORTS = ("http2", "grpcio")

CONNECT_TIMEOUT_S = 10


class Answer(NamedTuple):
    """What came back: gRPC's status by name, and the message of an answer that is OK, else what the server says."""

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
        """Number of requests that the server accepts in flight."""

    def send(self, key: int, message: bytes) -> None:
        """Begin a call, which goes out at the latest with the next `poll`; `key` is unique among those in flight."""

    def flush(self) -> None:
        """Hand the data to the operating system, as much as it takes now."""

    def poll(self, timeout_s: float) -> Sequence[Answer]:
        """Wait until something arrives, at most `timeout_s`."""

    def cancel(self, key: int) -> None:
        """Give up a call; no answer will come for it."""

    def close(self) -> None:
        pass


Connect: TypeAlias = Callable[[], Transport]
"""Opens a connection in the process that calls it; raises ServerError where nobody answers."""
