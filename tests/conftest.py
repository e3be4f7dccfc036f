"""What all tests share: how many examples a property test tries, and that nothing waits for the disk.

The two profiles that gate a change draw the same examples each time, so that no change fails by another's luck.
`search` draws new ones, many of them; it is for work on what a property speaks of:
`.venv/bin/pytest --hypothesis-profile=search tests/unit/...`.
"""

import gc
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import tests.support  # noqa: F401  # before TensorFlow
from tests.support.disk import make_stores_quickly, sync_nothing

SHARED: dict[str, Any] = {
    "deadline": None,  # a busy machine proves nothing wrong
    "suppress_health_check": [HealthCheck.too_slow],  # nor does a slow one
    "print_blob": True,
}
settings.register_profile("quick", max_examples=20, derandomize=True, **SHARED)
settings.register_profile("thorough", max_examples=50, derandomize=True, **SHARED)
settings.register_profile("search", max_examples=1000, **SHARED)
settings.load_profile("quick")  # unless --hypothesis-profile names another
sync_nothing()


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """What test files import stays to the end: no collection of garbage has to look through its million objects.

    Nor, every few hundred new objects, through those of a graph that TensorFlow is tracing.
    """
    gc.disable()
    yield
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of a file that is marked `in_order` stay in the order of their lines, also where a plugin shuffles."""
    for path in {item.path for item in items if item.get_closest_marker("in_order")}:
        places = [place for place, item in enumerate(items) if item.path == path]
        told = sorted((items[place] for place in places), key=lambda item: item.reportinfo()[1] or 0)
        for place, item in zip(places, told, strict=True):
            items[place] = item


@pytest.fixture(autouse=True)
def _default_signals() -> None:
    """Ctrl-C ends a test: what a shell runs in the background ignores it, and a verb leaves a handler of its own."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Once MLflow is imported."""
    if "mlflow.store.db.utils" in sys.modules:
        make_stores_quickly()
