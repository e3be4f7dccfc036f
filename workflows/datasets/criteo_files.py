"""Criteo's click logs on disk: rows without a header, their fields parted by tabs, in each layout they come in.

    Kaggle      train.txt               one file; test.txt beside it has no labels and is left alone
    Terabyte    day_0, day_1, …         one file for each day
    any other   *.tsv, *.txt            one file for each period, in the order of their names

Each file may be compressed (`.gz`). A row holds a label, 13 counts and 26 categories, which are hexadecimal numbers of
at most 32 bits. A missing value is an empty field.

The Criteo AI Lab's 1TB Click Logs dataset, and the Display Advertising Challenge that Kaggle held in 2014.
"""

import gzip
import hashlib
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from workflows.datasets.raw import RawData, Shard, StreamedRows
from workflows.datasets.text_files import DigestedFile, arrow_input, unpacked
from workflows.errors import DataError
from workflows.words import natural_order

LABEL = "label"
NUMBERS = tuple(f"I{number}" for number in range(1, 14))
CATEGORIES = tuple(f"C{number}" for number in range(1, 27))
COLUMNS = (LABEL, *NUMBERS, *CATEGORIES)
CRITEO_SCHEMA = pa.schema(
    {LABEL: pa.int64(), **dict.fromkeys(NUMBERS, pa.int64()), **dict.fromkeys(CATEGORIES, pa.string())}
)

_LAYOUTS = (r"train\.txt(\.gz)?", r"day_\d+(\.gz)?", r"[^.].*\.(tsv|txt)(\.gz)?")
_BLOCK_BYTES = 1 << 21  # what the caches of a processor hold
_SHARD_BYTES = 48 << 20  # some 200,000 rows, a little less than what NVTabular has at a time
_LONGEST_LINE_BYTES = 1 << 20
_MAX_DIGITS = 8
_BOM = b"\xef\xbb\xbf"


def read_criteo(directory: Path, *, shard_bytes: int = _SHARD_BYTES) -> RawData:
    """Find the files of a directory and go over their bytes once; the rows are read when they are asked for.

    Args:
        directory: holds the files of one layout, whose numbers are counted as numbers: day_2 comes before day_10.
        shard_bytes: of the shards that a file is read in, at least, but for the last; a compressed file is one shard.

    Returns:
        Rows by `CRITEO_SCHEMA`, one period for each file, in batches of some megabytes; no catalogue.

    Raises:
        DataError: there are no such files, one is empty, cut off or not gzip, or its first line is not a row. What is
            wrong with later rows is said when they are read.
    """
    paths = _find(directory)
    digest, periods, extents = hashlib.sha256(), [], list[_Extent]()
    for path in paths:
        file_digest, of_file = _scan(path, shard_bytes)
        digest.update(f"{path.name} {file_digest}\n".encode())  # as `fingerprint_of` does, which would read it again
        periods.append(sum(extent.num_rows for extent in of_file))
        extents += of_file
    rows = StreamedRows(
        schema=CRITEO_SCHEMA,
        periods=tuple(periods),
        batches=partial(_read, extents),
        shards=tuple(Shard(num_rows=extent.num_rows, batches=partial(_read, [extent])) for extent in extents),
    )
    return RawData(rows=rows, fingerprint=digest.hexdigest())


@dataclass(frozen=True, kw_only=True)
class _Extent:
    """Whole lines of a file, one after another.

    Attributes:
        path: absolute, for whoever reads it.
        offset: of their first byte; 0 where the file is compressed.
        num_bytes: how many; None for up to the end.
        first_row: rows of the file before them.
        num_rows: how many.
    """

    path: Path
    offset: int
    num_bytes: int | None
    first_row: int
    num_rows: int


def _find(directory: Path) -> list[Path]:
    """The files of the first layout that is there, oldest first."""
    if not directory.is_dir():
        raise DataError(f"{directory} is not a directory. Expected one that holds the files of Criteo.")
    files = [path for path in directory.iterdir() if path.is_file()]
    for layout in _LAYOUTS:
        if paths := sorted(
            (path for path in files if re.fullmatch(layout, path.name)), key=lambda path: natural_order(path.name)
        ):
            break
    else:
        raise DataError(
            f"{directory} holds no Criteo data. Looked for train.txt; day_0, day_1, …; *.tsv, *.txt; each also as .gz. "
            "Give the directory of these files."
        )
    for path in paths:
        if (packed := path.with_name(f"{path.name}.gz")) in paths:
            raise DataError(f"{directory} holds both {path.name} and {packed.name}, expected one. Remove the other.")
    return paths


def _scan(path: Path, shard_bytes: int) -> tuple[str, list[_Extent]]:
    """SHA-256 of a file and what can be read of it apart, in one pass over its bytes."""
    num_lines, offset, ends = 0, 0, [(0, 0)]
    try:
        with DigestedFile(path) as file, unpacked(path, file) as text:
            block = text.readline(_LONGEST_LINE_BYTES)
            if block and block.count(b"\t") != len(COLUMNS) - 1:
                raise _refusal(path, 0)
            ends_line = True
            while block:
                num_lines += block.count(b"\n")
                end = offset + block.rfind(b"\n") + 1  # of the last whole line; `offset` where there is none
                if path.suffix != ".gz" and end - ends[-1][0] >= shard_bytes and end > offset:
                    ends.append((end, num_lines))
                offset += len(block)
                ends_line = block.endswith(b"\n")
                block = text.read1(min(_BLOCK_BYTES, shard_bytes))  # unlike `read`, loses nothing before an error
            digest = file.digest.hexdigest()
    except EOFError:
        raise DataError(f"{path}, line {num_lines + 1}: the gzip data is cut off. Fetch it again.") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}, line {num_lines + 1}: no valid gzip data ({error}). Fetch it again.") from None
    except OSError as error:
        raise _unreadable(path, error) from None
    num_lines += not ends_line
    if num_lines == 0:
        raise DataError(f"{path} is empty, expected rows. Fetch or write it again, or remove it.")
    if len(ends) > 1 and ends[-1][1] == num_lines:
        ends.pop()
    last = (None, num_lines)
    return digest, [
        _Extent(
            path=path.absolute(),
            offset=begin,
            num_bytes=None if end is None else end - begin,
            first_row=first,
            num_rows=until - first,
        )
        for (begin, first), (end, until) in zip(ends, [*ends[1:], last], strict=True)
    ]


