"""Both transports against a real gRPC server."""

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from rankline.serving.loadtest.generator.transport import OK, Answer, Transport
from rankline.serving.loadtest.generator.worker_pool import connect
from rankline.workflows.core.errors import ConfigError, ServerError
from tests.harness.process.waiting import wait_until

MEBIBYTE = 1 << 20


def receive(connection: Transport, count: int) -> dict[int, Answer]:
    """So many answers, by the key of their request."""
    answers: dict[int, Answer] = {}

    def has_all() -> bool:
        answers.update({answer.key: answer for answer in connection.poll(0.5)})
        return len(answers) >= count

    wait_until(has_all)
    return answers


class Echo(grpc.GenericRpcHandler):
    """Answers with the request; `!NAME text` asks for a status, `wait` for an answer that waits until it is let go."""

    def __init__(self) -> None:
        self.waits, self.let_go = threading.Event(), threading.Event()

    def service(self, details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self.answer)

    def answer(self, request: bytes, context: Any) -> bytes:
        if request.startswith(b"!"):
            name, _, text = request[1:].decode().partition(" ")
            context.abort(grpc.StatusCode[name], text)
        if request == b"wait":
            context.add_callback(self.let_go.set)
            self.waits.set()
            self.let_go.wait()
        return request


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def server(echo: Echo) -> Iterator[tuple[grpc.Server, str]]:
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(8), handlers=[echo], options=options)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield server, f"127.0.0.1:{port}"
    echo.let_go.set()
    server.stop(0).wait()


@pytest.fixture(params=["http2", "grpcio"])
def connection(request: pytest.FixtureRequest, server: tuple[grpc.Server, str]) -> Iterator[Transport]:
    transport = connect(request.param, server[1], "/test.Echo/Echo")
    yield transport
    transport.close()


def test_answers_belong_to_their_requests(connection: Transport) -> None:
    messages = {key: f"request {key}".encode() * key for key in range(300)}
    for key, message in messages.items():
        connection.send(key, message)
    answers = receive(connection, 300)
    assert {key: answer.body for key, answer in answers.items()} == messages
    assert {answer.status for answer in answers.values()} == {OK}


def test_large_messages_pass_both_ways(connection: Transport) -> None:
    messages = {key: bytes([key]) * (size * MEBIBYTE + key) for key, size in enumerate((5, 1, 0, 3, 2))}
    for key, message in messages.items():
        connection.send(key, message)
    assert {key: answer.body for key, answer in receive(connection, 5).items()} == messages


def test_a_status_comes_with_what_the_server_says(connection: Transport) -> None:
    for key, name in enumerate(("UNAVAILABLE", "INVALID_ARGUMENT", "INTERNAL", "RESOURCE_EXHAUSTED")):
        connection.send(key, f"!{name} too much".encode())
    connection.send(4, b"fine")
    answers = receive(connection, 5)
    assert [answers[key].status for key in range(5)] == [
        "UNAVAILABLE", "INVALID_ARGUMENT", "INTERNAL", "RESOURCE_EXHAUSTED", OK,
    ]  # fmt: skip
    assert answers[0].body == b"too much"


def test_a_server_that_answers_unavailable_is_not_taken_for_gone(connection: Transport) -> None:
    connection.send(0, b"!UNAVAILABLE too much")
    assert receive(connection, 1)[0].status == "UNAVAILABLE"
    connection.send(1, b"next")
    assert receive(connection, 1)[1].status == OK
    assert not connection.failure


def test_a_call_that_is_given_up_is_cancelled_at_the_server(connection: Transport, echo: Echo) -> None:
    connection.send(1, b"wait")
    connection.flush()
    assert echo.waits.wait()
    connection.cancel(1)
    connection.flush()
    assert echo.let_go.wait()  # by the cancellation
    connection.send(2, b"next")
    assert list(receive(connection, 1)) == [2]


def test_a_server_that_goes_fails_what_is_in_flight(
    connection: Transport, server: tuple[grpc.Server, str], echo: Echo
) -> None:
    connection.send(1, b"wait")
    connection.flush()
    assert echo.waits.wait()
    server[0].stop(0)
    answer = receive(connection, 1)[1]
    assert answer.status in ("UNAVAILABLE", "CANCELLED")
    keys = itertools.count(2)

    def has_failed() -> bool:
        connection.send(next(keys), b"again")
        connection.poll(0.2)
        return bool(connection.failure)

    wait_until(has_failed)


@pytest.mark.parametrize("transport", ["http2", "grpcio"])
def test_nobody_listens(transport: str) -> None:
    with pytest.raises(ServerError, match="no server answers at 127.0.0.1:9"):
        connect(transport, "127.0.0.1:9")


def test_an_unknown_transport_is_refused() -> None:
    with pytest.raises(ConfigError, match="no transport 'smoke'. Available: http2, grpcio"):
        connect("smoke", "127.0.0.1:9")
