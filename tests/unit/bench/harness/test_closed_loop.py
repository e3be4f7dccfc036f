"""Requests kept in flight by processes of the load generator, over a transport that is the benchmarks' own."""

import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from bench.harness.closed_loop import keep_in_flight
from bench.serving.http1 import Http1Connection
from rankline.serving.loadtest.generator.worker_pool import Workers
from rankline.serving.loadtest.runs import Load
from rankline.workflows.core.errors import ServingError

LOAD = Load(batch_size=1, concurrency=4)


class Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(503 if body == b"busy" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_a_turn_is_counted_and_its_answers_are_kept(url: str) -> None:
    with Workers(2) as workers:
        run, outcome = keep_in_flight(
            "echo",
            workers,
            partial(Http1Connection, url),
            [b"one", b"two"],
            LOAD,
            turn_s=1.0,
            warmup_s=0.25,
            processes=2,
            sample_every=1,
        )
    assert (run.load, run.duration_s) == (LOAD, 1.0)
    assert run.whole.num_answered > 0
    assert {body for _, message, body in outcome.samples if message == 0} == {b"one"}


def test_a_request_that_fails_fails_the_turn(url: str) -> None:
    with Workers(1) as workers, pytest.raises(ServingError, match=r"echo failed under load: \{'UNKNOWN': \d+\}"):
        keep_in_flight("echo", workers, partial(Http1Connection, url), [b"busy"], LOAD, turn_s=0.5, warmup_s=0.25)
