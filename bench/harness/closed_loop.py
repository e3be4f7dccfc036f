"""Closed loops: turns of the load generator, and clients that send requests while something happens to the server."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from rankline.serving.client import Client, ClientConfig
from rankline.serving.loadtest.generator.sender import Job
from rankline.serving.loadtest.generator.transport import Connect
from rankline.serving.loadtest.generator.worker_pool import Outcome, Workers
from rankline.serving.loadtest.runs import Load, Run
from rankline.serving.loadtest.stats.counters import SliceRecord
from rankline.workflows.core.errors import ServingError
from rankline.workflows.core.progress import background_thread

_TIMEOUT_S = 60.0
_LONGER = (1, 10)
"""Factors for the length of a turn; if a busy machine gives no response in a turn, the next factor is tried."""


def keep_in_flight(
    side: str,
    workers: Workers,
    connect: Connect,
    messages: Sequence[bytes],
    load: Load,
    *,
    turn_s: float,
    warmup_s: float,
    processes: int = 1,
    sample_every: int | None = None,
) -> tuple[Run, Outcome]:
    """Send messages in turn after a warm-up, keeping `load.concurrency` requests in flight over all `processes`."""
    assert load.concurrency is not None
    for longer in _LONGER:
        jobs = [
            Job(
                process=number,
                connect=connect,
                messages=messages,
                warmup_s=warmup_s,
                time_limit_s=turn_s * longer,
                timeout_s=_TIMEOUT_S,
                sample_every=sample_every or len(messages),
                concurrency=load.concurrency // processes,
            )
            for number in range(processes)
        ]
        outcome = workers.run(jobs)
        run = Run(load=load, slices=outcome.slices or (SliceRecord(),))
        whole = run.whole
        if outcome.failure or whole.errors:
            raise ServingError(f"{side} failed under load: {outcome.failure or dict(whole.errors)}.")
        if whole.latency.total and whole.num_answered:
            return run, outcome
    raise ServingError(f"{side} failed under load: no responses within {turn_s * _LONGER[-1]:g} s.")


_NUM_CLIENTS = 2


@dataclass
class Asked:
    """Observations of the clients: the number of responses, and the messages of failures."""

    num_answers: int = 0
    failures: list[str] = field(default_factory=list)


@contextmanager
def asking(url: str, name: str, rows: pa.Table, config: ClientConfig | None = None) -> Iterator[Asked]:
    """Run two clients that request the same rows until the block ends."""
    asked = Asked()
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(url, name, config or ClientConfig())) for _ in range(_NUM_CLIENTS)]
        for client in clients:
            stack.enter_context(background_thread(partial(_ask, client, rows, asked)))
        yield asked


def _ask(client: Client, rows: pa.Table, asked: Asked, stop: threading.Event) -> None:
    request = client.prepare(rows)
    while not stop.is_set():
        try:
            client.infer(request)
            asked.num_answers += 1
        except ServingError as error:
            asked.failures.append(str(error))
