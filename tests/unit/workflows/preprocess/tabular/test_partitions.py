from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankline.workflows.preprocess.tabular.partitions import NUM_FILES, FilesWriter


@pytest.mark.parametrize("sizes", [[], [0], [1, 40, 7, 0, 7], [3] * 30])
@pytest.mark.parametrize(("rows_per_file", "rows_per_group"), [(7, 3), (9, 20), (100, 10)])
def test_rows_keep_their_order_whatever_they_are_written_in(
    tmp_path: Path, sizes: list[int], rows_per_file: int, rows_per_group: int
) -> None:
    rows = pa.table({"id": range(sum(sizes)), "list": [[number] * (number % 3) for number in range(sum(sizes))]})
    rows = rows.cast(pa.schema({"id": pa.int64(), "list": pa.list_(pa.int64())}))
    writer = FilesWriter(tmp_path / "split", rows_per_file=rows_per_file, rows_per_group=rows_per_group)
    start = 0
    for size in sizes:
        writer.write(rows.slice(start, size))
        start += size
    files = writer.close()
    assert [path.name for path in files] == [f"part-{number:03d}.parquet" for number in range(len(files))]
    assert len(files) == -(-len(rows) // rows_per_file)
    if files:
        assert pa.concat_tables([pq.read_table(path) for path in files]).to_pylist() == rows.to_pylist()
    for path in files:
        metadata = pq.ParquetFile(path).metadata
        assert all(metadata.row_group(group).num_rows <= rows_per_group for group in range(metadata.num_row_groups))


@pytest.mark.parametrize(("num_rows", "num_files"), [(8, 4), (10_000, 4), (100_000, 10)])
def test_a_split_has_as_many_files_as_its_rows_need(tmp_path: Path, num_rows: int, num_files: int) -> None:
    writer = FilesWriter.of_split(tmp_path, "train", num_rows, max_file_rows=10_000, max_group_rows=2_000)
    writer.write(pa.table({"id": range(num_rows)}))
    files = writer.close()
    assert len(files) == num_files >= NUM_FILES["train"]
    assert all(pq.ParquetFile(path).metadata.num_rows == num_rows // num_files for path in files)
