"""Rows that are read shard by shard are those that are read as a whole."""

import gzip
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.workflows.core.errors import DataError
from rankline.workflows.data.criteo.reader import COLUMNS, read_criteo
from rankline.workflows.preprocess import RowsConfig
from rankline.workflows.preprocess.raw import StreamedRows
from rankline.workflows.preprocess.splits import split_batches
from rankline.workflows.preprocess.tabular.partitions import FilesWriter, RawSplit


def line(number: int, fields: int = len(COLUMNS)) -> str:
    return "\t".join([str(number % 2), *(str(number) for _ in range(fields - 1))]) + "\n"


def write(directory: Path, sizes: list[int]) -> None:
    for day, size in enumerate(sizes):
        (directory / f"day_{day}").write_text("".join(line(number) for number in range(size)), encoding="ascii")


def streamed(directory: Path, shard_bytes: int) -> StreamedRows:
    rows = read_criteo(directory, shard_bytes=shard_bytes).rows
    assert isinstance(rows, StreamedRows)
    return rows


@pytest.mark.parametrize("shard_bytes", [1, 500, 1 << 20])
@pytest.mark.parametrize("end", ["", "\n"])
def test_shards_hold_every_row_once_and_in_order(tmp_path: Path, shard_bytes: int, end: str) -> None:
    write(tmp_path, [20, 1, 33])
    last = tmp_path / "day_2"
    last.write_text(last.read_text(encoding="ascii").rstrip("\n") + end, encoding="ascii")
    rows = streamed(tmp_path, shard_bytes)
    tables = [pa.Table.from_batches(pickle.loads(pickle.dumps(shard)).batches()) for shard in rows.shards]
    assert [len(table) for table in tables] == [shard.num_rows for shard in rows.shards]
    assert pa.concat_tables(tables).equals(pa.Table.from_batches(rows.batches()))
    assert pa.concat_tables(tables)["I1"].to_pylist() == [*range(20), 0, *range(33)]
    assert (len(tables) == 3) == (shard_bytes == 1 << 20)


def test_a_compressed_file_is_one_shard(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "train.txt.gz", "wt") as file:
        file.writelines(line(number) for number in range(100))
    (shard,) = streamed(tmp_path, 100).shards
    assert pa.Table.from_batches(shard.batches())["I1"].to_pylist() == list(range(100))


def test_a_row_that_is_none_is_named_by_its_line_whatever_shard_it_is_in(tmp_path: Path) -> None:
    text = [line(number) for number in range(40)]
    text[30] = line(30, fields=7)
    (tmp_path / "train.txt").write_text("".join(text), encoding="ascii")
    shards = streamed(tmp_path, 1000).shards
    with pytest.raises(DataError, match=r"train\.txt, line 31: 7 cells, expected 40"):
        for shard in shards:
            list(shard.batches())


def test_a_file_that_grew_is_refused_by_its_last_shard(tmp_path: Path) -> None:
    write(tmp_path, [40])
    shards = streamed(tmp_path, 1000).shards
    with (tmp_path / "day_0").open("a", encoding="ascii") as file:
        file.write(line(40))
    assert len(list(shards[0].batches())) == 1
    with pytest.raises(DataError, match="day_0 has 5 rows where it had 4 when it was first read"):
        list(shards[-1].batches())


@given(
    periods=st.lists(st.integers(1, 30), min_size=2, max_size=5),
    cuts=st.sets(st.integers(1, 149)),
    split=st.sampled_from(["random", "time"]),
    seed=st.integers(0, 100),
)
def test_a_row_validates_whatever_shard_it_is_in(periods: list[int], cuts: set[int], split: str, seed: int) -> None:
    num_rows = sum(periods)
    config = RowsConfig(split=split, valid_share=min(0.3, periods[-1] / num_rows), split_seed=seed)
    rows = pa.record_batch({"row": range(num_rows)})

    def valid(stretch: pa.RecordBatch, first_row: int) -> list[Any]:
        parts = split_batches([stretch], periods, config, first_row)
        return [row for name, table in parts if name == "valid" for row in table["row"].to_pylist()]

    edges = [0, *sorted(cut for cut in cuts if cut < num_rows), num_rows]
    apart = [valid(rows.slice(begin, end - begin), begin) for begin, end in pairwise(edges)]
    assert [row for part in apart for row in part] == valid(rows, 0)


@pytest.mark.parametrize(("partition_rows", "rows_per_file"), [(1, 3), (7, 7), (10, 4), (4, 10), (30, 11), (100, 100)])
def test_files_hold_the_rows_of_partitions_in_order(tmp_path: Path, partition_rows: int, rows_per_file: int) -> None:
    rows = pa.table({"row": range(100)})
    writer = FilesWriter(tmp_path / "partitions", rows_per_file=partition_rows, dictionaries=())
    writer.write(rows)
    split = RawSplit(name="train", partitions=tuple(writer.close()), num_rows=100, schema=rows.schema)
    files = [pa.concat_tables(rows.read() for rows in file)["row"].to_pylist() for file in split.cut(rows_per_file)]
    assert [row for file in files for row in file] == list(range(100))
    assert {len(file) for file in files[:-1]} <= {rows_per_file}
