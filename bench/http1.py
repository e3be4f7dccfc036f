"""HTTP/1.1 POSTs for servers that are not Triton: other stacks, measured by the same engine and counted alike.

A connection carries one request at a time and is kept for the next; more are opened as more requests are in flight.
Of RFC 9112 there is what a client of such servers needs: responses with a Content-Length, to requests with one.
"""

import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from serving.benchmark.transport import CONNECT_TIMEOUT_S, OK, Answer
from workflows.errors import ServerError

_END_OF_HEAD = b"\r\n\r\n"
_READ_BYTES = 1 << 18
_CLOSE = "close"
# gRPC's names for what HTTP says (its document "http-grpc-status-mapping", and what its libraries do beyond); anything
# else is UNKNOWN.
_STATUSES = {
    200: OK, 400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
    422: "INVALID_ARGUMENT", 429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 502: "UNAVAILABLE", 503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}  # fmt: skip


@dataclass(slots=True, eq=False)
class _Connection:
    """A socket, what of a request it has not taken yet, and what has come of the response."""

    socket: socket.socket
    key: int | None = None
    unsent: memoryview = field(default_factory=lambda: memoryview(b""))
    received: bytearray = field(default_factory=bytearray)


class Http1Connection:
    """Implements `Transport` with as many TCP connections as there are requests in flight, without TLS.

    Args:
        url: HOST:PORT/PATH, where JSON is posted to.

    Raises:
        ServerError: nobody listens at `url`.
    """

    capacity = 1 << 31

    def __init__(self, url: str) -> None:
        authority, _, path = url.partition("/")
        host, _, port = authority.rpartition(":")
        self._host, self._port = host.strip("[]"), port
        self._head = (
            f"POST /{path} HTTP/1.1\r\nHost: {authority}\r\nContent-Type: application/json\r\nContent-Length: "
        ).encode()
        self.failure = ""
        self._poll = select.poll()
        self._connections: dict[int, _Connection] = {}  # by file descriptor
        self._calls: dict[int, _Connection] = {}  # by key
        self._lost: list[tuple[int, str]] = []  # keys that are to be answered with the next poll, and why
        try:
            self._idle = [self._open()]
        except (OSError, ValueError) as error:
            raise ServerError(f"no server answers at {authority} ({error}). Start it first.") from None

    def send(self, key: int, message: bytes) -> None:
        """Post on a connection that idles, or on a new one."""
        try:
            connection = self._idle.pop() if self._idle else self._open()
        except OSError as error:
            self.failure = f"the server takes no further connection: {error}"
            self._lost.append((key, self.failure))
            return
        connection.key = key
        connection.unsent = memoryview(b"%s%d%s%s" % (self._head, len(message), _END_OF_HEAD, message))
        self._calls[key] = connection
        self._push(connection)

    def flush(self) -> None:
        """Nothing is held back but what the operating system does not take."""

    def poll(self, timeout_s: float) -> Sequence[Answer]:
        """Wait until something comes in, and put responses together."""
        answers: list[Answer] = []
        for descriptor, event in self._poll.poll(0 if self._lost else max(timeout_s, 0) * 1e3):
            connection = self._connections[descriptor]
            if event & select.POLLOUT:
                self._push(connection)
            if event & ~select.POLLOUT and descriptor in self._connections:
                self._read(connection, answers)
        at_ns = time.perf_counter_ns()
        answers += [Answer(key, at_ns, "UNAVAILABLE", reason.encode()) for key, reason in self._lost]
        self._lost.clear()
        return answers

    def cancel(self, key: int) -> None:
        """Close the connection of a call, for HTTP/1.1 has no other way."""
        self._drop(self._calls.pop(key))

    def close(self) -> None:
        """Close all connections."""
        for connection in list(self._connections.values()):
            self._drop(connection)

    def _open(self) -> _Connection:
        connected = socket.create_connection((self._host, int(self._port)), CONNECT_TIMEOUT_S)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setblocking(False)
        connection = _Connection(connected)
        self._connections[connected.fileno()] = connection
        self._poll.register(connected, select.POLLIN)
        return connection

    def _drop(self, connection: _Connection) -> None:
        del self._connections[connection.socket.fileno()]
        self._poll.unregister(connection.socket)
        connection.socket.close()

    def _lose(self, connection: _Connection, reason: str) -> None:
        """The server has ended a connection: a request on it has failed; one that idled is replaced when needed."""
        if connection.key is None:
            self._idle.remove(connection)
        else:
            del self._calls[connection.key]
            self._lost.append((connection.key, reason))
        self._drop(connection)

    def _push(self, connection: _Connection) -> None:
        """Hand over as much of the request as the operating system takes."""
        try:
            sent = connection.socket.send(connection.unsent)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._lose(connection, f"the connection broke: {error}")
            return
        was_short, connection.unsent = len(connection.unsent) > sent, connection.unsent[sent:]
        self._poll.modify(connection.socket, select.POLLIN | (select.POLLOUT if was_short else 0))

    def _read(self, connection: _Connection, answers: list[Answer]) -> None:
        try:
            received = connection.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(connection, f"the connection broke: {error}")
            return
        if not received:
            self._lose(connection, "the server closed the connection")
            return
        at_ns = time.perf_counter_ns()
        if connection.key is None:
            self._lose(connection, "the server sent an unexpected response")
            return
        connection.received += received
        head_size = connection.received.find(_END_OF_HEAD)
        if head_size < 0:
            return
        try:
            status, headers = _parse(bytes(connection.received[:head_size]))
            end = head_size + len(_END_OF_HEAD) + int(headers["content-length"])
        except (KeyError, ValueError):
            self._lose(connection, "the server's response is no HTTP with a Content-Length")
            return
        if len(connection.received) < end:
            return
        body = bytes(connection.received[head_size + len(_END_OF_HEAD) : end])
        answers.append(Answer(connection.key, at_ns, _STATUSES.get(status, "UNKNOWN"), body))
        del self._calls[connection.key]
        connection.key = None
        connection.received.clear()
        if connection.unsent or headers.get("connection", "").lower() == _CLOSE:
            self._drop(connection)
        else:
            self._idle.append(connection)


def _parse(head: bytes) -> tuple[int, dict[str, str]]:
    """Status and headers, whose names are in lower case.

    Raises:
        ValueError: it is something else.
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    version, status, *_ = first.split(" ", 2)
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise ValueError(version)
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return int(status), headers
