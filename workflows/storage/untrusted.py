"""Functions that read untrusted files without blocking on special files, up to a size limit."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        OSError: the file cannot be opened, or it is a directory, a FIFO, a socket or a device.
    """
    stream = open(path, "rb", opener=_open_at_once)  # noqa: SIM115  (it is returned)
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return stream


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Return the contents of a regular file.

    Raises:
        OSError: see `open_regular`, or the file is larger than `max_bytes`.
    """
    with open_regular(path) as stream:
        if os.fstat(stream.fileno()).st_size > max_bytes:
            raise OSError(errno.EFBIG, f"it has more than {max_bytes} bytes", str(path))
        return stream.read(max_bytes)


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)  # opening a FIFO would otherwise wait for a writer
