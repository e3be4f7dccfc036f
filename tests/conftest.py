"""What all tests share: how many examples a property test tries, and that nothing waits for the disk.

The two profiles that gate a change draw the same examples each time, so that no change fails by another's luck.
`search` draws new ones, many of them; it is for work on what a property speaks of:
`.venv/bin/pytest --hypothesis-profile=search tests/unit/...`.
"""

import gc
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import tests.harness  # noqa: F401  # before TensorFlow
from tests.harness.process.disk import make_stores_quickly, sync_nothing

UNITS = Path(__file__).parent / "unit"
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
    """Spread the files of each folder evenly, units to the end and others to the last fifth.

    Files of one folder hold each other up: workers that wait for each other on cores that others use, servers that are
    measured. The last fifth is units only: short files, so that all processes end together. Tests of a file that is
    marked `in_order` stay in the order of their lines, also where a plugin shuffles.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    for tests_of_file in files.values():
        if any(test.get_closest_marker("in_order") for test in tests_of_file):
            tests_of_file.sort(key=lambda test: test.reportinfo()[1] or 0)
    folders: dict[Path, list[Path]] = {}
    for path in files:
        folders.setdefault(UNITS if UNITS in path.parents else path.parent, []).append(path)
    place = {
        path: (1.0 if folder == UNITS else 0.8) * (at + 0.5) / len(paths)
        for folder, paths in folders.items()
        for at, path in enumerate(paths)
    }
    items[:] = [test for path in sorted(files, key=place.__getitem__) for test in files[path]]


@pytest.fixture(autouse=True)
def _default_signals() -> None:
    """Ctrl-C ends a test: what a shell runs in the background ignores it, and a verb leaves a handler of its own."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Weights that a test leaves to chance are the same each time, alone and behind whatever other tests."""
    if "mlflow.store.db.utils" in sys.modules:
        make_stores_quickly()
    state = random.getstate()  # of which others make names that nobody else may have
    if (keras := sys.modules.get("tf_keras")) is not None:
        keras.utils.set_random_seed(0)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)
    random.setstate(state)
