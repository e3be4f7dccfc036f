"""Waiting for a state. There is one limit for all: it ends what hangs, and is many times what a slow machine needs."""

import time
from collections.abc import Callable

LIMIT_S = 300.0


def wait_until(condition: Callable[[], object], *, every_s: float = 0.01) -> None:
    """Return when the condition holds.

    Raises:
        AssertionError: it did not hold within `LIMIT_S`.
    """
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"the state was not reached within {LIMIT_S:g} s"
        time.sleep(every_s)
