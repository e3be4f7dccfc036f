import gc
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
    gc.collect()  # loaders that other tests have dropped in the middle of a pass
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
def test_loader_yields_each_row_once_with_its_own_list(
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


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("buffer_size", [0.01, "2kB"])
@pytest.mark.parametrize("bucket_by", [None, "tags"])
def test_epoch_resumes_at_any_batch(
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


def test_unshuffled_batches_are_views_of_what_was_read(tmp_path: Path) -> None:
    batches = list(BatchStream(write(tmp_path, [64], 64), ["row"], batch_size=16, shuffle=False).batches())
    addresses = [batch["row"].ctypes.data for batch in batches]  # type: ignore[union-attr]
    assert np.diff(addresses).tolist() == [16 * 8] * 3
    assert not any(batch["row"].flags.owndata for batch in batches)  # type: ignore[union-attr]


class Doubled:
    """Makes twice_row from row."""

    columns = ("row", "text")

    def __init__(self, num_rows: int | None = None) -> None:
        self._num_rows = num_rows

    def __call__(self, table: pa.Table) -> pa.Table:
        twice = [2 * row for row in table["row"].to_pylist()]
        made = pa.table({"twice": twice, "row": table["row"], "text": table["text"]})
        return made.slice(0, self._num_rows)


def test_transform_makes_the_columns_from_what_is_read(tmp_path: Path) -> None:
    rows = pa.table({"row": range(90), "text": [str(row) for row in range(90)]})
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=20)
    stream = BatchStream(tmp_path, ["twice", "row"], batch_size=32, transform=Doubled())
    batches = list(stream.batches())
    assert sorted(row for batch in batches for row in batch["twice"].tolist()) == list(range(0, 180, 2))  # type: ignore[union-attr]
    assert all((batch["twice"] == 2 * batch["row"]).all() for batch in batches)  # type: ignore[operator, union-attr]
    for columns, transform, message in (
        (["twice"], Doubled(num_rows=3), r"a\.parquet: the workflow returned 3 rows for (20|10)"),
        (["other"], Doubled(), "does not output column 'other'. It outputs"),
        (["text"], Doubled(), "outputs string in column 'text', expected numbers"),
    ):
        with pytest.raises(DataError, match=message):
            list(BatchStream(tmp_path, columns, batch_size=32, transform=transform).batches())


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
    with pytest.raises(DataError, match=rf"nulls\.parquet: column 'rating' contains {count} nulls, expected none"):
        list(BatchStream([tmp_path / "nulls.parquet"], ["good", "rating"], batch_size=2).batches())
    stream = BatchStream(tmp_path, ["rating"], batch_size=3, shuffle=False, fill_nulls={"rating": 7})
    column = next(stream.batches())["rating"]
    assert (column.values if isinstance(column, Ragged) else column).tolist() == filled
    with pytest.raises(DataError, match=r"nulls\.parquet: column 'rating' contains .*cannot be replaced by 0\.5"):
        list(BatchStream(tmp_path, ["rating"], batch_size=3, fill_nulls={"rating": 0.5}).batches())


@pytest.mark.parametrize("write_statistics", [True, False])
def test_ids_outside_their_cardinality_are_named(tmp_path: Path, write_statistics: bool) -> None:
    tags = pa.array([[1, 2], [], [9]])
    path = tmp_path / "ids.parquet"
    pq.write_table(pa.table({"user": [0, 5, -1], "tags": tags}), path, write_statistics=write_statistics)
    for column, cardinality, value in (("user", 10, -1), ("tags", 9, 9)):
        stream = BatchStream(path, [column], batch_size=2, cardinalities={column: cardinality})
        with pytest.raises(DataError, match=rf"ids\.parquet: column '{column}' contains id {value}, expected .* to"):
            list(stream.batches())
        assert no_thread_left()
    assert len(list(BatchStream(path, ["tags"], batch_size=2, cardinalities={"tags": 10}).batches())) == 2


def test_null_in_the_rows_of_another_worker_does_not_matter(tmp_path: Path) -> None:
    lists = pa.array([[row] for row in range(99)] + [[None]])
    pq.write_table(pa.table({"tags": lists}), tmp_path / "a.parquet")
    options: dict[str, Any] = {"batch_size": 50, "global_size": 2, "shuffle": False}
    batch = next(BatchStream(tmp_path, ["tags"], global_rank=0, **options).batches())
    assert batch["tags"].values.tolist() == list(range(50))  # type: ignore[union-attr]
    with pytest.raises(DataError, match="contains 1 nulls"):
        list(BatchStream(tmp_path, ["tags"], global_rank=1, **options).batches())


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    ("column", "dtype", "expected"),
    [
        (pa.array([1, 2, 3]), np.float32, [1, 2, 3]),
        (pa.array([1.0, 2.0, 3.0]), np.int64, [1, 2, 3]),  # ids as pandas writes them where some are missing
        (pa.array([[1, 2], [], [3]]), np.int32, [1, 2, 3]),
        (pa.array([[np.float16(0.5)]] * 3, pa.list_(pa.float16())), np.float16, [0.5] * 3),
    ],
    ids=["numbers", "float ids", "lists", "half lists"],
)
def test_stream_gives_columns_the_requested_dtype(
    tmp_path: Path, column: pa.Array, dtype: Any, expected: list[float], shuffle: bool
) -> None:
    pq.write_table(pa.table({"x": column}), tmp_path / "a.parquet")
    found = next(BatchStream(tmp_path, ["x"], batch_size=3, shuffle=shuffle, dtypes={"x": dtype}).batches())["x"]
    values = found.values if isinstance(found, Ragged) else found
    assert values.dtype == dtype
    assert sorted(values.tolist()) == expected


