"""HTTP/1.1 transport for servers other than Triton, so that the same load generator can measure them."""

import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from queue import Empty, SimpleQueue

from rankline.serving.loadtest.generator.transport import OK, Answer

_MAX_IN_FLIGHT = 64


class Http1Connection:
    """A `Transport` with one thread and one persistent connection per request in flight, without TLS."""

    capacity = _MAX_IN_FLIGHT
    failure = ""

    def __init__(self, url: str) -> None:
        self._address, _, path = url.partition("/")
        self._path = f"/{path}"
        self._threads = ThreadPoolExecutor(_MAX_IN_FLIGHT)
        self._of_thread = threading.local()
        self._connections: list[HTTPConnection] = []
        self._answers: SimpleQueue[Answer] = SimpleQueue()
        self._given_up: set[int] = set()

    def send(self, key: int, message: bytes) -> None:
        self._threads.submit(self._post, key, message)

    def flush(self) -> None:
        pass

    def poll(self, timeout_s: float) -> Sequence[Answer]:
        answers = []
        with suppress(Empty):
            answers.append(self._answers.get(timeout=max(timeout_s, 0)))
            while True:
                answers.append(self._answers.get_nowait())
        return [answer for answer in answers if answer.key not in self._given_up]

    def cancel(self, key: int) -> None:
        self._given_up.add(key)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for connection in self._connections:  # ends threads that wait for a response
            with suppress(OSError, AttributeError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    def _post(self, key: int, message: bytes) -> None:
        connection = self._connection()
        try:
            connection.request("POST", self._path, message, {"Content-Type": "application/json"})
            response = connection.getresponse()
            status, body = OK if response.status == 200 else "UNKNOWN", response.read()
        except (OSError, HTTPException) as error:
            connection.close()
            status, body = "UNAVAILABLE", str(error).encode()
        self._answers.put(Answer(key, time.perf_counter_ns(), status, body))

    def _connection(self) -> HTTPConnection:
        if not hasattr(self._of_thread, "connection"):
            self._of_thread.connection = HTTPConnection(self._address)
            self._connections.append(self._of_thread.connection)
        connection: HTTPConnection = self._of_thread.connection
        return connection
