"""What the command line prints when Ctrl-C is pressed."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

STOPPING = "stopping; finished artifacts are kept."

_text: ContextVar[str] = ContextVar("_text", default=STOPPING)


@contextmanager
def ctrl_c_prints(text: str) -> Iterator[None]:
    """Set what Ctrl-C prints during the block, for code that catches KeyboardInterrupt and continues."""
    before = _text.set(text)
    try:
        yield
    finally:
        _text.reset(before)


def text_of_ctrl_c() -> str:
    return _text.get()