@pytest.mark.parametrize(
    ("column", "options", "message"),
    [
        (pa.array([0.5, 2.0]), {"dtypes": {"x": np.int64}}, "contains 0.5.*, expected ids"),
        (pa.array([1.0, np.nan]), {"dtypes": {"x": np.int64}}, "contains nan.*, expected ids"),
        (pa.array([2**63 + 1], pa.uint64()), {"dtypes": {"x": np.int64}}, "contains 9223.*, expected ids"),
        (pa.array([1.0, np.nan]), {"finite": ["x"]}, "contains nan, expected finite"),
        (pa.array([1.0, np.inf]), {"finite": ["x"]}, "contains inf, expected finite"),
    ],
)
def test_stream_names_file_and_column_of_invalid_numbers(
    tmp_path: Path, column: pa.Array, options: dict[str, Any], message: str
) -> None:
    pq.write_table(pa.table({"x": column, "other": column}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=rf"a\.parquet: column 'x' {message}"):
        list(BatchStream(tmp_path, ["x", "other"], batch_size=2, **options).batches())
    assert len(list(BatchStream(tmp_path, ["other"], batch_size=2).batches())) == 1


def stop_early(batches: Any, paths: list[Path]) -> None:
    batches.close()


def drop(batches: Any, paths: list[Path]) -> None:
    del batches


def remove_a_file(batches: Any, paths: list[Path]) -> None:
    paths[1].unlink()
    with pytest.raises(DataError, match=r"part_1\.parquet was removed after"):
        list(batches)


def damage_a_file(batches: Any, paths: list[Path]) -> None:
    content = bytearray(paths[1].read_bytes())
    content[4:1500] = bytes(1496)  # the footer stays whole
    status = paths[1].stat()
    paths[1].write_bytes(content)
    os.utime(paths[1], ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(DataError, match="damaged"):
        list(batches)


@pytest.mark.parametrize("end", [stop_early, drop, remove_a_file, damage_a_file])
def test_stream_leaves_no_thread_however_an_epoch_ends(tmp_path: Path, end: Any) -> None:
    paths = write(tmp_path, [400, 400], 20)
    batches = [BatchStream(paths, ["row"], batch_size=10, parts_per_chunk=1, shuffle=False).batches()]
    next(batches[0])
    assert not no_thread_left()
    end(batches.pop(), paths)
    assert no_thread_left()


def test_stream_refuses_buckets_by_an_unread_column(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"bucket_by is 'tags', expected one of .*\['row'\]"):
        BatchStream(write(tmp_path, [10], 5), ["row"], batch_size=2, bucket_by="tags")
