import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.preprocess import RowsConfig
from rankline.workflows.preprocess.raw import StreamedRows
from rankline.workflows.preprocess.splits import random_split, split_by_column, split_of_stream, split_rows, time_split

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


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_a_share_outside_0_to_1_is_refused(share):
    with pytest.raises(ConfigError, match="expected a number between 0 and 1"):
        random_split(100, share, 1)


@pytest.mark.parametrize(("num_rows", "share"), [(0, 0.2), (1, 0.2), (3, 0.9)])
def test_an_empty_part_is_refused(num_rows, share):
    with pytest.raises(ConfigError, match="expected rows in both parts"):
        random_split(num_rows, share, 1)
    with pytest.raises(ConfigError, match="expected rows in both parts"):
        time_split(list(range(num_rows)), share)


def test_a_negative_seed_is_refused():
    with pytest.raises(ConfigError, match="seed is -1"):
        random_split(100, 0.2, -1)


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
def test_a_stream_split_by_time_validates_on_the_fewest_whole_last_periods(periods, share, batch_size):
    num_rows, wanted = sum(periods), sum(periods) * share
    if len(periods) > 1:
        num_last = next(n for n in range(1, len(periods) + 1) if sum(periods[-n:]) >= wanted - 1e-6)
        num_valid = sum(periods[-num_last:])
    else:
        num_valid = math.ceil(round(wanted, 6))
    if num_valid == num_rows:
        with pytest.raises(ConfigError, match="Choose a(nother)? share"):
            split_streamed(periods, batch_size, split="time", valid_share=share)
        return
    train, valid = split_streamed(periods, batch_size, split="time", valid_share=share)
    assert train == list(range(num_rows - num_valid))
    assert valid == list(range(num_rows - num_valid, num_rows))


def test_one_period_of_8000_rows_trains_on_the_first_6400():
    train, valid = split_streamed([8000], 999, split="time", valid_share=0.2)
    assert (len(train), valid[0], valid[-1]) == (6400, 6400, 7999)


@given(
    periods=PERIODS.filter(lambda sizes: sum(sizes) > 20),
    seed=st.integers(0, 99),
    sizes=st.tuples(*[st.integers(1, 60)] * 2),
)
def test_a_stream_split_at_random_does_not_depend_on_its_batches(periods, seed, sizes):
    one, other = (split_streamed(periods, size, split="random", valid_share=0.3, split_seed=seed) for size in sizes)
    assert one == other
    expected = np.random.default_rng(seed).random(sum(periods)) < 0.3
    assert one[1] == np.flatnonzero(expected).tolist()
    assert one[0] == np.flatnonzero(~expected).tolist()


def test_a_table_without_time_is_split_at_random_only():
    rows = pa.table({"row": range(10)})
    with pytest.raises(ConfigError, match="the rows have no time"):
        list(split_rows(rows, RowsConfig(split="time"), None))
    assert [len(part) for _, part in split_rows(rows, RowsConfig(split="random"), None)] == [8, 2]


def test_periods_that_leave_nothing_to_train_on_are_refused_with_the_share_that_does():
    with pytest.raises(ConfigError, match=r"\[90, 10\] rows. Choose a share of at most 0\.100"):
        split_of_stream([90, 10], 0.2, by_time=True, seed=0)


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


def test_a_stream_in_any_order_is_split_by_its_times():
    times = np.random.default_rng(0).permutation(1_000)
    table = pa.table({"time": pa.array(times, mask=times < 5)})
    parts = parts_of(stream_of(table), RowsConfig(split="time", valid_share=0.3), time="time")
    assert sorted(parts["valid"]["time"].to_pylist()) == list(range(700, 1_000))
    assert parts["train"]["time"].null_count == 5
    same = stream_of(pa.table({"time": [3] * 50}))
    with pytest.raises(ConfigError, match="no time parts them"):
        parts_of(same, RowsConfig(split="time"), time="time")


def test_rows_without_a_time_train_whether_in_memory_or_streamed():
    rows = pa.table({"time": pa.array([None, 5, 1, None, 4, 2], pa.int64())})
    config = RowsConfig(split="time", valid_share=1 / 3)
    stream = StreamedRows(schema=rows.schema, periods=(len(rows),), batches=rows.to_batches)
    for raw in (rows, stream):
        by = split_by_column(raw, config, "time", None)
        parts = [part for name, part in split_rows(raw, config, "time", by) if name == "valid"]
        assert sorted(pa.concat_tables(parts)["time"].to_pylist()) == [4, 5]
