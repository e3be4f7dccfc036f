"""Splits of rows, files of a split, and what raw rows share."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.preprocess import RowsConfig
from rankline.workflows.preprocess.partitions import NUM_FILES, FilesWriter, RawSplit, layout_of_split
from rankline.workflows.preprocess.raw import StreamedRows, fingerprint_of, latest_of_each_pair
from rankline.workflows.preprocess.splits import random_split, split_batches, split_by_column, split_rows, time_split

SHARES = st.integers(1, 99).map(lambda percent: percent / 100)


def assert_sizes(train, valid, num_rows, share):
    percent = round(share * 100)
    assert len(valid) == math.ceil(num_rows * percent / 100)
    assert sorted(np.concatenate((train, valid))) == list(range(num_rows))


def test_random_split_validates_on_the_end_of_the_permutation():
    order = np.random.default_rng(42).permutation(100_836)
    train, valid = random_split(100_836, 0.2, 42)
    assert (len(train), len(valid)) == (80_668, 20_168)
    np.testing.assert_array_equal(train, order[:80_668])
    np.testing.assert_array_equal(valid, order[80_668:])


@given(timestamps=st.lists(st.integers(0, 20), min_size=2, max_size=200), share=SHARES)
def test_time_split_validates_on_the_latest_rows_and_keeps_the_order_of_ties(timestamps, share):
    num_rows = len(timestamps)
    assume(math.ceil(num_rows * round(share * 100) / 100) < num_rows)
    train, valid = time_split(timestamps, share)
    assert_sizes(train, valid, num_rows, share)
    order = [(timestamps[row], row) for row in (*train, *valid)]
    assert order == sorted(order)


@pytest.mark.parametrize("share", [0.0, 1.0, math.nan])
def test_share_outside_0_to_1_is_refused(share):
    with pytest.raises(ConfigError, match="expected a number between 0 and 1"):
        random_split(100, share, 1)


@pytest.mark.parametrize(("num_rows", "share"), [(0, 0.2), (1, 0.2), (3, 0.9)])
def test_empty_part_is_refused(num_rows, share):
    with pytest.raises(ConfigError, match="expected rows in both parts"):
        random_split(num_rows, share, 1)
    with pytest.raises(ConfigError, match="expected rows in both parts"):
        time_split(list(range(num_rows)), share)


def streamed(periods, batch_size):
    """Rows that count from 0, in batches of one period each."""
    schema = pa.schema({"row": pa.int64()})

    def batches():
        first = 0
        for size in periods:
            for start in range(first, first + size, batch_size):
                rows = np.arange(start, min(start + batch_size, first + size))
                yield pa.record_batch([rows], schema=schema)
            first += size

    return StreamedRows(schema=schema, periods=tuple(periods), batches=batches)


def split_streamed(periods, batch_size, **choices):
    parts = {"train": [], "valid": []}
    for name, table in split_rows(streamed(periods, batch_size), RowsConfig(**choices), "row"):
        assert len(table)
        parts[name] += table["row"].to_pylist()
    return parts["train"], parts["valid"]


PERIODS = st.lists(st.integers(1, 50), min_size=1, max_size=6)


@given(periods=PERIODS, share=SHARES, batch_size=st.integers(1, 60))
def test_stream_split_by_time_validates_on_the_fewest_whole_last_periods(periods, share, batch_size):
    num_rows, wanted = sum(periods), sum(periods) * share
    if len(periods) > 1:
        num_last = next(n for n in range(1, len(periods) + 1) if sum(periods[-n:]) >= wanted - 1e-6)
        num_valid = sum(periods[-num_last:])
    else:
        num_valid = math.ceil(round(wanted, 6))
    if num_valid == num_rows:
        with pytest.raises(ConfigError, match="Use a(nother)? share"):
            split_streamed(periods, batch_size, split="time", valid_share=share)
        return
    train, valid = split_streamed(periods, batch_size, split="time", valid_share=share)
    assert train == list(range(num_rows - num_valid))
    assert valid == list(range(num_rows - num_valid, num_rows))


@given(
    periods=PERIODS.filter(lambda sizes: sum(sizes) > 20),
    seed=st.integers(0, 99),
    sizes=st.tuples(*[st.integers(1, 60)] * 2),
)
def test_stream_split_at_random_does_not_depend_on_its_batches(periods, seed, sizes):
    one, other = (split_streamed(periods, size, split="random", valid_share=0.3, split_seed=seed) for size in sizes)
    assert one == other
    expected = np.random.default_rng(seed).random(sum(periods)) < 0.3
    assert one[1] == np.flatnonzero(expected).tolist()
    assert one[0] == np.flatnonzero(~expected).tolist()


def test_table_without_time_is_split_at_random_only():
    rows = pa.table({"row": range(10)})
    with pytest.raises(ConfigError, match="the rows have no time"):
        list(split_rows(rows, RowsConfig(split="time"), None))
    assert [len(part) for _, part in split_rows(rows, RowsConfig(split="random"), None)] == [8, 2]


def stream_of(table, rows_each=7):
    batches = table.to_batches(max_chunksize=rows_each)
    return StreamedRows(schema=table.schema, periods=(len(table),), batches=lambda: iter(batches))


def parts_of(rows, config, *, time=None, group=None):
    by = split_by_column(rows, config, time, group)
    parts = {"train": [], "valid": []}
    for name, part in split_rows(rows, config, time, by):
        parts[name].append(part)
    return {name: pa.concat_tables(found) for name, found in parts.items()}


def test_groups_stay_together_and_are_split_alike_in_tables_and_streams():
    groups = [f"g{number * number % 97}" if number % 10 else None for number in range(2_000)]
    table = pa.table({"group": groups, "row": range(2_000)})
    config = RowsConfig(split="group", valid_share=0.25)
    parts = parts_of(table, config, group="group")
    of_train, of_valid = (set(part["group"].to_pylist()) for part in parts.values())
    assert not of_train & of_valid
    assert None in of_train
    assert 0.1 < len(of_valid) / len(of_train | of_valid) < 0.4
    streamed = parts_of(stream_of(table), config, group="group")
    assert streamed["valid"]["row"].to_pylist() == parts["valid"]["row"].to_pylist()
    other = parts_of(table, RowsConfig(split="group", valid_share=0.25, split_seed=1), group="group")
    assert set(other["valid"]["group"].to_pylist()) != of_valid


def test_rows_without_groups_cannot_be_split_by_them():
    with pytest.raises(ConfigError, match="no group"):
        split_by_column(pa.table({"row": [1, 2]}), RowsConfig(split="group"), None, None)


def test_stream_in_any_order_is_split_by_its_times():
    times = np.random.default_rng(0).permutation(1_000)
    table = pa.table({"time": pa.array(times, mask=times < 5)})
    parts = parts_of(stream_of(table), RowsConfig(split="time", valid_share=0.3), time="time")
    assert sorted(parts["valid"]["time"].to_pylist()) == list(range(700, 1_000))
    assert parts["train"]["time"].null_count == 5
    same = stream_of(pa.table({"time": [3] * 50}))
    with pytest.raises(ConfigError, match="no cutoff time can split them"):
        parts_of(same, RowsConfig(split="time"), time="time")


def test_rows_without_a_time_train_whether_in_memory_or_streamed():
    rows = pa.table({"time": pa.array([None, 5, 1, None, 4, 2], pa.int64())})
    config = RowsConfig(split="time", valid_share=1 / 3)
    stream = StreamedRows(schema=rows.schema, periods=(len(rows),), batches=rows.to_batches)
    for raw in (rows, stream):
        by = split_by_column(raw, config, "time", None)
        parts = [part for name, part in split_rows(raw, config, "time", by) if name == "valid"]
        assert sorted(pa.concat_tables(parts)["time"].to_pylist()) == [4, 5]


@pytest.mark.parametrize("sizes", [[], [0], [1, 40, 7, 0, 7], [3] * 30])
@pytest.mark.parametrize(("rows_per_file", "rows_per_group"), [(7, 3), (9, 20)])
def test_written_rows_keep_their_order(
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


@pytest.mark.parametrize(("num_rows", "num_files"), [(8, 4), (100_000, 10)])
def test_split_has_as_many_files_as_its_rows_need(tmp_path: Path, num_rows: int, num_files: int) -> None:
    rows_per_file, rows_per_group = layout_of_split("train", num_rows, max_file_rows=10_000, max_group_rows=2_000)
    writer = FilesWriter(tmp_path / "train", rows_per_file=rows_per_file, rows_per_group=rows_per_group)
    writer.write(pa.table({"id": range(num_rows)}))
    files = writer.close()
    assert len(files) == num_files >= NUM_FILES["train"]
    assert all(pq.ParquetFile(path).metadata.num_rows == num_rows // num_files for path in files)


IDS = st.one_of(st.integers(0, 3), st.sampled_from([-(2**63), 2**63 - 1]))


@given(st.lists(st.tuples(IDS, IDS, st.integers(0, 3)), max_size=40))
def test_latest_row_of_each_pair_is_kept(rows):
    best = {}
    for number, (first, second, timestamp) in enumerate(rows):
        best[first, second] = max(best.get((first, second), (-1, -1)), (timestamp, number))
    first, second, timestamps = ([row[i] for row in rows] for i in range(3))
    keep = latest_of_each_pair(
        pa.chunked_array([pa.array(first[:5], pa.int64()), pa.array(first[5:], pa.int64())]),
        pa.chunked_array([pa.array(second, pa.int64())]),
        np.array(timestamps, dtype=np.int64),
    )
    assert sorted(np.flatnonzero(keep)) == sorted(number for _, number in best.values())


def test_fingerprint_depends_on_the_bytes_and_not_on_the_place(tmp_path):
    for name, content in {"a": b"1", "b": b"1", "c": b"2"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.csv").write_bytes(content)
    a, b, c = (fingerprint_of([tmp_path / name / "rows.csv"]) for name in "abc")
    assert a == b
    assert a != c


@given(
    periods=st.lists(st.integers(1, 30), min_size=2, max_size=5),
    cuts=st.sets(st.integers(1, 149)),
    split=st.sampled_from(["random", "time"]),
    seed=st.integers(0, 100),
)
def test_row_validates_whatever_shard_it_is_in(periods: list[int], cuts: set[int], split: str, seed: int) -> None:
    num_rows = sum(periods)
    config = RowsConfig(split=split, valid_share=min(0.3, periods[-1] / num_rows), split_seed=seed)
    rows = pa.record_batch({"row": range(num_rows)})

    def valid(stretch: pa.RecordBatch, first_row: int) -> list[Any]:
        parts = split_batches([stretch], periods, config, first_row)
        return [row for name, table in parts if name == "valid" for row in table["row"].to_pylist()]

    edges = [0, *sorted(cut for cut in cuts if cut < num_rows), num_rows]
    apart = [valid(rows.slice(begin, end - begin), begin) for begin, end in pairwise(edges)]
    assert [row for part in apart for row in part] == valid(rows, 0)


@pytest.mark.parametrize(("partition_rows", "rows_per_file"), [(1, 3), (10, 4), (30, 11), (100, 100)])
def test_files_hold_rows_of_partitions_in_order(tmp_path: Path, partition_rows: int, rows_per_file: int) -> None:
    rows = pa.table({"row": range(100)})
    writer = FilesWriter(tmp_path / "partitions", rows_per_file=partition_rows, dictionaries=())
    writer.write(rows)
    split = RawSplit(name="train", partitions=tuple(writer.close()), num_rows=100, schema=rows.schema)
    files = [pa.concat_tables(rows.read() for rows in file)["row"].to_pylist() for file in split.cut(rows_per_file)]
    assert [row for file in files for row in file] == list(range(100))
    assert {len(file) for file in files[:-1]} <= {rows_per_file}
