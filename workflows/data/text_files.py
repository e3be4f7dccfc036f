"""Text files, possibly compressed or in another encoding, that are hashed while they are read."""

import codecs
import gzip
import hashlib
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class DigestedFile(io.FileIO):
    """A file that hashes everything read from it, in a single pass from start to end."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.digest = hashlib.sha256()

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        num_bytes = super().readinto(buffer)
        self.digest.update(memoryview(buffer)[:num_bytes])
        return num_bytes


def unpacked(path: Path, file: io.FileIO) -> "io.BufferedReader[io.FileIO] | gzip.GzipFile":
    buffered = io.BufferedReader(file)
    return gzip.GzipFile(fileobj=buffered) if path.suffix == ".gz" else buffered


class _AsUtf8(io.RawIOBase):
    def __init__(self, text: "io.BufferedReader[io.FileIO] | gzip.GzipFile", encoding: str) -> None:
        self._text = io.TextIOWrapper(text, encoding, newline="")
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        view = memoryview(buffer).cast("B")
        self._left = self._left or self._text.read(len(view)).encode()
        part, self._left = self._left[: len(view)], self._left[len(view) :]
        view[: len(part)] = part
        return len(part)

    def close(self) -> None:
        self._text.close()
        super().close()


def opened(path: Path, file: io.FileIO, encoding: str | None) -> "io.BufferedReader[Any] | gzip.GzipFile":
    """Open the text in a file, decompressed, and converted to UTF-8 if `encoding` is given."""
    text = unpacked(path, file)
    return text if encoding is None else io.BufferedReader(_AsUtf8(text, encoding))


def wide_encoding(path: Path, encoding: str) -> str | None:
    """Return the encoding of a file whose bytes cannot be split at line ends, such as UTF-16; None for others.

    Args:
        path: the file. Its byte order mark takes precedence over `encoding`.
        encoding: encoding from the config.

    Raises:
        LookupError: the encoding is unknown.
    """
    with io.FileIO(path) as file, unpacked(path, file) as text:
        begin = text.read(4)
    for name, marks in _MARKS.items():
        if begin.startswith(marks):
            return name
    return encoding if "\n".encode(encoding) != b"\n" else None


_MARKS = {  # UTF-32 first: one of its marks begins with a mark of UTF-16
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}


def arrow_input(path: Path, offset: int, num_bytes: int | None) -> pa.NativeFile:
    """Open a part of a text file for Arrow's readers, or all of it if it is compressed."""
    if path.suffix == ".gz":
        return pa.input_stream(str(path), compression="gzip")
    file = pa.OSFile(str(path))
    return file.get_stream(offset, max(0, file.size() - offset if num_bytes is None else num_bytes))
