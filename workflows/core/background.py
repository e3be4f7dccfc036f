from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread


@contextmanager
def beside(work: Callable[[Event], object], name: str | None = None) -> Iterator[None]:
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
