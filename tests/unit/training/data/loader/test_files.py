import os
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.training.data.loader.files import ParquetFiles
from rankline.workflows.core.errors import DataError
from rankline.workflows.schema.feature_spec import Part


def write(path: Path, rows: range, row_group_size: int = 4, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    tags = pa.array([[row] * (row % 3) for row in rows], pa.list_(pa.int64()))
    table = {"row": pa.array(rows, pa.int64()), "tags": tags}
    pq.write_table(pa.table({**table, **columns}), path, row_group_size)
    return path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for number in range(3):
        write(tmp_path / "data" / f"part_{number}.parquet", range(10 * number, 10 * number + 10))
    (tmp_path / "data" / "notes.txt").write_text("no Parquet")
    return tmp_path / "data"


def rows_of(paths: Any, part: Part | None = None) -> list[int]:
    files = ParquetFiles(paths, part)
    return [
        row for group in files.row_groups for row in files.read(group, ["row"], use_threads=True)["row"].to_pylist()
    ]


def test_files_globs_and_directories_are_found_in_order(directory: Path) -> None:
    for paths in (
        directory,
        str(directory),
        directory / "part_*.parquet",
        sorted(directory.glob("*.parquet")),
        [directory / "part_0.parquet", str(directory / "part_[12].parquet")],
    ):
        assert rows_of(paths) == list(range(30))


@pytest.mark.parametrize("pattern", ["", "part*.parquet", "*/*.parquet"])
def test_files_come_in_natural_order_and_lists_in_their_own(tmp_path: Path, pattern: str) -> None:
    folder = tmp_path / "day=10" if "/" in pattern else tmp_path
    files = [write(folder / f"part{sign}{n}.parquet", range(n, n + 1)) for n in (10, 2, 11, 0) for sign in ("_", ".")]
    assert rows_of(tmp_path / pattern) == [0, 2, 10, 11, 0, 2, 10, 11]
    assert rows_of(files) == [10, 10, 2, 2, 11, 11, 0, 0]


def test_directories_of_partitions_are_read_and_hidden_ones_are_not(tmp_path: Path) -> None:
    for number, name in enumerate(("day=9/a", "day=10/hour=2/a", "day=10/hour=1/a", ".b", "_b", ".x=1/a", "other/a")):
        write(tmp_path / f"{name}.parquet", range(number, number + 1))
    assert rows_of(tmp_path) == [0, 2, 1]
    with pytest.raises(DataError, match="'hour' is a partition key"):
        ParquetFiles(tmp_path).check_columns(["row", "hour"])


def test_fsspec_file_systems_are_readable(directory: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(directory), "/loader-test", recursive=True)
    try:
        for paths in ("memory://loader-test", "memory://loader-test/part_*.parquet"):
            assert rows_of(paths) == list(range(30))
        files = ParquetFiles("memory://loader-test/part_1.parquet")
        tables = list(files.stream(files.row_groups[1], ["row"], 1, 2))
        assert [table["row"].to_pylist() for table in tables] == [[15, 16], [17]]
        with pytest.raises(DataError, match="no .parquet files found at memory://loader-test/x"):
            ParquetFiles("memory://loader-test/x*.parquet")
    finally:
        memory.rm("/loader-test", recursive=True)


@given(num_rows=st.integers(1, 60), start=st.integers(0, 59), rows_at_once=st.integers(1, 70))
def test_row_group_as_a_stream_has_its_rows(
    tmp_path_factory: pytest.TempPathFactory, num_rows: int, start: int, rows_at_once: int
) -> None:
    path = write(tmp_path_factory.mktemp("tables") / "a.parquet", range(num_rows), row_group_size=100)
    files = ParquetFiles(path)
    tables = list(files.stream(files.row_groups[0], ["tags", "row"], start, rows_at_once))
    assert [row for table in tables for row in table["row"].to_pylist()] == list(range(start, num_rows))
    assert all(len(table) == rows_at_once for table in tables[:-1])
    assert [tags for table in tables for tags in table["tags"].to_pylist()] == [
        [row] * (row % 3) for row in range(start, num_rows)
    ]


def test_footers_tell_sizes_and_ends(directory: Path) -> None:
    files = ParquetFiles(directory / "part_1.parquet")
    first = files.row_groups[0]
    assert (first.num_rows, files.statistics(first, "row")) == (4, (10, 13))
    num_values = 4 + sum(max(1, row % 3) for row in range(10, 14))  # an empty list counts as one value
    assert files.decoded_bytes(first, ["row", "tags"]) == 8 * num_values + 4 * 4


def test_digest_follows_the_parts_and_not_the_place(directory: Path, tmp_path: Path) -> None:
    digest = ParquetFiles(directory).digest()
    moved = directory.rename(tmp_path / "moved")
    assert ParquetFiles(moved).digest() == digest
    write(moved / "part_2.parquet", range(11))
    assert ParquetFiles(moved).digest() != digest


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.floats(0, 1), st.booleans())
def test_parts_of_row_groups_are_all_rows_once_and_as_many_as_their_share(
    sizes: list[int], share: float, of_each_group: bool
) -> None:
    cuts = [Part(begin=b, end=e, of_each_group=of_each_group).cut(sizes) for b, e in ((0.0, share), (share, 1.0))]
    rows = [[(group, row) for group, ends in enumerate(cut) for row in range(*ends)] for cut in cuts]
    assert sorted(rows[0] + rows[1]) == [(group, row) for group, size in enumerate(sizes) for row in range(size)]
    assert len(rows[0]) == round(share * sum(sizes))
    if of_each_group:
        assert all(abs((end - begin) - share * size) <= 1 for (begin, end), size in zip(cuts[0], sizes, strict=True))
    else:
        assert rows[0] + rows[1] == sorted(rows[0] + rows[1])


