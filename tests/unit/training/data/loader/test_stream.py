import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.training.data.loader.stream import BatchStream
from rankline.workflows.core.errors import ConfigError, DataError
from rankline.workflows.schema.ragged import Ragged
from tests.examples import examples


def write(directory: Path, sizes: list[int], row_group_size: int) -> list[Path]:
    """Files whose rows are (row, list of `row % 4` values that all start from row)."""
    paths, start = [], 0
    for number, size in enumerate(sizes):
        ids = list(range(start, start + size))
        lists = pa.array([[row * 10 + i for i in range(row % 4)] for row in ids], pa.list_(pa.int64()))
        paths.append(directory / f"part_{number}.parquet")
        pq.write_table(pa.table({"row": pa.array(ids, pa.int64()), "tags": lists}), paths[-1], row_group_size)
        start += size
    return paths


def rows_of(batches: Any) -> list[tuple[int, list[int]]]:
    rows = []
    for batch in batches:
        tags = batch["tags"]
        assert isinstance(tags, Ragged)
        assert tags.lengths.dtype == np.int32
        assert len(tags.values) == tags.lengths.sum()
        parts = np.split(tags.values, np.cumsum(tags.lengths)[:-1])
        rows += [(int(row), part.tolist()) for row, part in zip(batch["row"], parts, strict=True)]
    return rows


def no_thread_left() -> bool:
    return not any(thread.name.startswith("rankline-loader") for thread in threading.enumerate())


@examples(1 / 2)
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    row_group_size=st.integers(1, 25),
    batch_size=st.integers(1, 60),
    parts=st.integers(1, 5),
    shuffle=st.booleans(),
    buffer_size=st.sampled_from([0.01, 2000, 200, 1, "1kB"]),
    bucket_by=st.sampled_from([None, "row", "tags"]),
)
def test_every_row_comes_exactly_once_with_its_own_list(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    row_group_size: int,
    batch_size: int,
    parts: int,
    shuffle: bool,
    buffer_size: float | str,
    bucket_by: str | None,
) -> None:
    paths = write(tmp_path_factory.mktemp("parquet"), sizes, row_group_size)
    stream = BatchStream(
        paths,
        ["row", "tags"],
        batch_size=batch_size,
        shuffle=shuffle,
        parts_per_chunk=parts,
        buffer_size=buffer_size,
        bucket_by=bucket_by,
    )
    batches = list(stream.batches(epoch=3))
    expected = [(row, [row * 10 + i for i in range(row % 4)]) for row in range(sum(sizes))]
    got = rows_of(batches)
    assert (sorted(got) if shuffle else got) == expected
    assert stream.num_rows == sum(sizes)
    assert len(batches) == len(stream)
    assert all(len(batch["row"]) == batch_size for batch in batches[:-1])


