"""Reasons that a measurement gives for having no latency."""

from collections import Counter

import pytest

from rankline.serving.loadtest.generator.worker_pool import Outcome
from rankline.serving.loadtest.measurement import _failure
from rankline.serving.loadtest.runs import Load, Run
from rankline.serving.loadtest.stats.counters import SliceRecord


@pytest.mark.parametrize(
    ("record", "failure", "message"),
    [
        (SliceRecord(num_due=9), "", "nothing was answered in 0.25 s: no errors either."),
        (SliceRecord(errors=Counter({"UNAVAILABLE": 3})), "", "nothing was answered in 0.25 s: {'UNAVAILABLE': 3}."),
        (SliceRecord(num_due=9, num_answered=7), "", "no request that was due in these 0.25 s was answered in them"),
        (SliceRecord(num_answered=7), "the connection ended", "the connection ended after 0.25 s; the figures are"),
    ],
)
def test_it_says_why(record: SliceRecord, failure: str, message: str) -> None:
    run = Run(load=Load(batch_size=1, rate_per_s=2e5), slices=(record,))
    assert _failure(run, Outcome(slices=(record,), samples=(), failure=failure)).startswith(message)
