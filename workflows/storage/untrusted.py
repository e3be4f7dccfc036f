"""Reading of untrusted files: without blocking, up to a size limit, and YAML only if it is quick to parse and small."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

import yaml


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


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Return the contents of a regular file.

    Raises:
        OSError: see `open_regular`, or the file is larger than `most_bytes`.
    """
    with open_regular(path) as stream:
        if os.fstat(stream.fileno()).st_size > most_bytes:
            raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes", str(path))
        return stream.read(most_bytes)


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)  # opening a FIFO would otherwise wait for a writer


MOST_BYTES = 1 << 20
_MOST_ENTRIES = 100_000  # lines and inline list values; parsing takes 30 µs for each
_MOST_CHARACTERS = 4 << 20  # after expanding aliases
_LONGEST_NUMBER = 100
_NUMBER = "tag:yaml.org,2002:int"


def compose(text: str) -> yaml.Node | None:
    """Parse a document into nodes; None if it is empty.

    Raises:
        yaml.YAMLError: the text is not YAML, it is too long, or its aliases expand to too many characters.
        RecursionError: lists are nested too deeply.
    """
    if len(text.splitlines()) + sum(text.count(sign) for sign in ",[]{}") > _MOST_ENTRIES:
        raise yaml.YAMLError(f"it has more than {_MOST_ENTRIES} lines and values")
    node: yaml.Node | None = yaml.compose(text, yaml.SafeLoader)
    if node is not None:
        _extent(node, {})
    return node


def _extent(node: yaml.Node, extents: dict[int, int]) -> int:
    """Return the approximate number of characters of a node with all aliases expanded."""
    if isinstance(node, yaml.ScalarNode):
        if node.tag == _NUMBER and len(node.value) > _LONGEST_NUMBER:
            problem = f"a number has more than {_LONGEST_NUMBER} digits"
            raise yaml.MarkedYAMLError(None, None, problem, node.start_mark)
        return 1 + len(node.value)
    if id(node) not in extents:
        extents[id(node)] = -1
        inner = (side for pair in node.value for side in pair) if isinstance(node, yaml.MappingNode) else node.value
        extents[id(node)] = 1 + sum(_extent(part, extents) for part in inner)
    if not 0 <= extents[id(node)] <= _MOST_CHARACTERS:
        raise yaml.MarkedYAMLError(None, None, "its aliases expand to too many characters", node.start_mark)
    return extents[id(node)]
