from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.training.data.loader import schedule as loader_schedule
from rankline.training.data.loader.schedule import (
    BatchRun,
    Epoch,
    GroupRows,
    Schedule,
    ShuffleBlock,
    rows_from_each_group,
)
from rankline.workflows.core.errors import ConfigError

GROUPS = st.lists(st.integers(1, 40), min_size=1, max_size=8)


def schedule(group_rows: list[int], **options: Any) -> Schedule:
    defaults = {
        "batch_size": 8, "shuffle": True, "seed": 0, "parts_per_chunk": 2, "block_bytes": 10**9, "drop_last": False,
        "global_rank": 0, "global_size": 1, "pad": False,
    }  # fmt: skip
    return Schedule(
        group_rows=tuple(group_rows), group_bytes=tuple(8 * rows for rows in group_rows), **{**defaults, **options}
    )


def rows_of(blocks: Any) -> list[tuple[int, int]]:
    return [(part.group, row) for block in blocks for part in block.rows for row in range(part.start, part.stop)]


def bounds(plan: Schedule) -> list[int]:
    return [plan.first_row(batch) for batch in range(plan.num_batches + 1)]


@given(
    group_rows=GROUPS,
    parts_per_chunk=st.integers(1, 5),
    block_bytes=st.integers(1, 600),
    shuffle=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_blocks_of_an_epoch_hold_every_row_once(
    group_rows: list[int], parts_per_chunk: int, block_bytes: int, shuffle: bool, epoch: int
) -> None:
    plan = schedule(group_rows, parts_per_chunk=parts_per_chunk, block_bytes=block_bytes, shuffle=shuffle)
    rows = rows_of(plan.blocks(epoch))
    everything = [(group, row) for group, size in enumerate(group_rows) for row in range(size)]
    assert (sorted(rows) if shuffle else rows) == everything


@given(group_rows=GROUPS, parts_per_chunk=st.integers(1, 4), block_bytes=st.integers(80, 600))
def test_block_takes_no_more_memory_than_it_may_but_for_rounding_up_to_rows(
    group_rows: list[int], parts_per_chunk: int, block_bytes: int
) -> None:
    plan = schedule(group_rows, parts_per_chunk=parts_per_chunk, block_bytes=block_bytes)
    assert all(8 * block.num_rows <= block_bytes + 8 * parts_per_chunk for block in plan.blocks(0))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"block_bytes": 40}, [GroupRows(0, 0, 5, 5, False), GroupRows(0, 5, 10, 5, True), GroupRows(1, 0, 4)]),
        ({"block_bytes": 79}, [GroupRows(0, 0, 5, 5, False), GroupRows(0, 5, 10, 5, True), GroupRows(1, 0, 4)]),
        ({"block_bytes": 80}, [GroupRows(0, 0, 10), GroupRows(1, 0, 4)]),
        ({"block_bytes": 60, "global_size": 2}, [GroupRows(0, 0, 7, 7)]),  # decoded whole it would be too large
        ({"block_bytes": 80, "global_size": 2}, [GroupRows(0, 0, 7)]),
        ({"block_bytes": 28, "global_size": 2}, [GroupRows(0, 0, 4, 4, False), GroupRows(0, 4, 7, 4, True)]),
        ({"block_bytes": 60, "global_size": 2, "global_rank": 1}, [GroupRows(0, 7, 10, 3), GroupRows(1, 0, 4)]),
    ],
)
def test_oversized_row_group_is_streamed(options: dict[str, int], expected: list[GroupRows]) -> None:
    plan = schedule([10, 4], shuffle=False, **options)
    assert [rows for block in plan.blocks(0) for rows in block.rows] == expected


def test_block_has_as_many_rows_of_each_of_its_row_groups() -> None:
    blocks = list(schedule([10, 10, 10], parts_per_chunk=2, block_bytes=100).blocks(0))
    assert [[(rows.start, rows.stop) for rows in block.rows] for block in blocks] == [
        *([(start, start + 5)] * 2 for start in (0, 5)),
        *([(start, start + 5)] for start in (0, 5)),
    ]
    uneven = list(schedule([9, 1], parts_per_chunk=2, block_bytes=48, seed=1).blocks(0))
    assert [{rows.group: rows.num_rows for rows in block.rows} for block in uneven] == [{0: 3, 1: 1}, {0: 3}, {0: 3}]


