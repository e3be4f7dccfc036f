from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Protocol


class Progress(Protocol):
    """A receiver of progress reports. The command line displays them, and `SILENT` discards them."""

    def update(self, done: float, total: float, note: str = "") -> None:
        """Report that `done` of `total` units are finished."""


class Part(Progress):
    def __init__(self, whole: Progress, number: int, of: int, says: Callable[[str], str]) -> None:
        self._whole, self._number, self._of, self._says = whole, number, of, says

    def update(self, done: float, total: float, note: str = "") -> None:
        self._whole.update(self._number + done / total, self._of, self._says(note))


class _Silent:
    def update(self, done: float, total: float, note: str = "") -> None:
        pass


SILENT: Progress = _Silent()


@contextmanager
def background_thread(work: Callable[[Event], object], name: str | None = None) -> Iterator[None]:
    """Run `work` in a daemon thread while the block runs, then stop the thread and wait for it.

    `work` must return soon after the event passed to it is set.
    """
    stop = Event()
    thread = Thread(target=work, args=(stop,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
