import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.nvt.io.vocabulary_files import check_vocabulary, read_vocabulary

TEXTS = pa.array([f"user {number:x}" for number in range(1_000)])


def often(text: str, rows: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), pa.array([text]))


@pytest.mark.parametrize(
    ("values", "options"),
    [
        (TEXTS, {}),
        (TEXTS, {"compression": "SNAPPY"}),
        (TEXTS.cast(pa.large_binary()), {}),
        (pa.array(np.arange(1_000)), {}),
        (pa.array(np.arange(1_000.0)), {"use_dictionary": False}),
        (pa.array([None, "a", "b"]), {}),
        (pa.array([1, 2], pa.int64()).cast(pa.decimal128(38, 2)), {}),
        (pa.array([0, 1], pa.timestamp("us")), {}),
        (pa.nulls(1), {}),
    ],
    ids=str,
)
def test_vocabularies_as_they_are_written_are_taken(tmp_path: Path, values: pa.Array, options: Any) -> None:
    path = tmp_path / "unique.user.parquet"
    pq.write_table(pa.table({"user": values}), path, **{"compression": "NONE", **options})
    check_vocabulary(path)
    check_vocabulary(tmp_path)  # as Dask writes them, in parts
    assert len(read_vocabulary(str(path), ["user"])) == len(values)


@pytest.mark.parametrize(
    ("values", "options", "reason"),
    [
        (pa.nulls(9_000_000, pa.string()), {}, "holds more than 16 times as many"),
        (pa.array(np.zeros(9_000_000, bool)), {}, "holds more than 16 times as many"),
        (often("x" * 1_000_000, 100), {}, "holds more than 16 times as many"),
        (often("x" * 1_000_000, 100), {"compression": "SNAPPY"}, "holds more than 16 times as many"),
        (TEXTS, {"compression": "ZSTD"}, "is compressed with ZSTD, expected one of UNCOMPRESSED, SNAPPY"),
        (pa.array([[1], [2]]), {}, "holds lists"),
        (TEXTS, {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"}, "cannot be read as Parquet"),
    ],
)
def test_what_takes_more_memory_than_its_size_allows_is_refused(
    tmp_path: Path, values: pa.Array, options: Any, reason: str
) -> None:
    path = tmp_path / "unique.user.parquet"
    pq.write_table(pa.table({"user": values}), path, **{"compression": "NONE", **options})
    with pytest.raises(ArtifactError, match=reason):
        check_vocabulary(path)
    with pytest.raises(ArtifactError, match=reason):
        check_vocabulary(tmp_path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    check_vocabulary(tmp_path / "missing")  # is refused where it is read
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path):
        with pytest.raises(ArtifactError, match="it is not a regular file"):
            check_vocabulary(path)


def test_a_vocabulary_without_its_column_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "unique.user.parquet"
    pq.write_table(pa.table({"user": TEXTS}), path)
    with pytest.raises(ArtifactError, match=r"has no column 'item'\. Save the workflow again"):
        read_vocabulary(str(path), ["item"])
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ArtifactError, match="cannot be read"):
        read_vocabulary(str(path), ["user"])