@given(
    group_rows=GROUPS,
    batch_size=st.integers(2, 20),
    global_size=st.integers(1, 5),
    pad=st.booleans(),
    drop_last=st.booleans(),
    epoch=st.integers(0, 2),
)
def test_workers_share_the_rows_in_the_same_number_of_batches(
    group_rows: list[int], batch_size: int, global_size: int, pad: bool, drop_last: bool, epoch: int
) -> None:
    total = sum(group_rows)
    if total < global_size:
        return
    plans = [
        schedule(
            group_rows, batch_size=batch_size, global_rank=rank, global_size=global_size, pad=pad, drop_last=drop_last
        )
        for rank in range(global_size)
    ]
    assert len({plan.num_batches for plan in plans}) == 1
    for plan in plans:
        sizes = np.diff(bounds(plan))
        assert all(1 <= size <= batch_size for size in sizes)
        assert all(sizes[:-2] == batch_size)
        assert sum(sizes) == plan.num_rows == len(rows_of(plan.blocks(epoch)))
        if drop_last:
            assert all(sizes == batch_size)
    rows = [row for plan in plans for row in rows_of(plan.blocks(epoch))]
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


def test_worker_short_of_a_row_splits_its_last_batch() -> None:
    plans = [schedule([17], batch_size=8, global_rank=rank, global_size=2) for rank in range(2)]
    assert [bounds(plan) for plan in plans] == [[0, 7, 8], [0, 8, 9]]


def test_order_differs_from_epoch_to_epoch_and_from_seed_to_seed_and_comes_again() -> None:
    def order(seed: int, epoch: int) -> list[ShuffleBlock]:
        return list(schedule([5] * 30, seed=seed).blocks(epoch))

    assert order(3, 1) == order(3, 1)
    orders = [order(seed, epoch) for seed in (0, 1) for epoch in (0, 1, 2)]
    assert all(orders.count(one) == 1 for one in orders)


@given(group_rows=GROUPS, batch_size=st.integers(1, 50), epoch=st.integers(0, 3), data=st.data())
def test_runs_hold_the_rows_of_the_batches(group_rows: list[int], batch_size: int, epoch: int, data: Any) -> None:
    plan = schedule(group_rows, batch_size=batch_size, block_bytes=200)
    order = Epoch(plan, epoch)
    ends = np.cumsum([block.num_rows for block in order.blocks])

    def rows(run: BatchRun) -> list[int]:
        return [
            int(ends[part.block]) - order.blocks[part.block].num_rows + row
            for part in run.rows
            for row in range(part.start, part.stop)
        ]

    runs = list(order.runs(0))
    assert [row for run in runs for row in rows(run)] == list(range(plan.num_rows))
    firsts = [run.batch + number for run in runs for number in range(len(run.cuts) - 1)]
    assert firsts == list(range(plan.num_batches))
    for run in runs:
        assert all(part.start < part.stop for part in run.rows)
        assert run.num_rows == len(rows(run))
        assert list(run.cuts) == [
            plan.first_row(run.batch + n) - plan.first_row(run.batch) for n in range(len(run.cuts))
        ]
    start = data.draw(st.integers(0, plan.num_batches))
    rest = list(order.runs(start))
    assert rest == runs[len(runs) - len(rest) :]  # the same runs, or the order would differ
    assert not rest or rest[0].batch <= start < rest[0].batch + len(rest[0].cuts) - 1


@given(group_rows=GROUPS, epoch=st.integers(0, 3))
def test_row_groups_and_runs_of_several_batches_have_orders_of_their_own(group_rows: list[int], epoch: int) -> None:
    order = Epoch(schedule(group_rows, batch_size=3), epoch)
    for number, block in enumerate(order.blocks):
        for place, part in enumerate(block.rows):
            rows = order.group_order(number, place)
            assert rows is not None
            assert sorted(rows.tolist()) == list(range(part.num_rows))
    for run in order.runs(0):
        rows = order.run_order(run)
        assert (rows is None) == (len(run.cuts) == 2)
        assert rows is None or sorted(rows.tolist()) == list(range(run.num_rows))


