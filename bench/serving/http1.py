"""HTTP/1.1 transport for servers other than Triton, so that the same load generator can measure them."""

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from selectors import EVENT_READ, DefaultSelector

from rankline.serving.loadtest.generator.transport import CONNECT_TIMEOUT_S, OK, Answer

_MAX_IN_FLIGHT = 64
_READ_SIZE = 1 << 20
_END_OF_HEAD, _END_OF_CHUNKS = b"\r\n\r\n", b"0\r\n\r\n"


@dataclass(kw_only=True, eq=False)
class _Connection:
    socket: socket.socket
    key: int | None = None  # of the request in flight; None if it was given up
    received: bytearray = field(default_factory=bytearray)

    def response(self) -> tuple[str, bytes] | None:
        """Return the status and body of the response if it is complete."""
        head, separator, body = bytes(self.received).partition(_END_OF_HEAD)
        if not separator:
            return None
        status, *lines = head.split(b"\r\n")
        headers = dict(line.lower().split(b": ", 1) for line in lines)
        if headers.get(b"transfer-encoding") == b"chunked":
            if not body.endswith(_END_OF_CHUNKS):
                return None
            body = _joined(body)
        elif len(body) < int(headers[b"content-length"]):
            return None
        return OK if status.split(b" ", 2)[1] == b"200" else "UNKNOWN", body


class Http1Connection:
    """A `Transport` with one persistent connection per request in flight, without TLS.

    The thread that sends also receives, so that the client's share of a response time is as small as with HTTP/2.
    """

    capacity = _MAX_IN_FLIGHT

    def __init__(self, url: str) -> None:
        self._host, _, path = url.partition("/")
        self._head = (
            f"POST /{path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\nContent-Length: "
        ).encode()
        self._selector = DefaultSelector()
        self._free: list[_Connection] = []
        self._busy: dict[int, _Connection] = {}
        self.failure = ""

    def send(self, key: int, message: bytes) -> None:
        connection = self._free.pop() if self._free else self._opened()
        connection.key = key
        self._busy[key] = connection
        connection.socket.sendall(b"".join((self._head, str(len(message)).encode(), _END_OF_HEAD, message)))

    def flush(self) -> None:
        pass

    def poll(self, timeout_s: float) -> Sequence[Answer]:
        answers = []
        for ready, _ in self._selector.select(max(timeout_s, 0)):
            connection: _Connection = ready.data
            received = connection.socket.recv(_READ_SIZE)
            if not received:
                self._selector.unregister(connection.socket)
                connection.socket.close()
                if connection in self._free:
                    self._free.remove(connection)
                else:
                    self.failure = f"{self._host} closed the connection"
                continue
            connection.received += received
            # Some servers send head and body apart, and wait until the head is acknowledged, by default after 40 ms.
            connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            if response := connection.response():
                connection.received.clear()
                self._free.append(connection)
                if connection.key is not None:
                    del self._busy[connection.key]
                    answers.append(Answer(connection.key, time.perf_counter_ns(), *response))
        return answers

    def cancel(self, key: int) -> None:
        if connection := self._busy.pop(key, None):
            connection.key = None

    def close(self) -> None:
        for registered in list(self._selector.get_map().values()):
            registered.data.socket.close()
        self._selector.close()

    def _opened(self) -> _Connection:
        host, _, port = self._host.rpartition(":")
        connection = _Connection(socket=socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S))
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.socket.settimeout(None)
        self._selector.register(connection.socket, EVENT_READ, connection)
        return connection


def _joined(chunks: bytes) -> bytes:
    parts, rest = [], chunks
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        parts.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    return b"".join(parts)
