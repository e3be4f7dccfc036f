"""Detection of a CSV file's encoding, delimiter and header."""

import codecs
import csv
import io
import re
from collections.abc import Sequence
from dataclasses import replace
from io import FileIO
from pathlib import Path

import numpy as np

from rankline.workflows.data.autodetect.profile import NULL_WORDS
from rankline.workflows.data.tabular.cast import NUMBER
from rankline.workflows.data.tabular.config import FilesConfig
from rankline.workflows.data.tabular.files import READ_ERRORS, unreadable
from rankline.workflows.data.text_files import unpacked, wide_encoding

_DELIMITERS = ",\t;|"
_FIRST_BYTES = 1 << 17
"""Bytes read from the start of a file; the csv module accepts cells of that length."""
_FIRST_LINES = 1_000


def as_written(path: Path, config: FilesConfig) -> FilesConfig:
    try:
        with FileIO(path) as file, unpacked(path, file) as packed:
            head = packed.read(_FIRST_BYTES)
        encoding = wide_encoding(path, config.encoding) or _encoding(head)
        text = codecs.getincrementaldecoder(encoding.replace("utf-8", "utf-8-sig"))().decode(head)
    except READ_ERRORS as error:
        raise unreadable(path, error, config) from None
    lines = [line for line in text.splitlines()[:5] if line.strip()]
    if not lines:
        return replace(config, encoding=encoding)
    best = max(_DELIMITERS, key=lambda sign: (min(line.count(sign) for line in lines), -_DELIMITERS.index(sign)))
    delimiter = best if best in lines[0] else ","
    # Python 3.10's csv module rejects zero bytes. `read_header` reports them.
    reader = csv.reader(io.StringIO(text.replace("\0", " "), newline=""), delimiter=delimiter)
    rows = [row for row, _ in zip(reader, range(_FIRST_LINES), strict=False) if row]
    return replace(config, encoding=encoding, delimiter=delimiter, header=_has_header(rows))


def _encoding(head: bytes) -> str:
    if head[::2].count(0) > len(head) / 4:
        return "utf-16-be"
    if head[1::2].count(0) > len(head) / 4:
        return "utf-16-le"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeError:
        return "latin-1"
    return "utf-8"


def _has_header(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row contains column names, judged by the rows below."""
    first, *others = rows
    numbers = [float(cell) for cell in first if _is_number(cell)]
    columns = list(zip(*(row for row in others if len(row) == len(first)), strict=True))
    if not numbers or not columns:
        return True
    if len(set(numbers)) < len(numbers):  # names would not repeat
        return False
    if all(number.is_integer() for number in numbers):
        are_years = all(1900 <= number <= 2100 for number in numbers)
        if (are_years or len(numbers) > 2) and np.all(np.diff(numbers) == 1) and len(numbers) > 1:
            return True
    for cell, column in zip(first, columns, strict=True):
        below = [text for text in column if text.strip() and text.strip().lower() not in NULL_WORDS]
        are_numbers = [_is_number(text) for text in below]
        if not below or not cell.strip() or cell.strip().lower() in NULL_WORDS:
            continue
        if _is_number(cell):
            is_name = not any(are_numbers)
        else:
            is_name = all(are_numbers) or (cell not in below and len(set(below)) < len(below) / 2)
        if is_name:
            return True
    return False


def _is_number(text: str) -> bool:
    return re.fullmatch(rf"\s*{NUMBER}\s*", text) is not None