def test_orders_differ_between_row_groups_runs_epochs_seeds_and_workers() -> None:
    def orders(number: int, **options: int) -> list[tuple[int, ...]]:
        epoch = Epoch(schedule([800] * 3, **options), number)
        rows = [epoch.group_order(0, 0), epoch.group_order(0, 1), epoch.run_order(next(iter(epoch.runs(0))))]
        return [tuple(order.tolist()) for order in rows if order is not None]

    assert orders(0) == orders(0)
    found = [*orders(0), *orders(1), *orders(0, seed=1), *orders(0, global_rank=1, global_size=2)]
    assert len(set(found)) == 4 * 3
    assert all(list(order) != sorted(order) for order in found)


@pytest.mark.parametrize("global_rank", [0, 1])
def test_rows_of_a_batch_are_about_equally_long_and_batches_come_by_chance(global_rank: int) -> None:
    def batches(number: int, lengths: np.ndarray) -> tuple[list[list[int]], list[list[int]]]:
        """Rows of each batch, with buckets and without."""
        epoch = Epoch(schedule([60], batch_size=4, global_rank=global_rank, global_size=2), number)
        (run,) = epoch.runs(0)
        order = epoch.run_order(run)
        assert order is not None
        bucketed = epoch.bucketed(run, order, lengths)
        return tuple([part.tolist() for part in np.split(rows, run.cuts[1:-1])] for rows in (bucketed, order))

    lengths = np.random.default_rng(0).integers(1, 9, 30).astype(np.int32)
    found, _ = batches(0, lengths)
    assert sorted(row for batch in found for row in batch) == list(range(30))
    of_batches = [lengths[batch].tolist() for batch in found]
    assert [len(batch) for batch in found] == [4] * 7 + [2]
    assert of_batches[:-1] != sorted(of_batches[:-1])
    assert sorted(of_batches[:-1]) + of_batches[-1:] == [
        sorted(lengths.tolist())[begin : begin + 4] for begin in range(0, 30, 4)
    ]
    assert batches(0, lengths)[0] == found
    assert batches(1, lengths)[0] != found
    alike, order = batches(0, np.ones(30, np.int32))
    assert alike[-1] == order[-1]
    assert alike != order
    assert sorted(alike) == sorted(order)


def test_interrupted_epoch_keeps_its_order() -> None:
    """Of an earlier release too: seeds, epochs, workers and places in the epoch lead to these orders."""
    plan = schedule([7, 6, 5, 9], batch_size=4, block_bytes=80, seed=7, global_rank=1, global_size=2)
    epoch = Epoch(plan, 1)
    assert [[tuple(rows) for rows in block.rows] for block in epoch.blocks] == [
        [(3, 1, 5, 4, False), (1, 0, 3, 3, False)],
        [(3, 5, 9, 4, True), (1, 3, 6, 3, True)],
    ]
    orders = [[epoch.group_order(block, number) for number in (0, 1)] for block in (0, 1)]
    assert [[rows.tolist() for rows in of_block if rows is not None] for of_block in orders] == [
        [[3, 2, 0, 1], [2, 0, 1]], [[0, 1, 3, 2], [1, 2, 0]]
    ]  # fmt: skip
    epoch = Epoch(schedule([9, 8], batch_size=2, block_bytes=80, seed=7), 1)
    first, _, last = epoch.runs(0)
    assert (first.batch, first.cuts, last.batch, last.cuts) == (0, (0, 2, 4, 6, 8), 5, (0, 2, 4, 6, 7))
    found = [(run, order) for run in (first, last) if (order := epoch.run_order(run)) is not None]
    assert [order.tolist() for _, order in found] == [[1, 6, 0, 3, 2, 5, 4, 7], [1, 6, 0, 3, 2, 5, 4]]
    by_length = [epoch.bucketed(run, order, np.arange(run.num_rows, dtype=np.int32) % 3) for run, order in found]
    assert [rows.tolist() for rows in by_length] == [[6, 0, 3, 1, 2, 5, 4, 7], [4, 2, 3, 1, 6, 0, 5]]


