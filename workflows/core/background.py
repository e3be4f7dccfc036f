"""Work beside a block, in a thread of its own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread


@contextmanager
def beside(work: Callable[[Event], object], name: str | None = None) -> Iterator[None]:
    """Work as long as the block lasts; it ends when the thread has.

    Args:
        work: returns soon after the event, which it is given, is set.
        name: of the thread.
    """
    stop = Event()
    thread = Thread(target=work, args=(stop,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
