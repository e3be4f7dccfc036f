"""What a piece of code does to the world, as Python's own audit events tell it."""

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_ACTING = ("os.", "shutil.", "socket.", "subprocess.", "tempfile.", "urllib.", "http.", "ftplib.", "glob.", "ctypes.")
_ALSO_ACTING = {"open", "exec", "compile", "pty.spawn", "mmap.__new__", "sqlite3.connect", "webbrowser.open"}
_watched: dict[int, list[str]] = {}  # by thread
_is_installed: list[bool] = []


@contextmanager
def record_side_effects() -> Iterator[list[str]]:
    """Notes what this thread does to files, network and processes, and each piece of code that it compiles or runs."""
    if not _is_installed:
        sys.addaudithook(_note)  # for good: Python has no way to take one out
        _is_installed.append(True)
    acts = _watched[threading.get_ident()] = []
    gc.disable()  # it would end, in this thread, what other code has left lying about
    try:
        yield acts
    finally:
        gc.enable()
        del _watched[threading.get_ident()]


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if _watched and (event in _ALSO_ACTING or event.startswith(_ACTING)):
        _watched.get(threading.get_ident(), []).append(f"{event} {arguments[:2]}")
