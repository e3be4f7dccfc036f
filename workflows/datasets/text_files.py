"""Text files that may be compressed, hashed while they are read."""

import gzip
import hashlib
import io
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class DigestedFile(io.FileIO):
    """A file that hashes what is read of it, from its beginning to its end."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.digest = hashlib.sha256()

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        """Read and hash the next bytes."""
        num_bytes = super().readinto(buffer)
        self.digest.update(memoryview(buffer)[:num_bytes])
        return num_bytes


def unpacked(path: Path, file: io.FileIO) -> "io.BufferedReader[io.FileIO] | gzip.GzipFile":
    """The text in a file, by whose ending it is compressed or not."""
    buffered = io.BufferedReader(file)
    return gzip.GzipFile(fileobj=buffered) if path.suffix == ".gz" else buffered


def arrow_input(path: Path, offset: int, num_bytes: int | None) -> pa.NativeFile:
    """A part of a text file for Arrow's readers; of a compressed one, all.

    Args:
        path: by whose ending it is compressed or not.
        offset: bytes before the part.
        num_bytes: in the part; None for all to the end.
    """
    if path.suffix == ".gz":
        return pa.input_stream(str(path), compression="gzip")
    file = pa.OSFile(str(path))
    return file.get_stream(offset, max(0, file.size() - offset if num_bytes is None else num_bytes))
