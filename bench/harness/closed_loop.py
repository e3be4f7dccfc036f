"""Closed-loop turns of the load generator."""

from collections.abc import Sequence

from rankline.serving.loadtest.generator.sender import Job
from rankline.serving.loadtest.generator.transport import Connect
from rankline.serving.loadtest.generator.worker_pool import Outcome, Workers
from rankline.serving.loadtest.runs import Load, Run
from rankline.serving.loadtest.stats.counters import SliceRecord
from rankline.workflows.core.errors import ServingError

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
    """Send messages in turn after a warm-up, keeping `load.concurrency` requests in flight over all `processes`.

    Args:
        side: name of the measured server, for error messages.
        sample_every: keep every n-th response; None keeps only a few.
    """
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
    raise ServingError(f"{side} failed under load: no answers within {turn_s * _LONGER[-1]:g} s.")
