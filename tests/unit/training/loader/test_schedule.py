from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.loader.schedule import Chunk, Schedule
from workflows.errors import ConfigError

PARTS = st.lists(st.integers(1, 40), min_size=1, max_size=8)


def schedule(part_rows: list[int], **options: Any) -> Schedule:
    defaults = {
        "batch_size": 8, "shuffle": True, "seed": 0, "parts_per_chunk": 2, "chunk_bytes": 10**9, "drop_last": False,
        "global_rank": 0, "global_size": 1, "pad": False,
    }  # fmt: skip
    return Schedule(
        part_rows=tuple(part_rows), part_bytes=tuple(8 * rows for rows in part_rows), **{**defaults, **options}
    )


def rows_of(chunks: Any) -> list[tuple[int, int]]:
    return [(piece.part, row) for chunk in chunks for piece in chunk.slices for row in range(piece.start, piece.stop)]


def bounds(plan: Schedule) -> list[int]:
    return [plan.first_row(batch) for batch in range(plan.num_batches + 1)]


@given(
    part_rows=PARTS,
    parts_per_chunk=st.integers(1, 5),
    chunk_bytes=st.integers(1, 600),
    shuffle=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_chunks_of_an_epoch_hold_every_row_once(
    part_rows: list[int], parts_per_chunk: int, chunk_bytes: int, shuffle: bool, epoch: int
) -> None:
    plan = schedule(part_rows, parts_per_chunk=parts_per_chunk, chunk_bytes=chunk_bytes, shuffle=shuffle)
    rows = rows_of(plan.chunks(epoch))
    everything = [(part, row) for part, size in enumerate(part_rows) for row in range(size)]
    assert (sorted(rows) if shuffle else rows) == everything


@given(part_rows=PARTS, parts_per_chunk=st.integers(1, 4), chunk_bytes=st.integers(80, 600))
def test_a_chunk_takes_no_more_memory_than_it_may_but_for_rounding_up_to_rows(
    part_rows: list[int], parts_per_chunk: int, chunk_bytes: int
) -> None:
    plan = schedule(part_rows, parts_per_chunk=parts_per_chunk, chunk_bytes=chunk_bytes)
    assert all(8 * chunk.num_rows <= chunk_bytes + 8 * parts_per_chunk for chunk in plan.chunks(0))


@given(
    part_rows=PARTS,
    batch_size=st.integers(2, 20),
    global_size=st.integers(1, 5),
    pad=st.booleans(),
    drop_last=st.booleans(),
    epoch=st.integers(0, 2),
)
def test_workers_share_the_rows_in_the_same_number_of_batches(
    part_rows: list[int], batch_size: int, global_size: int, pad: bool, drop_last: bool, epoch: int
) -> None:
    total = sum(part_rows)
    if total < global_size:
        return
    plans = [
        schedule(
            part_rows, batch_size=batch_size, global_rank=rank, global_size=global_size, pad=pad, drop_last=drop_last
        )
        for rank in range(global_size)
    ]
    assert len({plan.num_batches for plan in plans}) == 1
    for plan in plans:
        sizes = np.diff(bounds(plan))
        assert all(1 <= size <= batch_size for size in sizes)
        assert all(sizes[:-2] == batch_size)
        assert sum(sizes) == plan.num_rows == len(rows_of(plan.chunks(epoch)))
        if drop_last:
            assert all(sizes == batch_size)
    rows = [row for plan in plans for row in rows_of(plan.chunks(epoch))]
    if pad and not drop_last:
        assert len({plan.num_rows for plan in plans}) == 1
        assert len(set(rows)) == total
        assert len(rows) - total < global_size
    elif drop_last:
        assert pad or len(set(rows)) == len(rows)
        assert total - len(set(rows)) < global_size * batch_size + global_size
    else:
        assert len(rows) == len(set(rows)) == total
        assert max(plan.num_rows for plan in plans) - min(plan.num_rows for plan in plans) <= 1


def test_a_worker_short_of_a_row_splits_its_last_batch() -> None:
    plans = [schedule([17], batch_size=8, global_rank=rank, global_size=2) for rank in range(2)]
    assert [bounds(plan) for plan in plans] == [[0, 7, 8], [0, 8, 9]]


def test_order_differs_from_epoch_to_epoch_and_from_seed_to_seed_and_comes_again() -> None:
    def order(seed: int, epoch: int) -> list[Chunk]:
        return list(schedule([5] * 30, seed=seed).chunks(epoch))

    assert order(3, 1) == order(3, 1)
    orders = [order(seed, epoch) for seed in (0, 1) for epoch in (0, 1, 2)]
    assert all(orders.count(one) == 1 for one in orders)


@given(sizes=st.lists(st.integers(0, 30), max_size=6), epoch=st.integers(0, 3))
def test_row_orders_are_permutations(sizes: list[int], epoch: int) -> None:
    orders = list(schedule([1]).row_orders(epoch, sizes))
    assert [sorted(order.tolist()) for order in orders] == [list(range(size)) for size in sizes]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"parts_per_chunk": 0}, "parts_per_chunk is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"global_size": 0}, "global_size is 0"),
        ({"global_rank": 2, "global_size": 2}, "global_rank is 2, expected a whole number below global_size, 2"),
        ({"global_rank": 5, "global_size": 11}, "10 rows do not give each of 11 workers"),
        ({"batch_size": 1, "global_size": 3}, "the same number of batches"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        schedule([10], **options)


def test_padding_serves_more_workers_than_rows() -> None:
    plans = [schedule([2], global_rank=rank, global_size=5, pad=True) for rank in range(5)]
    assert [rows_of(plan.chunks(0)) for plan in plans] == [[(0, 0)], [(0, 1)], [(0, 1)], [(0, 1)], [(0, 1)]]
