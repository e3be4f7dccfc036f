"""Rows that are read piece by piece are those that are read as a whole."""

import gzip
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.datasets.criteo_files import COLUMNS, read_criteo
from workflows.datasets.raw import StreamedRows
from workflows.errors import DataError
from workflows.parts import PartWriter, RawSplit
from workflows.prepare_config import PrepareConfig
from workflows.splits import split_batches


def line(number: int, fields: int = len(COLUMNS)) -> str:
    return "\t".join([str(number % 2), *(str(number) for _ in range(fields - 1))]) + "\n"


def write(directory: Path, sizes: list[int]) -> None:
    for day, size in enumerate(sizes):
        (directory / f"day_{day}").write_text("".join(line(number) for number in range(size)), encoding="ascii")


def streamed(directory: Path, piece_bytes: int) -> StreamedRows:
    rows = read_criteo(directory, piece_bytes=piece_bytes).rows
    assert isinstance(rows, StreamedRows)
    return rows


@pytest.mark.parametrize("piece_bytes", [1, 500, 1 << 20])
@pytest.mark.parametrize("end", ["", "\n"])
def test_pieces_hold_every_row_once_and_in_order(tmp_path: Path, piece_bytes: int, end: str) -> None:
    write(tmp_path, [20, 1, 33])
    last = tmp_path / "day_2"
    last.write_text(last.read_text(encoding="ascii").rstrip("\n") + end, encoding="ascii")
    rows = streamed(tmp_path, piece_bytes)
    tables = [pa.Table.from_batches(pickle.loads(pickle.dumps(piece)).batches()) for piece in rows.pieces]
    assert [len(table) for table in tables] == [piece.num_rows for piece in rows.pieces]
    assert pa.concat_tables(tables).equals(pa.Table.from_batches(rows.batches()))
    assert pa.concat_tables(tables)["I1"].to_pylist() == [*range(20), 0, *range(33)]
    assert (len(tables) == 3) == (piece_bytes == 1 << 20)


def test_a_compressed_file_is_one_piece(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "train.txt.gz", "wt") as file:
        file.writelines(line(number) for number in range(100))
    (piece,) = streamed(tmp_path, 100).pieces
    assert pa.Table.from_batches(piece.batches())["I1"].to_pylist() == list(range(100))


def test_a_row_that_is_none_is_named_by_its_line_whatever_piece_it_is_in(tmp_path: Path) -> None:
    text = [line(number) for number in range(40)]
    text[30] = line(30, fields=7)
    (tmp_path / "train.txt").write_text("".join(text), encoding="ascii")
    pieces = streamed(tmp_path, 1000).pieces
    with pytest.raises(DataError, match=r"train\.txt, line 31 has 7 columns, expected 40"):
        for piece in pieces:
            list(piece.batches())


def test_a_file_that_grew_is_refused_by_its_last_piece(tmp_path: Path) -> None:
    write(tmp_path, [40])
    pieces = streamed(tmp_path, 1000).pieces
    with (tmp_path / "day_0").open("a", encoding="ascii") as file:
        file.write(line(40))
    assert len(list(pieces[0].batches())) == 1
    with pytest.raises(DataError, match="day_0 has 41 rows, and had 40 when it was first read"):
        list(pieces[-1].batches())


@given(
    periods=st.lists(st.integers(1, 30), min_size=2, max_size=5),
    cuts=st.sets(st.integers(1, 149)),
    split=st.sampled_from(["random", "time"]),
    seed=st.integers(0, 100),
)
def test_a_row_validates_whatever_piece_it_is_in(periods: list[int], cuts: set[int], split: str, seed: int) -> None:
    num_rows = sum(periods)
    config = PrepareConfig(split=split, valid_share=min(0.3, periods[-1] / num_rows), split_seed=seed)
    rows = pa.record_batch({"row": range(num_rows)})

    def valid(stretch: pa.RecordBatch, first_row: int) -> list[Any]:
        parts = split_batches([stretch], periods, config, first_row)
        return [row for name, table in parts if name == "valid" for row in table["row"].to_pylist()]

    edges = [0, *sorted(cut for cut in cuts if cut < num_rows), num_rows]
    apart = [valid(rows.slice(begin, end - begin), begin) for begin, end in pairwise(edges)]
    assert [row for part in apart for row in part] == valid(rows, 0)


@pytest.mark.parametrize(("part_rows", "rows_per_slice"), [(1, 3), (7, 7), (10, 4), (4, 10), (30, 11), (100, 100)])
def test_slices_hold_the_rows_of_all_parts_in_order(tmp_path: Path, part_rows: int, rows_per_slice: int) -> None:
    rows = pa.table({"row": range(100)})
    writer = PartWriter(tmp_path / "parts", rows_per_file=part_rows)
    writer.write(rows)
    split = RawSplit(name="train", parts=tuple(writer.close()), num_rows=100, schema=rows.schema)
    slices = [
        pa.concat_tables(part.read() for part in parts)["row"].to_pylist() for parts in split.slices(rows_per_slice)
    ]
    assert [row for part in slices for row in part] == list(range(100))
    assert {len(part) for part in slices[:-1]} <= {rows_per_slice}
