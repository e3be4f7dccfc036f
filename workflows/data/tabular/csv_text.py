"""Open text files in any encoding or compression, and parse CSV text to find its header and first faulty line.

Arrow parses the rows, but it reads everything up to the next quote as one cell and reports neither line nor column. It
does not notice an unclosed quote, and the rows between two unclosed quotes would be lost.
"""

import codecs
import csv
import gzip
import hashlib
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rankline.workflows.core.errors import DataError
from rankline.workflows.data.tabular.cast import NUMBER
from rankline.workflows.data.tabular.config import FilesConfig

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class DigestedFile(io.FileIO):
    """A file that hashes all bytes as they are read. It must be read once, from start to end."""

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
    """Open a text file, decompressing it if necessary and converting it to UTF-8 if `encoding` is given."""
    text = unpacked(path, file)
    return text if encoding is None else io.BufferedReader(_AsUtf8(text, encoding))


def wide_encoding(path: Path, encoding: str) -> str | None:
    """Return the encoding of a file whose bytes cannot be split at line ends, such as UTF-16, or None for other files.

    A byte order mark takes precedence over the encoding in the config. Raises LookupError for an unknown one.
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
    """Open part of a text file for Arrow's readers, or the whole file if it is compressed."""
    if path.suffix == ".gz":
        return pa.input_stream(str(path), compression="gzip")
    file = pa.OSFile(str(path))
    return file.get_stream(offset, max(0, file.size() - offset if num_bytes is None else num_bytes))


_MAX_CHARACTERS = 1 << 22  # per cell
_ROWS_LOOKED_AT = 200
_FEW_LINES = 5
_SHOWN = 40
_NUMBER = re.compile(NUMBER)
_REMEDY = "Fix the quote, or set 'quote: none' under data to read quotes as ordinary characters."


@dataclass(frozen=True, kw_only=True)
class Header:
    names: tuple[str, ...]
    num_lines: int


def read_header(path: Path, config: FilesConfig) -> Header:
    """Read the column names. An unnamed column is called column_N, where N is its position.

    Raises:
        DataError: the file is empty, or its first lines are not a header.
        OSError, EOFError, zlib.error, UnicodeError, LookupError: the file cannot be read.
    """
    first = next(_rows(path, config), None)
    if first is None:
        raise DataError(f"{path} is empty, expected a header and rows. Write it again, or remove it from the data.")
    if re.fullmatch(r'"?sep=.?"?\s*', first.lines[0]):
        raise DataError(
            f"{path}, line {first.number}: {first.lines[0].strip()!r} is a directive for Excel, expected a "
            "header. Remove the line, and set the delimiter under data."
        )
    if any("\0" in cell for cell in first.cells):
        raise _zero_bytes(path)
    if len(first.lines) > 1 and not _is_well_quoted(first.lines, config):
        raise DataError(f"{path}, line {first.number}: a quote in the header is not closed. {_REMEDY}")
    numbered = [f"column_{number}" for number in range(1, len(first.cells) + 1)]
    if not config.header:
        return Header(names=tuple(numbered), num_lines=0)
    names = tuple(cell if cell.strip() else name for cell, name in zip(first.cells, numbered, strict=True))
    return Header(names=names, num_lines=first.number + len(first.lines) - 1)


def first_fault(path: Path, config: FilesConfig) -> DataError | None:
    """Return an error for the first line that is malformed or has a stray quote that merges several rows, or None if
    there is no such line.
    """
    names = read_header(path, config).names
    some = islice((row for row in _rows(path, config) if len(row.lines) == 1), 1, _ROWS_LOOKED_AT)
    numeric = _numeric([row.cells for row in some], len(names))
    faults = (fault for row in _rows(path, config) if (fault := _fault(row, names, numeric, config)))
    return next((DataError(f"{path}, {fault}") for fault in faults), None)


@dataclass(frozen=True)
class _Row:
    cells: list[str]
    number: int
    lines: list[str]


