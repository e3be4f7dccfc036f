"""Waiting for a state, however long a slow machine takes for it.

No wait has a limit of its own: what never comes is ended by the one limit of a test, `timeout` in pyproject.toml,
which is many times what any test needs. pytest then shows where it waited.
"""

import time
from collections.abc import Callable, Iterable

import psutil


def wait_until(condition: Callable[[], bool]) -> None:
    """Return when it holds."""
    while not condition():
        time.sleep(0.02)


def wait_until_ended(processes: Iterable[psutil.Process]) -> None:
    """Return when none of them runs: those that end with their parent's pipes do so a moment after it."""
    wait_until(lambda: not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in processes))
