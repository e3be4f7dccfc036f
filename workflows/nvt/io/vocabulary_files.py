"""Size checks for the Parquet files of saved workflows, which contain vocabularies and statistics.

A few bytes of Parquet can describe any number of rows, and a dictionary any number of long texts. NVTabular reads these
files completely, so their size in memory must be in proportion to their size on disk.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rankline.workflows.core.errors import ArtifactError, in_short
from rankline.workflows.storage.untrusted import open_regular

# The codecs that NVTabular writes. Pages of other codecs may expand a thousandfold.
_CODECS = ("UNCOMPRESSED", "SNAPPY")
_WIDTHS = {"BOOLEAN": 8, "INT32": 8, "INT64": 8, "INT96": 8, "FLOAT": 8, "DOUBLE": 8, "BYTE_ARRAY": 8}
"""Type of a column → bytes per value in memory, without the text of a `BYTE_ARRAY`."""
_MIN_BYTES, _MAX_RATIO = 64 << 20, 16
"""Limits on a file's size in memory: an absolute size, or a multiple of the file size, whichever is larger. Statistics
with many equal values compress well.
"""
_MAX_ENTRIES = 100_000  # per list in the footer, which is allocated before its entries are read


def check_vocabulary(path: Path) -> None:
    """Reject a Parquet file, or a directory of Parquet files, that expands to much more than its size on disk.

    Raises:
        ArtifactError: a file is not Parquet as NVTabular writes it, or it expands too much.
    """
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        if file.exists() or file.is_symlink():
            try:
                _check_file(file)
            except (OSError, pa.ArrowException) as error:
                raise ArtifactError(f"{str(file)!r} cannot be read as Parquet: {in_short(error)}") from None


def read_vocabulary(path: str, columns: Sequence[str]) -> pd.DataFrame:
    try:
        frame = pd.read_parquet(path)
    except Exception as error:  # damaged files raise many types of exceptions
        reason = f"{type(error).__name__}: {in_short(error)}"
        raise ArtifactError(f"{path!r} cannot be read ({reason}). Save the workflow again.") from None
    if missing := [name for name in columns if name not in frame]:
        raise ArtifactError(f"{path!r} has no column {missing[0]!r}. Save the workflow again.")
    return frame


def _check_file(path: Path) -> None:
    with open_regular(path) as stream:
        num_bytes = stream.seek(0, 2)
        texts = _check_footer(path, _opened(stream).metadata, num_bytes)
        if texts:  # read as dictionaries, so that repeated texts are in memory once
            table = _opened(stream, read_dictionary=texts).read(columns=texts)
            _check_size(path, sum(map(_text_bytes, table.columns)), num_bytes)


def _opened(stream: Any, **options: Any) -> pq.ParquetFile:
    return pq.ParquetFile(stream, thrift_container_size_limit=_MAX_ENTRIES, **options)


def _check_footer(path: Path, footer: pq.FileMetaData, num_bytes: int) -> list[str]:
    """Check the sizes declared in a Parquet footer, which limit how many values are read.

    Returns:
        Names of the text columns, whose sizes are not in the footer.
    """
    size, texts = 0, set[str]()
    for place in range(footer.num_columns):
        if footer.schema.column(place).max_repetition_level:
            raise ArtifactError(f"{str(path)!r} contains lists, expected one value per row")
        if footer.schema.column(place).physical_type == "BYTE_ARRAY":
            texts.add(footer.schema.column(place).path)
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        for place in range(footer.num_columns):
            column, about = group.column(place), footer.schema.column(place)
            if column.compression not in _CODECS:
                raise ArtifactError(
                    f"{str(path)!r} is compressed with {column.compression}, expected one of {', '.join(_CODECS)}"
                )
            if column.num_values != group.num_rows:
                raise ArtifactError(f"{str(path)!r} has columns of different lengths")
            size += column.num_values * (_WIDTHS.get(about.physical_type) or max(about.length, 8))
            _check_size(path, size, num_bytes)
    return sorted(texts)


def _check_size(path: Path, size: int, num_bytes: int) -> None:
    if size > max(_MIN_BYTES, _MAX_RATIO * num_bytes):
        raise ArtifactError(
            f"{str(path)!r} has {num_bytes} bytes but expands to more than {_MAX_RATIO} times that size"
        )


def _text_bytes(column: pa.ChunkedArray) -> int:
    num_bytes = 0
    for chunk in column.chunks:
        lengths = pc.binary_length(chunk.dictionary).cast(pa.int64()).take(chunk.indices)
        num_bytes += pc.sum(lengths, min_count=0).as_py()
    return num_bytes
