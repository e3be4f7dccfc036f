"""Reader for Criteo's click logs: tab-separated rows without a header, in several layouts.

    Kaggle      train.txt               one file; test.txt has no labels and is ignored
    Terabyte    day_0, day_1, …         one file per day
    any other   *.tsv, *.txt            one file per period, in natural order of the names

Each file may be compressed (`.gz`). A row contains a label, 13 counts and 26 categories, which are hexadecimal numbers
of at most 32 bits. A missing value is an empty field.

The Criteo AI Lab's 1TB Click Logs dataset, and the Display Advertising Challenge that Kaggle held in 2014.
"""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rankline.workflows.core.errors import DataError
from rankline.workflows.core.formatting import natural_order
from rankline.workflows.data.tabular.cast import ValueFaultError, reject_misfits, typed_column
from rankline.workflows.data.tabular.config import ColumnConfig, FilesConfig
from rankline.workflows.data.tabular.files import SHARD_BYTES, Extent, names_in, read, scan
from rankline.workflows.preprocess.raw import RawData, Shard, StreamedRows
from rankline.workflows.schema.arrow_types import is_text

LABEL = "label"
NUMBERS = tuple(f"I{number}" for number in range(1, 14))
CATEGORIES = tuple(f"C{number}" for number in range(1, 27))
COLUMNS = (LABEL, *NUMBERS, *CATEGORIES)
CRITEO_SCHEMA = pa.schema(
    {LABEL: pa.int64(), **dict.fromkeys(NUMBERS, pa.int64()), **dict.fromkeys(CATEGORIES, pa.string())}
)

_LAYOUTS = (r"train\.txt(\.gz)?", r"day_\d+(\.gz)?", r"[^.].*\.(tsv|txt)(\.gz)?")
_MAX_DIGITS = 8
_SHOWN = 40
_FILES = FilesConfig(files=("*",), format="csv", delimiter="\t", quote="none", header=False)
_TYPES = {f"column_{number}": kind for number, kind in enumerate(CRITEO_SCHEMA.types, start=1)}
_WHOLE_NUMBER = ColumnConfig(type="int", role="numeric")


def read_criteo(directory: Path, *, shard_bytes: int = SHARD_BYTES) -> RawData:
    """Find and scan the Criteo files in a directory. Rows are read on demand, and each file is one period.

    Raises:
        DataError: there are no such files, a file is empty, truncated or not gzip, or its first line is not a row.
            Errors in later rows are raised when they are read.
    """
    paths = _find(directory)
    for path in paths:
        _check_columns(path)
    scanned = scan(paths, _FILES, shard_bytes=shard_bytes)
    rows = StreamedRows(
        schema=CRITEO_SCHEMA,
        periods=tuple(
            sum(extent.num_rows for extent in scanned.extents if extent.path == path.absolute()) for path in paths
        ),
        batches=partial(_read, scanned.extents),
        shards=tuple(Shard(num_rows=extent.num_rows, batches=partial(_read, [extent])) for extent in scanned.extents),
    )
    return RawData(rows=rows, fingerprint=scanned.fingerprint)


def _find(directory: Path) -> list[Path]:
    """Return the files of the first matching layout, in natural order of their names."""
    if not directory.is_dir():
        raise DataError(f"{directory} is not a directory. Pass the directory that contains the Criteo files.")
    files = [path for path in directory.iterdir() if path.is_file()]
    for layout in _LAYOUTS:
        if paths := sorted(
            (path for path in files if re.fullmatch(layout, path.name)), key=lambda path: natural_order(path.name)
        ):
            break
    else:
        raise DataError(
            f"{directory} contains no Criteo data. Expected train.txt, or day_0, day_1, …, or *.tsv or *.txt files, "
            "optionally gzipped. Pass the directory that contains these files."
        )
    for path in paths:
        if (packed := path.with_name(f"{path.name}.gz")) in paths:
            raise DataError(f"{directory} contains both {path.name} and {packed.name}. Remove one of them.")
    return paths


def _check_columns(path: Path) -> None:
    found = len(names_in(path, _FILES))
    if found != len(COLUMNS):
        remedy = "Download the file again if it was truncated, or fix the line."
        if found == len(COLUMNS) - 1:
            remedy = "This looks like a test file without labels. Remove it from the directory."
        raise DataError(
            f"{path}, line 1 has {found} columns, expected {len(COLUMNS)} ({LABEL}, I1–I13, C1–C26). {remedy}"
        )


def _read(extents: Sequence[Extent]) -> Iterator[pa.RecordBatch]:
    for extent in extents:
        done = extent.first_row
        for batch in read(extent, _FILES, _TYPES):
            columns = [
                _checked(name, values, extent.path, done) for name, values in zip(COLUMNS, batch.columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=CRITEO_SCHEMA)
            done += batch.num_rows


def _checked(name: str, values: pa.Array, path: Path, first_row: int) -> pa.Array:
    try:
        if name in CATEGORIES:
            return _category(values)
        if is_text(values.type):  # see `read`
            values = pc.if_else(pc.equal(values, ""), None, values)
        numbers = typed_column(values, _WHOLE_NUMBER)
        return _label(numbers) if name == LABEL else numbers
    except ValueFaultError as fault:
        shown = fault.got if len(str(fault.got)) <= _SHOWN else f"{fault.got[:_SHOWN]}…"
        raise DataError(
            f"{path}, row {first_row + fault.row + 1}: {name} is {shown!r}, expected {fault.expected}. Fix or "
            "remove the row."
        ) from None


def _label(numbers: pa.Int64Array) -> pa.Int64Array:
    is_label = pc.fill_null(pc.or_(pc.equal(numbers, 0), pc.equal(numbers, 1)), False)
    reject_misfits(numbers, pc.invert(is_label), "0 or 1")
    return numbers


def _category(texts: pa.StringArray) -> pa.StringArray:
    """Check that strings are hexadecimal and replace empty ones with null. This is faster than Arrow's functions."""
    _, offset_buffer, data = texts.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    lengths = np.diff(offsets)
    if int(lengths.max(initial=0)) > _MAX_DIGITS or not _are_digits(data, offsets):
        fits = pc.match_substring_regex(texts, f"^[0-9a-fA-F]{{0,{_MAX_DIGITS}}}$")
        row = pc.index(fits, False).as_py()
        expected = f"a hexadecimal number of at most {_MAX_DIGITS} digits, or an empty field"
        raise ValueFaultError(row, texts[row].as_py(), expected)
    is_there = pa.py_buffer(np.packbits(lengths > 0, bitorder="little"))
    return pa.StringArray.from_buffers(len(texts), offset_buffer.slice(4 * texts.offset), data, is_there)


def _are_digits(data: pa.Buffer | None, offsets: NDArray[np.int32]) -> bool:
    if data is None:
        return True
    text = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    # Unsigned numbers wrap around, so one comparison checks both bounds. 0x20 converts letters to lower case.
    is_digit = (text - ord("0")) < 10
    is_digit |= ((text | 0x20) - ord("a")) < 6
    return bool(is_digit.all())
