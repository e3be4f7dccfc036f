import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.training.data.loader.files import ParquetFiles, expand
from rankline.workflows.core.errors import ConfigError, DataError
from rankline.workflows.nvt.compat import nvt, quiet_nvtabular
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


def test_files_globs_directories_and_datasets_are_found_in_order(directory: Path) -> None:
    dataset = SimpleNamespace(engine=SimpleNamespace(paths=[str(path) for path in sorted(directory.glob("*.parquet"))]))
    for paths in (
        directory,
        str(directory),
        directory / "part_*.parquet",
        sorted(directory.glob("*.parquet")),
        [directory / "part_0.parquet", str(directory / "part_[12].parquet")],
        dataset,
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
    with pytest.raises(DataError, match=r"has 'hour' only in the name of its directory. Write 'hour' as a column"):
        ParquetFiles(tmp_path).check_columns(["row", "hour"])
    with pytest.raises(DataError, match=r"lacks the columns \['our'\]"):
        ParquetFiles(tmp_path).check_columns(["our"])


def test_filters_of_a_dataset_are_refused_with_the_remedy(directory: Path, tmp_path: Path) -> None:
    with quiet_nvtabular():
        dataset = nvt.Dataset(str(directory / "*.parquet"), engine="parquet", filters=[("row", ">=", 25)])
        with pytest.raises(ConfigError, match=r"filters, \[\('row', '>=', 25\)\], which loaders do not apply"):
            ParquetFiles(dataset)
        dataset.to_parquet(str(tmp_path / "filtered"))
    assert rows_of(tmp_path / "filtered") == list(range(25, 30))


def test_a_missing_list_of_fixed_length_is_said_to_be_one(tmp_path: Path) -> None:
    lists = pa.array([[1, 2], None], pa.list_(pa.int64(), 2))
    files = ParquetFiles(write(tmp_path / "a.parquet", range(2), pairs=lists))
    with pytest.raises(DataError, match=r"a row lacks its list in one of the columns \['pairs'\]"):
        files.read(files.row_groups[0], ["pairs"], use_threads=False)


def test_a_name_with_the_signs_of_a_glob_is_taken_as_it_is(tmp_path: Path) -> None:
    write(tmp_path / "day=[1].parquet", range(3))
    assert rows_of(tmp_path / "day=[1].parquet") == [0, 1, 2]


def test_other_file_systems_are_read_through_fsspec(directory: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(directory), "/loader-test", recursive=True)
    try:
        for paths in ("memory://loader-test", "memory://loader-test/part_*.parquet"):
            assert rows_of(paths) == list(range(30))
        files = ParquetFiles("memory://loader-test/part_1.parquet")
        tables = list(files.stream(files.row_groups[1], ["row"], 1, 2))
        assert [table["row"].to_pylist() for table in tables] == [[15, 16], [17]]
        with pytest.raises(DataError, match="no Parquet files at memory://loader-test/x"):
            ParquetFiles("memory://loader-test/x*.parquet")
    finally:
        memory.rm("/loader-test", recursive=True)


@given(num_rows=st.integers(1, 60), start=st.integers(0, 59), rows_at_once=st.integers(1, 70))
def test_a_row_group_as_a_stream_has_its_rows(
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


def test_columns_with_dots_in_their_names_are_found(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.parquet", range(4), **{"a.b": pa.array([[1], [2], [], [9]]), "a": pa.array([5, 6, 7, 8])}
    )
    files = ParquetFiles(path)
    assert files.statistics(files.row_groups[0], "a.b") == (1, 9)
    assert files.statistics(files.row_groups[0], "a") == (5, 8)


def test_no_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for paths in (tmp_path / "empty", tmp_path / "*.parquet", [tmp_path / "empty"]):
        with pytest.raises(DataError, match="no Parquet files at .*Give files, a glob pattern, or a directory"):
            expand(paths)
    with pytest.raises(DataError, match=r"no Parquet files in \[\]"):
        expand([])


def test_absent_and_truncated_files_are_named(directory: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.parquet does not exist"):
        ParquetFiles(directory / "absent.parquet")
    path = directory / "part_1.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"part_1\.parquet is not a whole Parquet file"):
        ParquetFiles(directory)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"row": pa.array(range(4), pa.int32())}, r"b\.parquet: column 'row' is int32, but int64 in .*a\.parquet"),
        ({"more": pa.array(range(4))}, r"b\.parquet: column 'more' is int64, but absent in .*a\.parquet"),
    ],
)
def test_schemas_that_differ_are_refused(tmp_path: Path, column: Any, message: str) -> None:
    write(tmp_path / "a.parquet", range(4))
    write(tmp_path / "b.parquet", range(4), **column)
    with pytest.raises(DataError, match=message):
        ParquetFiles(tmp_path)


def test_columns_are_checked_by_name_and_type(tmp_path: Path) -> None:
    files = ParquetFiles(write(tmp_path / "a.parquet", range(2), text=pa.array(["a", "b"])))
    with pytest.raises(
        DataError, match=r"a\.parquet lacks the columns \['gone'\]. Available: \['row', 'tags', 'text'\]"
    ):
        files.check_columns(["row", "gone"])
    with pytest.raises(DataError, match=r"column 'text' is string, expected numbers"):
        files.check_numeric(["row", "tags", "text"])


def test_a_file_that_goes_or_changes_is_named(directory: Path) -> None:
    files = ParquetFiles(directory)
    path = directory / "part_0.parquet"
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))
    with pytest.raises(DataError, match=r"part_0\.parquet has changed since"):
        files.read(files.row_groups[0], ["row"], use_threads=False)
    path.unlink()
    with pytest.raises(DataError, match=r"part_0\.parquet has disappeared since"):
        files.read(files.row_groups[0], ["row"], use_threads=False)


def test_the_digest_follows_the_parts_and_not_the_place(directory: Path, tmp_path: Path) -> None:
    digest = ParquetFiles(directory).digest()
    moved = directory.rename(tmp_path / "moved")
    assert ParquetFiles(moved).digest() == digest
    write(moved / "part_2.parquet", range(11))
    assert ParquetFiles(moved).digest() != digest


def test_required_columns_are_streamed_too(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("row", pa.int64(), nullable=False)])
    pq.write_table(pa.table({"row": range(10)}, schema=schema), tmp_path / "a.parquet")
    files = ParquetFiles(tmp_path)
    assert [len(table) for table in files.stream(files.row_groups[0], ["row"], 0, 4)] == [4, 4, 2]


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


def test_a_part_is_read_whole_and_as_a_stream(directory: Path) -> None:
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
