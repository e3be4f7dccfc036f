"""Transports and client processes against a real gRPC server."""

import itertools
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
import numpy as np
import psutil
import pytest

from rankline.serving.loadtest.generator.sender import Job
from rankline.serving.loadtest.generator.transport import OK, Answer, Transport
from rankline.serving.loadtest.generator.worker_pool import Outcome, Workers, connect
from rankline.serving.loadtest.stats.counters import SliceRecord
from rankline.workflows.core.errors import ConfigError, ServerError, ServingError
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


def test_transport_answers_belong_to_their_requests(connection: Transport) -> None:
    messages = {key: f"request {key}".encode() * key for key in range(300)}
    for key, message in messages.items():
        connection.send(key, message)
    answers = receive(connection, 300)
    assert {key: answer.body for key, answer in answers.items()} == messages
    assert {answer.status for answer in answers.values()} == {OK}


def test_transport_carries_large_messages(connection: Transport) -> None:
    messages = {key: bytes([key]) * (size * MEBIBYTE + key) for key, size in enumerate((5, 1, 0, 3, 2))}
    for key, message in messages.items():
        connection.send(key, message)
    assert {key: answer.body for key, answer in receive(connection, 5).items()} == messages


def test_transport_reports_status_and_message(connection: Transport) -> None:
    for key, name in enumerate(("UNAVAILABLE", "INVALID_ARGUMENT", "INTERNAL", "RESOURCE_EXHAUSTED")):
        connection.send(key, f"!{name} too much".encode())
    connection.send(4, b"fine")
    answers = receive(connection, 5)
    assert [answers[key].status for key in range(5)] == [
        "UNAVAILABLE", "INVALID_ARGUMENT", "INTERNAL", "RESOURCE_EXHAUSTED", OK,
    ]  # fmt: skip
    assert answers[0].body == b"too much"


def test_transport_cancels_at_the_server(connection: Transport, echo: Echo) -> None:
    connection.send(1, b"wait")
    connection.flush()
    assert echo.waits.wait()
    connection.cancel(1)
    connection.flush()
    assert echo.let_go.wait()  # by the cancellation
    connection.send(2, b"next")
    assert list(receive(connection, 1)) == [2]


def test_transport_fails_requests_in_flight_when_the_server_stops(
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
def test_transport_without_a_server_is_refused(transport: str) -> None:
    with pytest.raises(ServerError, match="no server answers at 127.0.0.1:9"):
        connect(transport, "127.0.0.1:9")


def test_unknown_transport_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown transport 'smoke'. Available: http2, grpcio"):
        connect("smoke", "127.0.0.1:9")


@pytest.fixture
def url(server: tuple[grpc.Server, str]) -> str:
    return server[1]


def jobs(url: str, count: int, **changes: Any) -> list[Job]:
    settings = {
        "connect": partial(connect, "http2", url), "messages": [b"one", b"two"], "warmup_s": 0.1, "time_limit_s": 0.5,
        "timeout_s": 60.0, "sample_every": 3, "concurrency": 1,
    }  # fmt: skip
    return [Job(process=number, **{**settings, **changes}) for number in range(count)]


def test_workers_add_up_and_can_be_reused(url: str) -> None:
    with Workers(2) as workers:
        runs: list[Outcome] = []

        def have_both_taken_part() -> bool:
            """A busy machine may hold one up for all of the half second."""
            runs.append(workers.run(jobs(url, 2)))
            processes = {process for process, _, _ in runs[-1].samples}
            return processes == set(SliceRecord.merged(runs[-1].slices).cpu_ns) == {0, 1}

        wait_until(have_both_taken_part)
        whole = runs[-1]
        assert len(whole.slices) == 2
        assert num_answered(whole.slices) > 0
        assert all(body == (b"one", b"two")[message] for _, message, body in whole.samples)
        due_ns = np.arange(40, dtype=np.int64) * 10_000_000
        again = workers.run(
            jobs(url, 1, concurrency=None, due_ns=due_ns, time_limit_s=60.0),
            is_enough=lambda slices: SliceRecord.merged(slices).latency.total == 30,  # ten are in the warm-up
        )
        assert SliceRecord.merged(again.slices).num_due == 30


def test_worker_that_cannot_connect_leaves_the_others_ready(url: str) -> None:
    nobody = jobs("127.0.0.1:9", 2)
    with Workers(2) as workers:
        for wrong in (nobody, [jobs(url, 1)[0], nobody[1]], [nobody[0], jobs(url, 2)[1]]):
            with pytest.raises(ServerError, match="no server answers at 127.0.0.1:9"):
                workers.run(wrong)
            outcome = workers.run(jobs(url, 2, time_limit_s=60.0), is_enough=lambda slices: num_answered(slices) > 0)
            assert num_answered(outcome.slices) > 0


def num_answered(slices: Sequence[SliceRecord]) -> int:
    return sum(record.num_answered for record in slices)


def test_ctrl_c_keeps_the_finished_slices(url: str) -> None:
    called: list[str] = []

    def interrupt(slices: Sequence[SliceRecord]) -> bool:
        if len(slices) >= 2:  # a worker that was held up reports several at once
            os.kill(os.getpid(), signal.SIGINT)
        return False

    with Workers(2) as workers:
        process_ids = workers.process_ids
        outcome = workers.run(jobs(url, 2, time_limit_s=60.0), is_enough=interrupt, on_end=lambda: called.append("end"))
    assert (outcome.failure, called) == ("stopped by Ctrl-C", ["end"])
    assert len(outcome.slices) >= 2
    assert not any(map(psutil.pid_exists, process_ids))
    with Workers(1) as workers, pytest.raises(KeyboardInterrupt):  # nothing is over yet
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        workers.run(jobs(url, 1, warmup_s=600.0))


def test_workers_leave_no_process(url: str) -> None:
    with Workers(2) as workers:
        process_ids = workers.process_ids
        assert all(map(psutil.pid_exists, process_ids))
    assert not any(map(psutil.pid_exists, process_ids))
    with pytest.raises(RuntimeError, match="stop"), Workers(1) as workers:
        process_ids = workers.process_ids
        workers.run(jobs(url, 1, time_limit_s=60.0), on_begin=lambda: (_ for _ in ()).throw(RuntimeError("stop")))
    assert not any(map(psutil.pid_exists, process_ids))


def test_killed_worker_is_an_error(url: str) -> None:
    with Workers(1) as workers:
        assert workers.run(jobs(url, 1)).failure == ""
        os.kill(workers.process_ids[0], signal.SIGKILL)
        with pytest.raises(ServingError, match="exited unexpectedly"):
            workers.run(jobs(url, 1))
