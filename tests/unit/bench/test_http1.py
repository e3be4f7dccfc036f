"""The transport for other stacks against a real HTTP server."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from bench.http1 import Http1Connection
from serving.benchmark.transport import OK, Transport
from tests.support.answers import receive
from workflows.errors import ServerError

MEBIBYTE = 1 << 20


class Echo(BaseHTTPRequestHandler):
    """Answers with the request; `!503 text` asks for a status, `wait` waits, `hang up` gets no answer at all."""

    protocol_version = "HTTP/1.1"
    server: "EchoServer"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.path, self.headers["Content-Type"], self.client_address[1]))
        status = 200
        if body.startswith(b"!"):
            code, _, text = body[1:].partition(b" ")
            status, body = int(code), text
        if body == b"wait":
            self.server.waits.set()
            self.server.let_go.wait(20)
        if body == b"hang up":
            self.close_connection = True
            return
        self.send_response(status)
        if body == b"no length":
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(len(body)))
        if body == b"last":
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(b"0\r\n\r\n" if body == b"no length" else body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class EchoServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Echo)
        self.requests: list[tuple[str, str, int]] = []
        self.waits, self.let_go = threading.Event(), threading.Event()

    def handle_error(self, *_: Any) -> None:
        """Say nothing of a client that has gone."""


@pytest.fixture
def server() -> Iterator[EchoServer]:
    with EchoServer() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.let_go.set()
        running.shutdown()
        thread.join()


@pytest.fixture
def connection(server: EchoServer) -> Iterator[Transport]:
    transport = Http1Connection(f"127.0.0.1:{server.server_port}/score")
    yield transport
    transport.close()


def test_answers_belong_to_their_requests(connection: Transport) -> None:
    messages = {key: f"request {key}".encode() * (key + 1) for key in range(32)}
    for key, message in messages.items():
        connection.send(key, message)
    answers = receive(connection, 32)
    assert {key: answer.body for key, answer in answers.items()} == messages
    assert {answer.status for answer in answers.values()} == {OK}


def test_the_path_of_the_url_gets_json_over_a_connection_that_is_kept(
    connection: Transport, server: EchoServer
) -> None:
    for key in range(5):
        connection.send(key, b"{}")
        receive(connection, 1)
    assert len(set(server.requests)) == 1
    assert server.requests[0][:2] == ("/score", "application/json")


def test_large_messages_pass_both_ways(connection: Transport) -> None:
    messages = {key: bytes([key]) * (size * MEBIBYTE + key) for key, size in enumerate((5, 1, 0, 3))}
    for key, message in messages.items():
        connection.send(key, message)
    assert {key: answer.body for key, answer in receive(connection, 4).items()} == messages


def test_a_status_comes_with_what_the_server_says(connection: Transport) -> None:
    for key, status in enumerate((422, 429, 500, 503, 418)):
        connection.send(key, f"!{status} too much".encode())
    answers = receive(connection, 5)
    assert [answers[key].status for key in range(5)] == [
        "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "INTERNAL", "UNAVAILABLE", "UNKNOWN",
    ]  # fmt: skip
    assert answers[0].body == b"too much"


@pytest.mark.parametrize("message", [b"hang up", b"no length"])
def test_a_response_that_cannot_be_read_fails_its_request_only(connection: Transport, message: bytes) -> None:
    connection.send(1, message)
    assert receive(connection, 1)[1].status == "UNAVAILABLE"
    connection.send(2, b"next")
    assert receive(connection, 1)[2].status == OK


def test_a_connection_that_the_server_closes_is_replaced(connection: Transport, server: EchoServer) -> None:
    for key in range(2):
        connection.send(key, b"last")
        assert receive(connection, 1)[key].status == OK
    assert len(set(server.requests)) == 2
    assert not connection.failure


def test_no_answer_comes_for_what_was_given_up(connection: Transport, server: EchoServer) -> None:
    connection.send(1, b"wait")
    assert server.waits.wait(20)
    connection.cancel(1)
    server.let_go.set()
    connection.send(2, b"next")
    assert list(receive(connection, 1)) == [2]


def test_a_server_that_has_gone_fails_what_is_sent() -> None:
    with EchoServer() as running:
        connection = Http1Connection(f"127.0.0.1:{running.server_port}/")
        connection.send(1, b"before it accepts")
    assert receive(connection, 1)[1].status == "UNAVAILABLE"
    connection.send(2, b"again")
    assert receive(connection, 1)[2].status == "UNAVAILABLE"
    assert connection.failure
    connection.close()


def test_nobody_listens() -> None:
    with pytest.raises(ServerError, match=r"no server answers at 127.0.0.1:9 \("):
        Http1Connection("127.0.0.1:9/score")