def _fault(row: _Row, names: Sequence[str], numeric: set[int], config: FilesConfig) -> str | None:
    where, num_more = f"line {row.number}", len(row.lines) - 1
    if num_more and _swallows(row, len(names), numeric, config):
        place = next((place for place, cell in enumerate(row.cells) if "\n" in cell or "\r" in cell), 0)
        name = names[place] if place < len(names) else f"column_{place + 1}"
        return (
            f"{where}: a quote opens a cell of column {name!r} that spans {num_more:,} more lines, which look "
            f"like rows. {_REMEDY}"
        )
    if len(row.cells) != len(names):
        found = f"{len(row.cells)} cell{'s' * (len(row.cells) != 1)}"
        remedy = "Fix the line, or the delimiter under data."
        if any('"' in line for line in row.lines) and config.quote != "none":
            remedy = f"A quote may not be closed. {_REMEDY}"
        elif names[0].startswith("#"):
            remedy = f"Remove the lines before the header, such as {names[0][:_SHOWN]!r}."
        return f"{where}: {found}, expected {len(names)} as in the header. {remedy}"
    return None


def _swallows(row: _Row, num_cells: int, numeric: set[int], config: FilesConfig) -> bool:
    """Whether each line of a multi-line row looks like its own row, with all cells and numbers in numeric columns."""
    if not _is_well_quoted(row.lines, config):
        return True
    parts = [line.rstrip("\r\n").split(config.delimiter) for line in row.lines if line.strip()]
    if num_cells < 2 or any(len(part) != num_cells for part in parts):
        return False
    if not numeric:
        return len(parts) > _FEW_LINES
    for part in parts:
        filled = [cell for place in numeric if (cell := part[place].strip().strip('"'))]
        if not filled or not all(map(_NUMBER.fullmatch, filled)):
            return False
    return True


def _numeric(rows: Sequence[Sequence[str]], num_cells: int) -> set[int]:
    """Return the indexes of the columns whose non-empty cells are all numbers. Columns without numbers are excluded."""
    found = set[int]()
    for place in range(num_cells):
        filled = [cell for row in rows if len(row) == num_cells and (cell := row[place].strip())]
        if filled and all(map(_NUMBER.fullmatch, filled)):
            found.add(place)
    return found


def _is_well_quoted(lines: Sequence[str], config: FilesConfig) -> bool:
    """Whether the lines form a single row in which every quoted cell ends with a quote."""
    try:
        return len(list(csv.reader(lines, strict=True, **_dialect(config)))) == 1
    except csv.Error:
        return False


def _rows(path: Path, config: FilesConfig) -> Iterator[_Row]:
    wide = wide_encoding(path, config.encoding)
    encoding = ("utf-8" if wide else config.encoding).replace("utf-8", "utf-8-sig")
    with (
        io.FileIO(path) as file,
        opened(path, file, wide) as unpacked,
        io.TextIOWrapper(unpacked, encoding, newline="") as text,
    ):
        lines, number = list[str](), 1

        def read() -> Iterator[str]:
            for line in text:
                lines.append(line)
                yield line

        before = csv.field_size_limit(_MAX_CHARACTERS)
        try:
            for cells in csv.reader(read(), **_dialect(config)):
                if cells:
                    yield _Row(cells, number, lines.copy())
                number += len(lines)
                lines.clear()
        except csv.Error:
            if any("\0" in line for line in lines):  # Python 3.10 rejects zero bytes
                raise _zero_bytes(path) from None
            raise DataError(f"{path}, line {number}: a cell has a quote that is not closed. {_REMEDY}") from None
        finally:
            csv.field_size_limit(before)


def _zero_bytes(path: Path) -> DataError:
    return DataError(f"{path} contains zero bytes, as UTF-16 does. Set 'encoding' under data, such as utf-16-le.")


def _dialect(config: FilesConfig) -> dict[str, Any]:
    return {"delimiter": config.delimiter, "quoting": csv.QUOTE_NONE if config.quote == "none" else csv.QUOTE_MINIMAL}
