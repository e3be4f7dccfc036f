"""Text files that may be compressed, hashed while they are read."""

import gzip
import hashlib
import io
from pathlib import Path
from typing import TYPE_CHECKING

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
