import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.loader.chunks import ChunkStream, Ragged
from workflows.errors import ConfigError, DataError


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
        assert tags.nnzs.dtype == np.int32
        assert len(tags.values) == tags.nnzs.sum()
        parts = np.split(tags.values, np.cumsum(tags.nnzs)[:-1])
        rows += [(int(row), part.tolist()) for row, part in zip(batch["row"], parts, strict=True)]
    return rows


def no_thread_left() -> bool:
    return not any(thread.name.startswith("rankline-chunks") for thread in threading.enumerate())


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    row_group_size=st.integers(1, 25),
    batch_size=st.integers(1, 60),
    parts=st.integers(1, 5),
    shuffle=st.booleans(),
    buffer_size=st.sampled_from([0.01, 200.0, 1.0]),
)
def test_every_row_comes_exactly_once_with_its_own_list(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    row_group_size: int,
    batch_size: int,
    parts: int,
    shuffle: bool,
    buffer_size: float,
) -> None:
    paths = write(tmp_path_factory.mktemp("parquet"), sizes, row_group_size)
    stream = ChunkStream(
        paths, ["row", "tags"], batch_size=batch_size, shuffle=shuffle, parts_per_chunk=parts, buffer_size=buffer_size
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
        stream = ChunkStream(paths, ["row", "tags"], batch_size=64, seed=seed, parts_per_chunk=3)
        return [row for row, _ in rows_of(stream.batches(epoch))]

    assert order(1, 0) == order(1, 0)
    assert len({tuple(order(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4


def test_parts_of_one_chunk_are_mixed_across_files(tmp_path: Path) -> None:
    stream = ChunkStream(write(tmp_path, [100, 100], 20), ["row", "tags"], batch_size=20, parts_per_chunk=10)
    first = next(stream.batches())["row"]
    assert {int(row) // 100 for row in first} == {0, 1}
    assert len({int(row) // 20 for row in first}) > 3


def test_a_small_buffer_closes_chunks_early(tmp_path: Path) -> None:
    paths = write(tmp_path, [200], 10)

    def mixed_groups(buffer_size: float) -> int:
        stream = ChunkStream(paths, ["row", "tags"], batch_size=10, parts_per_chunk=20, buffer_size=buffer_size)
        return len({int(row) // 10 for row in next(stream.batches())["row"]})

    assert mixed_groups(buffer_size=1.0) == 1  # one byte: a row group at a time
    assert mixed_groups(buffer_size=1e6) > 3


def test_a_consumer_that_stops_early_leaves_no_thread(tmp_path: Path) -> None:
    batches = ChunkStream(write(tmp_path, [500], 10), ["row"], batch_size=5).batches()
    next(batches)
    assert not no_thread_left()
    batches.close()  # type: ignore[attr-defined]
    assert no_thread_left()


def test_a_damaged_row_group_is_reported_to_the_consumer(tmp_path: Path) -> None:
    path = write(tmp_path, [1000], 100)[0]
    stream = ChunkStream([path], ["row"], batch_size=10)
    content = bytearray(path.read_bytes())
    content[4:2000] = bytes(1996)  # the footer stays whole
    path.write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        list(stream.batches())
    assert no_thread_left()


@pytest.mark.parametrize(
    "rows",
    [pa.array([1, None, 3]), pa.array([[1], None, [3]]), pa.array([[1], [2, None], []])],
    ids=["row", "list", "value"],
)
def test_nulls_are_refused(tmp_path: Path, rows: pa.Array) -> None:
    pq.write_table(pa.table({"good": [1, 2, 3], "row": rows}), tmp_path / "nulls.parquet")
    with pytest.raises(DataError, match=r"nulls\.parquet: columns \['row'\] hold nulls"):
        list(ChunkStream([tmp_path / "nulls.parquet"], ["good", "row"], batch_size=2).batches())


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
            ChunkStream([path], columns, batch_size=2)


@pytest.mark.parametrize("option", [{"batch_size": 0}, {"parts_per_chunk": 0}, {"buffer_size": 0}])
def test_options_out_of_range_are_refused(tmp_path: Path, option: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        ChunkStream(write(tmp_path, [4], 2), ["row"], **{"batch_size": 2, **option})  # type: ignore[arg-type]
