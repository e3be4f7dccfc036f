"""Ctrl-C: none is lost, and a second one leaves the clean-up alone."""

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rankline.cli.main import _interrupt


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, _interrupt)
    yield
    signal.signal(signal.SIGINT, before)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_a_second_one_does_not_cut_the_clean_up_short() -> None:
    done = []

    def work() -> None:
        try:
            press()
        finally:
            press()
            try:
                raise ValueError("of the clean-up")
            except ValueError:
                press()
            done.append("clean")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["clean"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_that_a_finalizer_swallowed_is_made_good_by_the_next() -> None:
    class Finalized:
        def __del__(self) -> None:
            press()

    made = Finalized()
    del made  # Python prints what a finalizer raises, and goes on
    with pytest.raises(KeyboardInterrupt):
        press()


_IN_A_NEW_PROCESS = """
import signal, sys
from rankline.cli.main import _interrupt

before = set(sys.modules)
signal.signal(signal.SIGINT, _interrupt)
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print(sorted(set(sys.modules) - before))
"""


def test_nothing_is_imported_since_an_import_may_have_been_interrupted() -> None:
    done = subprocess.run([sys.executable, "-c", _IN_A_NEW_PROCESS], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[]\n", "\nstopping; finished artifacts are kept.\n")
