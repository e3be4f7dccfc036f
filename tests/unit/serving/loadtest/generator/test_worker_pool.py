"""Client processes against a real gRPC server."""

import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest

from rankline.serving.loadtest.generator.sender import Job
from rankline.serving.loadtest.generator.worker_pool import Workers, connect
from rankline.serving.loadtest.stats.counters import SliceRecord
from rankline.workflows.core.errors import ServerError, ServingError

PROJECT = Path(__file__).parents[5]


class Echo(grpc.GenericRpcHandler):
    def service(self, details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(lambda request, context: request)


@pytest.fixture
def url() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(4), handlers=[Echo()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait()


def jobs(url: str, count: int, **changes: Any) -> list[Job]:
    settings = {
        "connect": partial(connect, "http2", url), "messages": [b"one", b"two"], "warmup_s": 0.1, "time_limit_s": 0.5,
        "timeout_s": 60.0, "sample_every": 3, "concurrency": 1,
    }  # fmt: skip
    return [Job(process=number, **{**settings, **changes}) for number in range(count)]


def test_processes_add_up_and_can_be_used_again(url: str) -> None:
    with Workers(2) as workers:
        whole = workers.run(jobs(url, 2))
        assert len(whole.slices) == 2
        assert set(SliceRecord.merged(whole.slices).cpu_ns) == {0, 1}  # of each slice, where none is held up
        assert sum(record.num_answered for record in whole.slices) > 0
        assert {process for process, _, _ in whole.samples} == {0, 1}
        assert all(body == (b"one", b"two")[message] for _, message, body in whole.samples)
        due_ns = np.arange(40, dtype=np.int64) * 10_000_000
        again = workers.run(
            jobs(url, 1, concurrency=None, due_ns=due_ns, time_limit_s=60.0),
            is_enough=lambda slices: SliceRecord.merged(slices).latency.total == 30,  # ten are in the warm-up
        )
        assert SliceRecord.merged(again.slices).num_due == 30


def test_ends_when_it_is_told_that_it_is_enough(url: str) -> None:
    seen: list[int] = []
    called: list[str] = []

    def is_enough(slices: Sequence[SliceRecord]) -> bool:
        seen.append(len(slices))
        return len(slices) == 3

    with Workers(2) as workers:
        outcome = workers.run(
            jobs(url, 2, time_limit_s=20.0),
            on_begin=lambda: called.append("begin"),
            is_enough=is_enough,
            on_end=lambda: called.append("end"),
        )
    assert len(outcome.slices) == 3
    assert seen == [1, 2, 3]
    assert called == ["begin", "end"]


def test_nobody_listens_and_a_process_that_is_killed_are_errors(url: str) -> None:
    with Workers(1) as workers:
        with pytest.raises(ServerError, match="no server answers at 127.0.0.1:9"):
            workers.run(jobs("127.0.0.1:9", 1))
        assert workers.run(jobs(url, 1)).failure == ""
        os.kill(workers.process_ids[0], signal.SIGKILL)
        with pytest.raises(ServingError, match="ended unexpectedly"):
            workers.run(jobs(url, 1))


def test_a_process_that_cannot_connect_leaves_the_others_ready(url: str) -> None:
    nobody = jobs("127.0.0.1:9", 2)
    with Workers(2) as workers:
        for wrong in (nobody, [jobs(url, 1)[0], nobody[1]], [nobody[0], jobs(url, 2)[1]]):
            with pytest.raises(ServerError, match="no server answers at 127.0.0.1:9"):
                workers.run(wrong)
            assert sum(record.num_answered for record in workers.run(jobs(url, 2)).slices) > 0


def test_large_answers_do_not_hold_up_the_warm_up(url: str) -> None:
    with Workers(1) as workers:
        outcome = workers.run(jobs(url, 1, messages=[b"x" * 100_000], warmup_s=1.0, sample_every=1, time_limit_s=0.25))
    whole = SliceRecord.merged(outcome.slices)
    assert whole.latency.total == len(outcome.samples) > 0  # none of the warm-up, whose pipe nobody reads yet


def test_ctrl_c_keeps_the_slices_that_are_over(url: str) -> None:
    called: list[str] = []

    def interrupt(slices: Sequence[SliceRecord]) -> bool:
        if len(slices) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return False

    with Workers(2) as workers:
        process_ids = workers.process_ids
        outcome = workers.run(jobs(url, 2, time_limit_s=60.0), is_enough=interrupt, on_end=lambda: called.append("end"))
    assert (len(outcome.slices), outcome.failure, called) == (2, "stopped by Ctrl-C", ["end"])
    assert not any(map(psutil.pid_exists, process_ids))
    with Workers(1) as workers, pytest.raises(KeyboardInterrupt):  # nothing is over yet
        workers.run(jobs(url, 1), on_begin=lambda: signal.raise_signal(signal.SIGINT))


def test_no_process_is_left(url: str) -> None:
    with Workers(2) as workers:
        process_ids = workers.process_ids
        assert all(map(psutil.pid_exists, process_ids))
    assert not any(map(psutil.pid_exists, process_ids))
    with pytest.raises(RuntimeError, match="stop"), Workers(1) as workers:
        process_ids = workers.process_ids
        workers.run(jobs(url, 1, time_limit_s=60.0), on_begin=lambda: (_ for _ in ()).throw(RuntimeError("stop")))
    assert not any(map(psutil.pid_exists, process_ids))