def test_small_batches_are_gathered_up_to_so_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_schedule, "_ROWS_AT_ONCE", 6)
    epoch = Epoch(schedule([20], batch_size=2, seed=7), 1)
    runs = list(epoch.runs(0))
    assert [(run.batch, run.cuts) for run in runs] == [
        *((batch, (0, 2, 4, 6)) for batch in (0, 3, 6)), (9, (0, 2))
    ]  # fmt: skip
    assert list(epoch.runs(4)) == runs[1:]
    orders = [order.tolist() for run in runs if (order := epoch.run_order(run)) is not None]
    assert orders == [[1, 4, 2, 0, 3, 5], [1, 4, 2, 0, 3, 5], [3, 5, 1, 4, 2, 0]]
    whole = epoch.group_order(0, 0)
    assert whole is not None
    assert whole.tolist() == [6, 9, 15, 14, 4, 2, 0, 16, 18, 13, 8, 17, 19, 7, 11, 12, 3, 10, 5, 1]
    assert [run.cuts for run in Epoch(schedule([20], batch_size=6), 0).runs(0)] == [(0, 6)] * 3 + [(0, 2)]


def test_share_has_nothing_of_the_row_groups_beside_it() -> None:
    plan = schedule([4, 4, 4, 4], shuffle=False, global_rank=1, global_size=4)
    assert [block.rows for block in plan.blocks(0)] == [(GroupRows(1, 0, 4),)]


def test_group_mixed_with_others_is_split_to_fit_a_block() -> None:
    plan = schedule([10, 4], block_bytes=100, global_size=2, seed=0)
    assert {rows for block in plan.blocks(0) for rows in block.rows} == {
        GroupRows(0, 0, 4, 4, False), GroupRows(0, 4, 7, 4)
    }  # fmt: skip
    whole = schedule([10, 4], block_bytes=160, global_size=2, seed=0)
    assert {rows for block in whole.blocks(0) for rows in block.rows} == {GroupRows(0, 0, 7)}


def test_rows_that_are_equally_long_stay_in_the_order_of_chance() -> None:
    epoch = Epoch(schedule([600], batch_size=300), 0)
    (run,) = epoch.runs(0)
    order = epoch.run_order(run)
    assert order is not None
    lengths = (np.arange(600) % 2).astype(np.int32)
    found = epoch.bucketed(run, order, lengths)
    parts = [order[lengths[order] == length].tolist() for length in (0, 1)]
    assert found.tolist() in (parts[0] + parts[1], parts[1] + parts[0])


def test_unshuffled_rows_have_no_order_of_their_own() -> None:
    order = Epoch(schedule([20, 20], batch_size=3, shuffle=False), 0)
    assert order.group_order(0, 0) is None
    assert all(order.run_order(run) is None for run in order.runs(0))


@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=9))
def test_row_groups_are_dealt_one_row_at_a_time_and_evenly(sizes: list[int]) -> None:
    total = sum(sizes)
    counts = [rows_from_each_group(sizes, num_rows) for num_rows in range(total + 1)]
    assert counts[0] == [0] * len(sizes)
    assert counts[-1] == sizes
    assert (np.abs(np.diff(counts, axis=0)).sum(axis=1) == 1).all()
    assert (np.diff(counts, axis=0) >= 0).all()
    expected = np.outer(np.arange(total + 1), np.array(sizes) / total)
    assert np.abs(counts - expected).max() <= len(sizes) / 2 + 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"parts_per_chunk": 0}, "parts_per_chunk is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"global_size": 0}, "global_size is 0"),
        (
            {"global_rank": 2, "global_size": 2},
            r"^global_rank is 2, expected at least 0 and less than global_size \(2\)\.$",
        ),
        ({"global_rank": -1}, "global_rank is -1"),
        ({"global_rank": 5, "global_size": 11}, "10 rows cannot be split into the same number of batches per worker"),
        (
            {"batch_size": 1, "global_size": 3},
            r"^10 rows cannot be split into the same number of batches per worker \(batch_size is 1, global_size "
            r"is 3\)\. Set pad=True, or use fewer workers\.$",
        ),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        schedule([10], **options)


def test_padding_serves_more_workers_than_rows() -> None:
    plans = [schedule([2], global_rank=rank, global_size=5, pad=True) for rank in range(5)]
    assert [rows_of(plan.blocks(0)) for plan in plans] == [[(0, 0)], [(0, 1)], [(0, 1)], [(0, 1)], [(0, 1)]]