def _read(extents: Sequence[_Extent]) -> Iterator[pa.RecordBatch]:
    """Read at the speed of Arrow; what it or the checks refuse is looked for again line by line."""
    for extent in extents:
        path, done, end = extent.path, extent.first_row, extent.first_row + extent.num_rows
        try:
            with _open(extent) as reader:
                for batch in reader:
                    if not (_is_binary(batch.column(0)) and all(map(_is_hex, batch.columns[1 + len(NUMBERS) :]))):
                        raise _refusal(path, done)
                    done += batch.num_rows
                    yield batch
        except pa.ArrowInvalid as error:
            raise _refusal(path, done, error) from None
        except OSError as error:
            raise _unreadable(path, error) from None
        if done != end:
            raise DataError(f"{path} has {done} rows, and had {end} when it was first read. Leave it as it is.")


def _open(extent: _Extent) -> pa_csv.CSVStreamingReader:
    return pa_csv.open_csv(
        arrow_input(extent.path, extent.offset, extent.num_bytes),
        read_options=pa_csv.ReadOptions(column_names=COLUMNS, block_size=_BLOCK_BYTES),
        parse_options=pa_csv.ParseOptions(delimiter="\t", quote_char=False, ignore_empty_lines=False),
        convert_options=pa_csv.ConvertOptions(
            # Digits are UTF-8, and that they are digits is checked.
            check_utf8=False,
            column_types=CRITEO_SCHEMA,
            null_values=[""],
            strings_can_be_null=True,
        ),
    )


def _is_binary(labels: pa.Int64Array) -> bool:
    limits = pc.min_max(labels).as_py()
    return bool(labels.null_count == 0 and limits["min"] >= 0 and limits["max"] <= 1)


def _is_hex(column: pa.StringArray) -> bool:
    """Whether every value that is there is a hexadecimal number of at most 8 digits."""
    _, offset_buffer, data = column.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[column.offset : column.offset + len(column) + 1]
    if data is None or offsets[0] == offsets[-1]:
        return True
    text = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    # Unsigned numbers wrap around, so one comparison bounds them on both sides. 0x20 makes letters small.
    is_digit = (text - ord("0")) < 10
    is_digit |= ((text | 0x20) - ord("a")) < 6
    return bool(is_digit.all()) and int(np.diff(offsets).max()) <= _MAX_DIGITS


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"{path} cannot be read ({error.strerror or error}). Fetch it again, or correct its permissions.")


def _refusal(path: Path, num_read: int, error: Exception | None = None) -> DataError:
    """What is wrong with the first line after `num_read` good ones that is not a row."""
    with io.FileIO(path) as file, unpacked(path, file) as text:
        lines = iter(partial(text.readline, _LONGEST_LINE_BYTES), b"")
        for number, line in enumerate(islice(lines, num_read, None), start=num_read + 1):
            if fault := _fault_of(line.removeprefix(_BOM) if number == 1 else line, is_first=number == 1):
                return DataError(f"{path}, line {number}{fault}")
    return DataError(f"{path} cannot be read after line {num_read} ({error}). Fetch it again.")


def _fault_of(line: bytes, *, is_first: bool) -> str | None:
    """What is wrong with a line, to be put behind its number; None if nothing is."""
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    if not line:
        return f" is blank, expected {len(COLUMNS)} columns. Remove it."
    if found := re.search(rb"[^\x00-\x7f]{1,8}", line):
        return f": the bytes {found[0].hex(' ')} are not ASCII, expected digits only. Fetch the file again."
    fields = line.decode("ascii").split("\t")
    if len(fields) != len(COLUMNS):
        advice = "Fetch the file again if it was cut off, else correct the line."
        if is_first and len(fields) == len(COLUMNS) - 1:
            advice = "A test file has no labels: remove it from the directory."
        return f" has {len(fields)} columns, expected {len(COLUMNS)} ({COLUMNS[0]}, I1–I13, C1–C26). {advice}"
    for name, text in zip(COLUMNS, fields, strict=True):
        if expected := _expectation(name, text):
            shown = text if len(text) <= 40 else f"{text[:40]}…"
            return f": {name} is {shown!r}, expected {expected}. Correct the line or remove it."
    return None


def _expectation(name: str, text: str) -> str | None:
    """What should stand in place of `text`, if it is no value of the column."""
    if name == LABEL:
        return None if text.strip(" ") in ("0", "1") else "0 or 1"
    if name in CATEGORIES:
        is_valid = re.fullmatch(r"[0-9a-fA-F]{0,8}", text)
        return None if is_valid else f"a hexadecimal number of at most {_MAX_DIGITS} digits, or nothing"
    number = text.strip(" ")
    is_valid = re.fullmatch(r"-?[0-9]{1,20}", number)
    fits = not text or (is_valid and -(2**63) <= int(number) < 2**63)
    return None if fits else "a whole number of 64 bits, or nothing"