def test_part_is_read_whole_and_as_a_stream(directory: Path) -> None:
    late, ends = (Part(begin=0.6, end=1.0, of_each_group=of_each) for of_each in (False, True))
    assert rows_of(directory, late) == list(range(18, 30))
    assert len(rows_of(directory, ends)) == 12
    files = ParquetFiles(directory, ends)
    for group in files.row_groups:
        whole = files.read(group, ["row", "tags"], use_threads=False)
        for start in range(group.num_rows + 1):
            parts = files.stream(group, ["row", "tags"], start, 1)
            assert [row for part in parts for row in part.to_pylist()] == whole.slice(start).to_pylist()
    assert ParquetFiles(directory).digest() != files.digest()


@pytest.mark.parametrize("required", [True, False])
def test_files_with_unusual_names_are_read(tmp_path: Path, required: bool) -> None:
    schema = pa.schema([pa.field("a.b", pa.list_(pa.int64()), not required), pa.field("a", pa.int64(), not required)])
    pq.write_table(pa.table([[[1], [2], [], [9]], [5, 6, 7, 8]], schema=schema), tmp_path / "day=[1].parquet")
    files = ParquetFiles(tmp_path / "day=[1].parquet")
    (group,) = files.row_groups
    assert (files.statistics(group, "a.b"), files.statistics(group, "a")) == ((1, 9), (5, 8))
    assert [table["a"].to_pylist() for table in files.stream(group, ["a"], 0, 3)] == [[5, 6, 7], [8]]


def touch(path: Path) -> None:
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))


@pytest.mark.parametrize(("change", "message"), [(touch, "has changed since"), (Path.unlink, "was removed after")])
def test_files_changed_since_they_were_opened_are_named(directory: Path, change: Any, message: str) -> None:
    files = ParquetFiles(directory)
    change(directory / "part_0.parquet")
    with pytest.raises(DataError, match=rf"part_0\.parquet {message}"):
        files.read(files.row_groups[0], ["row"], use_threads=False)


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ("absent.parquet", r"absent\.parquet does not exist"),
        ("empty", "no .parquet files found at .*empty"),
        ("*.csv", r"no .parquet files found at .*\.csv"),
        ([], r"no .parquet files found in \[\]"),
        ("cut.parquet", r"cut\.parquet is not a complete Parquet file"),
        (["good.parquet", "narrow.parquet"], r"narrow\.parquet: column 'row' is int32, but int64 in .*good"),
        (["good.parquet", "wide.parquet"], r"wide\.parquet: column 'more' is int64, but absent in .*good"),
    ],
)
def test_files_that_cannot_be_opened_are_named(tmp_path: Path, paths: str | list[str], message: str) -> None:
    good = write(tmp_path / "good.parquet", range(4))
    write(tmp_path / "narrow.parquet", range(4), row=pa.array(range(4), pa.int32()))
    write(tmp_path / "wide.parquet", range(4), more=pa.array(range(4)))
    (tmp_path / "cut.parquet").write_bytes(good.read_bytes()[:-20])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=message):
        ParquetFiles(tmp_path / paths if isinstance(paths, str) else [tmp_path / path for path in paths])


def test_files_refuse_missing_and_non_numeric_columns_and_null_matrices(tmp_path: Path) -> None:
    pairs = pa.array([[1, 2], None], pa.list_(pa.int64(), 2))
    files = ParquetFiles(write(tmp_path / "a.parquet", range(2), text=pa.array(["a", "b"]), pairs=pairs))
    with pytest.raises(DataError, match=r"a\.parquet lacks the columns \['gone'\]. Available: \['row'"):
        files.check_columns(["row", "gone"])
    with pytest.raises(DataError, match="column 'text' is string, expected numbers"):
        files.check_numeric(["row", "tags", "text"])
    with pytest.raises(DataError, match=r"/a\.parquet: one of the fixed-size list columns \['pairs'\]"):
        files.read(files.row_groups[0], ["pairs"], use_threads=False)
