"""How sides take turns, what a ratio of them is, and requests that are kept in flight."""

import math
import socket
import statistics
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from bench.harness.closed_loop import keep_in_flight
from bench.harness.report import median_ratio, medians_of, take_turns
from bench.serving.client import pairs_that_agree
from bench.serving.http1 import Http1Connection
from rankline.serving.loadtest.generator.worker_pool import Workers
from rankline.serving.loadtest.report.report import LoadResult
from rankline.serving.loadtest.runs import Load, Run
from rankline.serving.loadtest.stats.counters import SliceRecord
from rankline.serving.loadtest.stats.metrics import Estimate
from rankline.workflows.core.errors import ServingError


def test_sides_take_turns_and_the_first_does_not_count() -> None:
    seen: list[str] = []

    def side(name: str, figures: list[float]) -> float:
        seen.append(name)
        return figures.pop(0)

    one, other = [100.0, 1.0, 4.0, 3.0], [100.0, 2.0, 2.0, 3.0]
    rates = take_turns({"one": lambda: side("one", one), "other": lambda: side("other", other)}, repeats=3)
    assert seen == ["one", "other"] * 4
    assert rates == {"one": [1.0, 4.0, 3.0], "other": [2.0, 2.0, 3.0]}
    assert median_ratio(rates, "one", "other") == statistics.median([0.5, 2.0, 1.0])


def test_turns_without_a_measurement_do_not_count() -> None:
    nan = math.nan
    turns = {"one": {"p50": [2.0, nan, 4.0], "p99": [nan, nan, nan]}, "other": {"p50": [1.0, 1.0, nan]}}
    assert medians_of(turns) == {"one": {"p50": 3.0}, "other": {"p50": 1.0}}
    rates = {side: figures["p50"] for side, figures in turns.items()}
    assert median_ratio(rates, "one", "other") == 2.0
    assert math.isnan(median_ratio({**rates, "other": [nan, 1.0, nan]}, "one", "other"))


def test_runs_agree_where_their_intervals_overlap_and_pairs_without_a_bound_do_not_count() -> None:
    def result(interval_ns: tuple[int, int | None] | None) -> LoadResult:
        found = LoadResult.of_run(Run(load=Load(batch_size=1, concurrency=1), slices=(SliceRecord(),)), is_stable=True)
        low, high = interval_ns or (None, None)
        return replace(found, metrics={**found.metrics, "p50_ms": Estimate(value=1.0, low=low, high=high)})

    runs = [result(interval) for interval in ((1, 3), (2, 5), (5, 6), (1, 2), (3, 4))]
    assert pairs_that_agree(runs, "p50") == [True, True, False, False]
    assert pairs_that_agree([result(None), *runs, result((3, None))], "p50") == [True, True, False, False]
    assert pairs_that_agree(runs, "p99") == []


LOAD = Load(batch_size=1, concurrency=4)


class Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(503 if body == b"busy" else 200)
        if body == b"chunked":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for part in (body[:3], body[3:], b""):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            return
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


def test_turn_is_counted_and_its_answers_are_kept(url: str) -> None:
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
    assert run.load == LOAD
    assert run.duration_s in (1.0, 10.0)  # ten times as long if a busy machine gave no answer in a turn
    assert run.whole.num_answered > 0
    assert {body for _, message, body in outcome.samples if message == 0} == {b"one"}


def test_connection_reads_chunks_and_drops_the_response_to_a_cancelled_request(url: str) -> None:
    with closing(Http1Connection(url)) as connection:
        connection.send(1, b"one")
        connection.cancel(1)
        connection.send(2, b"chunked")
        connection.send(3, b"three")
        answers: dict[int, bytes] = {}
        while len(answers) < 2:
            answers |= {answer.key: answer.body for answer in connection.poll(5)}
    assert answers == {2: b"chunked", 3: b"three"}


def test_connection_reports_a_server_that_closes_it() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        closing(Http1Connection(f"127.0.0.1:{listener.getsockname()[1]}/")) as connection,
    ):
        connection.send(1, b"one")
        accepted, _ = listener.accept()
        accepted.recv(1000)
        accepted.close()
        assert connection.poll(5) == []
        assert "closed the connection" in connection.failure


def test_request_that_fails_fails_the_turn(url: str) -> None:
    with Workers(1) as workers, pytest.raises(ServingError, match=r"echo failed under load: \{'UNKNOWN': \d+\}"):
        keep_in_flight("echo", workers, partial(Http1Connection, url), [b"busy"], LOAD, turn_s=0.5, warmup_s=0.25)