def test_order_follows_from_seed_and_epoch_and_differs_between_them(tmp_path: Path) -> None:
    paths = write(tmp_path, [300, 200], 50)

    def order(seed: int, epoch: int) -> list[int]:
        stream = BatchStream(paths, ["row", "tags"], batch_size=64, seed=seed, parts_per_chunk=3)
        return [row for row, _ in rows_of(stream.batches(epoch))]

    assert order(1, 0) == order(1, 0)
    assert len({tuple(order(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4


def test_rows_mix_across_the_whole_data_set(tmp_path: Path) -> None:
    """Over an epoch the rows of a batch come from everywhere, and where a row lies says nothing about when it comes."""
    paths = write(tmp_path, [2000] * 4, 100)
    stream = BatchStream(paths, ["row"], batch_size=100, parts_per_chunk=8)
    batches = [batch["row"] for batch in stream.batches()]
    order = np.concatenate(batches)
    correlation = np.corrcoef(order, np.arange(len(order)))[0, 1]
    assert abs(correlation) < 0.2  # of 80 row groups; 1 when read in order
    # In order, a batch is one row group of one file. Here it has rows of about eight, of several files.
    assert np.mean([len(np.unique(rows // 100)) for rows in batches]) > 6
    assert np.mean([len(np.unique(rows // 2000)) for rows in batches]) > 2.5
    assert np.mean(np.abs(np.diff(order)) == 1) < 0.01  # neighbours in the file are not neighbours any more


def test_within_one_row_group_rows_mix_too(tmp_path: Path) -> None:
    stream = BatchStream(write(tmp_path, [4000], 4000), ["row"], batch_size=100, buffer_size="64kB")
    order = np.concatenate([batch["row"] for batch in stream.batches()])
    assert np.mean(np.abs(np.diff(order)) == 1) < 0.01


def test_a_small_buffer_takes_smaller_blocks_and_mixes_as_many_row_groups(tmp_path: Path) -> None:
    paths = write(tmp_path, [2000], 200)
    sizes = {"row": 8}

    def groups_and_blocks(buffer_size: float | str) -> tuple[int, int]:
        stream = BatchStream(paths, ["row"], batch_size=50, parts_per_chunk=5, buffer_size=buffer_size)
        blocks = list(stream._schedule.blocks(0))
        assert sum(block.num_rows for block in blocks) == 2000
        return len({int(row) // 200 for row in next(stream.batches())["row"]}), len(blocks)

    assert groups_and_blocks("1MB") == (5, 2)
    # A quarter of the buffer is one block: 125 rows, so 25 of each of five row groups.
    assert groups_and_blocks(4 * 125 * sizes["row"]) == (5, 16)


def test_workers_get_every_row_once_in_equally_many_batches(tmp_path: Path) -> None:
    paths = write(tmp_path, [101, 52, 30], 13)
    seen: list[int] = []
    counts = set()
    for rank in range(3):
        stream = BatchStream(paths, ["row", "tags"], batch_size=16, global_rank=rank, global_size=3, buffer_size="1kB")
        batches = list(stream.batches(epoch=2))
        counts.add((len(batches), len(stream)))
        seen += [row for row, _ in rows_of(batches)]
        assert stream.num_rows == sum(len(batch["row"]) for batch in batches)
    assert counts == {(4, 4)}
    assert sorted(seen) == list(range(183))


def test_padding_is_the_only_thing_that_doubles_rows(tmp_path: Path) -> None:
    paths = write(tmp_path, [50], 7)

    def rows(pad: bool) -> list[int]:
        streams = [
            BatchStream(paths, ["row", "tags"], batch_size=8, global_rank=rank, global_size=4, pad=pad)
            for rank in range(4)
        ]
        return sorted(row for stream in streams for row, _ in rows_of(stream.batches()))

    assert rows(pad=False) == list(range(50))
    assert sorted(set(rows(pad=True))) == list(range(50))
    assert len(rows(pad=True)) == 52


def test_drop_last_leaves_out_what_does_not_fill_a_batch(tmp_path: Path) -> None:
    stream = BatchStream(write(tmp_path, [50], 7), ["row"], batch_size=8, drop_last=True, shuffle=False)
    batches = [batch["row"].tolist() for batch in stream.batches()]  # type: ignore[union-attr]
    assert [len(batch) for batch in batches] == [8] * 6
    assert [row for batch in batches for row in batch] == list(range(48))
    assert (len(stream), stream.num_rows) == (6, 48)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("buffer_size", [0.01, "2kB"])
@pytest.mark.parametrize("bucket_by", [None, "tags"])
def test_an_epoch_goes_on_at_any_batch(
    tmp_path: Path, shuffle: bool, buffer_size: float | str, bucket_by: str | None
) -> None:
    paths = write(tmp_path, [60, 45], 20)
    stream = BatchStream(
        paths,
        ["row", "tags"],
        batch_size=9,
        shuffle=shuffle,
        parts_per_chunk=2,
        buffer_size=buffer_size,
        bucket_by=bucket_by,
    )
    whole = [rows_of([batch]) for batch in stream.batches(epoch=1)]
    for start in range(len(stream) + 1):
        assert [rows_of([batch]) for batch in stream.batches(epoch=1, start=start)] == whole[start:]


def test_buckets_have_lists_of_like_length_in_batches_of_random_order(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lists = pa.array([list(range(length)) for length in rng.integers(0, 50, 1000)], pa.list_(pa.int64()))
    pq.write_table(pa.table({"row": range(1000), "tags": lists}), tmp_path / "part.parquet", 100)
    options: dict[str, Any] = {"batch_size": 50, "parts_per_chunk": 10, "seed": 1}

    def lengths(bucket_by: str | None, epoch: int = 0) -> list[Any]:
        stream = BatchStream(tmp_path, ["row", "tags"], bucket_by=bucket_by, **options)
        return [batch["tags"].lengths for batch in stream.batches(epoch)]  # type: ignore[union-attr]

    padded = {bucket_by: sum(len(of) * of.max() for of in lengths(bucket_by)) for bucket_by in ("tags", None)}
    assert padded["tags"] < 1.1 * sum(sum(of) for of in lengths("tags")) < 0.6 * padded[None]
    means = [of.mean() for of in lengths("tags")]
    assert means != sorted(means)
    assert means != [of.mean() for of in lengths("tags", epoch=1)]


def test_len_and_num_rows_come_from_the_footers_alone(tmp_path: Path) -> None:
    path = write(tmp_path, [1000], 100)[0]
    stream = BatchStream([path], ["row"], batch_size=64)
    path.unlink()
    assert (len(stream), stream.num_rows) == (16, 1000)


def test_columns_have_the_types_that_are_asked_for(tmp_path: Path) -> None:
    paths = write(tmp_path, [20], 5)
    for shuffle in (False, True):
        stream = BatchStream(
            paths, ["row", "tags"], batch_size=20, shuffle=shuffle, dtypes={"row": np.float32, "tags": np.int32}
        )
        batch = next(stream.batches())
        assert batch["row"].dtype == np.float32  # type: ignore[union-attr]
        assert batch["tags"].values.dtype == np.int32  # type: ignore[union-attr]
        assert sorted(batch["row"].tolist()) == list(range(20))  # type: ignore[union-attr]


def test_unshuffled_batches_are_views_of_what_was_read(tmp_path: Path) -> None:
    batches = list(BatchStream(write(tmp_path, [64], 64), ["row"], batch_size=16, shuffle=False).batches())
    addresses = [batch["row"].ctypes.data for batch in batches]  # type: ignore[union-attr]
    assert np.diff(addresses).tolist() == [16 * 8] * 3
    assert not any(batch["row"].flags.owndata for batch in batches)  # type: ignore[union-attr]


def test_lists_of_shuffled_batches_begin_where_tensorflow_need_not_copy_them(tmp_path: Path) -> None:
    stream = BatchStream(write(tmp_path, [90, 70], 20), ["tags"], batch_size=7, shuffle=True, parts_per_chunk=2)
    values = [batch["tags"].values for batch in stream.batches()]  # type: ignore[union-attr]
    assert sum(map(len, values)) == sum(row % 4 for row in range(160))
    assert [array.ctypes.data % 64 for array in values if len(array)] == [0] * len(values)


class Doubled:
    """Makes twice_row from row."""

    columns = ("row", "text")

    def __init__(self, num_rows: int | None = None) -> None:
        self._num_rows = num_rows

    def __call__(self, table: pa.Table) -> pa.Table:
        twice = [2 * row for row in table["row"].to_pylist()]
        made = pa.table({"twice": twice, "row": table["row"], "text": table["text"]})
        return made.slice(0, self._num_rows)


def test_a_transform_makes_the_columns_from_what_is_read(tmp_path: Path) -> None:
    rows = pa.table({"row": range(90), "text": [str(row) for row in range(90)]})
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=20)
    stream = BatchStream(tmp_path, ["twice", "row"], batch_size=32, transform=Doubled())
    batches = list(stream.batches())
    assert sorted(row for batch in batches for row in batch["twice"].tolist()) == list(range(0, 180, 2))  # type: ignore[union-attr]
    assert all((batch["twice"] == 2 * batch["row"]).all() for batch in batches)  # type: ignore[operator, union-attr]
    for columns, transform, message in (
        (["twice"], Doubled(num_rows=3), r"a\.parquet: the workflow made 3 rows of (20|10)"),
        (["other"], Doubled(), "does not make column 'other'. It makes"),
        (["text"], Doubled(), "makes string of column 'text', expected numbers"),
    ):
        with pytest.raises(DataError, match=message):
            list(BatchStream(tmp_path, columns, batch_size=32, transform=transform).batches())


def test_a_consumer_that_stops_early_leaves_no_thread(tmp_path: Path) -> None:
    batches = BatchStream(write(tmp_path, [500], 10), ["row"], batch_size=5).batches()
    next(batches)
    assert not no_thread_left()
    batches.close()  # type: ignore[attr-defined]
    assert no_thread_left()


def test_a_batch_that_is_dropped_ends_the_threads_too(tmp_path: Path) -> None:
    batches = BatchStream(write(tmp_path, [500], 10), ["row"], batch_size=5).batches()
    next(batches)
    del batches
    assert no_thread_left()


def test_ctrl_c_ends_a_program_that_is_reading(tmp_path: Path) -> None:
    write(tmp_path, [2000], 10)
    program = (
        "import signal, sys; from rankline.training.data.loader.stream import BatchStream\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # what a shell starts in the background ignores it
        "stream = BatchStream(sys.argv[1], ['row', 'tags'], batch_size=16)\n"
        "for epoch in range(10**9):\n"
        "    for number, batch in enumerate(stream.batches(epoch)):\n"
        "        if (epoch, number) == (0, 3): print('reading', flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout
            assert child.stdout.readline() == "reading\n"
            os.kill(child.pid, signal.SIGINT)
            _, errors = child.communicate()
        finally:
            child.kill()
    assert child.returncode == -signal.SIGINT
    assert errors.strip().splitlines()[-1] == "KeyboardInterrupt"


def test_a_damaged_row_group_is_reported_to_the_consumer(tmp_path: Path) -> None:
    path = write(tmp_path, [1000], 100)[0]
    stream = BatchStream([path], ["row"], batch_size=10)
    content = bytearray(path.read_bytes())
    content[4:2000] = bytes(1996)  # the footer stays whole
    path.write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        list(stream.batches())
    assert no_thread_left()


@pytest.mark.parametrize(
    ("rows", "count", "filled"),
    [
        (pa.array([1, None, 3]), 1, [1, 7, 3]),
        (pa.array([[1], None, [3]]), 1, [1, 3]),
        (pa.array([[1], [2, None], [None]]), 2, [1, 2, 7, 7]),
    ],
    ids=["row", "list", "value"],
)
def test_nulls_are_refused_or_filled(tmp_path: Path, rows: pa.Array, count: int, filled: list[int]) -> None:
    pq.write_table(pa.table({"good": [1, 2, 3], "rating": rows}), tmp_path / "nulls.parquet")
    with pytest.raises(DataError, match=rf"nulls\.parquet: column 'rating' holds {count} nulls, expected none"):
        list(BatchStream([tmp_path / "nulls.parquet"], ["good", "rating"], batch_size=2).batches())
    stream = BatchStream(tmp_path, ["rating"], batch_size=3, shuffle=False, fill_nulls={"rating": 7})
    column = next(stream.batches())["rating"]
    assert (column.values if isinstance(column, Ragged) else column).tolist() == filled
    with pytest.raises(DataError, match=r"nulls\.parquet: column 'rating' holds .*cannot become 0\.5"):
        list(BatchStream(tmp_path, ["rating"], batch_size=3, fill_nulls={"rating": 0.5}).batches())


@pytest.mark.parametrize("write_statistics", [True, False])
def test_ids_outside_their_cardinality_are_named(tmp_path: Path, write_statistics: bool) -> None:
    tags = pa.array([[1, 2], [], [9]])
    path = tmp_path / "ids.parquet"
    pq.write_table(pa.table({"user": [0, 5, -1], "tags": tags}), path, write_statistics=write_statistics)
    for column, cardinality, value in (("user", 10, -1), ("tags", 9, 9)):
        stream = BatchStream(path, [column], batch_size=2, cardinalities={column: cardinality})
        with pytest.raises(DataError, match=rf"ids\.parquet: column '{column}' holds the id {value}, expected .* to"):
            list(stream.batches())
        assert no_thread_left()
    assert len(list(BatchStream(path, ["tags"], batch_size=2, cardinalities={"tags": 10}).batches())) == 2


def test_a_file_that_vanishes_in_mid_epoch_is_named_and_leaves_no_thread(tmp_path: Path) -> None:
    paths = write(tmp_path, [400, 400], 20)
    batches = BatchStream(paths, ["row"], batch_size=10, parts_per_chunk=1, shuffle=False).batches()
    next(batches)
    paths[1].unlink()
    with pytest.raises(DataError, match=r"part_1\.parquet has disappeared since"):
        list(batches)
    assert no_thread_left()


def test_files_that_cannot_be_streamed_are_refused_at_once(tmp_path: Path) -> None:
    good = write(tmp_path, [10], 5)[0]
    (tmp_path / "cut.parquet").write_bytes(good.read_bytes()[:-20])
    pq.write_table(pa.table({"row": ["a", "b"]}), tmp_path / "text.parquet")
    for path, columns, message in (
        (tmp_path / "absent.parquet", ["row"], "does not exist"),
        (tmp_path / "cut.parquet", ["row"], "not a whole Parquet file"),
        (good, ["row", "other"], r"lacks the columns \['other'\]"),
        (tmp_path / "text.parquet", ["row"], "expected numbers"),
    ):
        with pytest.raises(DataError, match=message):
            BatchStream([path], columns, batch_size=2)


def test_buckets_by_a_column_that_is_not_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"bucket_by is 'tags', expected one of .*\['row'\]"):
        BatchStream(write(tmp_path, [10], 5), ["row"], batch_size=2, bucket_by="tags")


@pytest.mark.parametrize(
    "option",
    [{"batch_size": 0}, {"parts_per_chunk": 0}, {"buffer_size": 0}, {"buffer_size": "lots"}, {"global_rank": 1}],
)
def test_options_out_of_range_are_refused(tmp_path: Path, option: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        BatchStream(write(tmp_path, [4], 2), ["row"], **{"batch_size": 2, **option})  # type: ignore[arg-type]


def test_a_null_in_the_rows_of_another_worker_does_not_matter(tmp_path: Path) -> None:
    lists = pa.array([[row] for row in range(99)] + [[None]])
    pq.write_table(pa.table({"tags": lists}), tmp_path / "a.parquet")
    options: dict[str, Any] = {"batch_size": 50, "global_size": 2, "shuffle": False}
    batch = next(BatchStream(tmp_path, ["tags"], global_rank=0, **options).batches())
    assert batch["tags"].values.tolist() == list(range(50))  # type: ignore[union-attr]
    with pytest.raises(DataError, match="holds 1 nulls"):
        list(BatchStream(tmp_path, ["tags"], global_rank=1, **options).batches())


@pytest.mark.parametrize(
    ("values", "kind", "lost"),
    [([0.5, 2.0], pa.float64(), "0.5"), ([1.0, float("nan")], pa.float64(), "nan"), ([2**63 + 1], pa.uint64(), "9223")],
)
def test_ids_that_are_no_whole_numbers_are_refused(tmp_path: Path, values: Any, kind: Any, lost: str) -> None:
    pq.write_table(pa.table({"user": pa.array(values, kind)}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=rf"a\.parquet: column 'user' holds {lost}.*, expected ids"):
        list(BatchStream(tmp_path, ["user"], batch_size=2, dtypes={"user": np.int64}).batches())


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused_where_they_have_to_be(tmp_path: Path, odd: float) -> None:
    pq.write_table(pa.table({"label": [1.0, odd], "price": [odd, 2.0]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=rf"a\.parquet: column 'label' holds {odd}, expected finite numbers"):
        list(BatchStream(tmp_path, ["label", "price"], batch_size=2, finite=["label"]).batches())
    assert len(list(BatchStream(tmp_path, ["label", "price"], batch_size=2).batches())) == 1


def test_ids_that_pandas_wrote_as_floats_are_read(tmp_path: Path) -> None:
    pq.write_table(pa.table({"user": [1.0, 2.0]}), tmp_path / "a.parquet")
    batch = next(BatchStream(tmp_path, ["user"], batch_size=2, shuffle=False, dtypes={"user": np.int64}).batches())
    assert batch["user"].tolist() == [1, 2]  # type: ignore[union-attr]


def test_lists_of_half_precision_are_read(tmp_path: Path) -> None:
    pq.write_table(pa.table({"h": pa.array([[np.float16(0.5)]] * 4, pa.list_(pa.float16()))}), tmp_path / "a.parquet")
    batch = next(BatchStream(tmp_path, ["h"], batch_size=4).batches())
    assert batch["h"].values.tolist() == [0.5] * 4  # type: ignore[union-attr]


def test_a_small_share_of_a_large_row_group_is_read_as_a_stream(tmp_path: Path) -> None:
    stream = BatchStream(
        write(tmp_path, [4000], 4000), ["row"], batch_size=10, buffer_size="4kB", global_size=50, global_rank=7
    )
    rows = [rows for block in stream._schedule.blocks(0) for rows in block.rows]
    assert all(some.rows_at_once for some in rows)
    assert sum(len(batch["row"]) for batch in stream.batches()) == 80  # type: ignore[arg-type]
