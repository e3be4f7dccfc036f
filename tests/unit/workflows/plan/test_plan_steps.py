from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.workflows.core.errors import UnfitError
from rankline.workflows.nvt.keys import bucket_of, bucket_of_many, hash_values
from rankline.workflows.plan.columns import Lists, Vector, is_string
from rankline.workflows.plan.steps import (
    Arithmetic,
    Bucket,
    Cast,
    Clip,
    Combine,
    DatePart,
    Digitize,
    Fill,
    HexToInt,
    IsMissing,
    Limit,
    Narrow,
    NullToEmpty,
    Pad,
    SameLengths,
    Slice,
    Step,
    Take,
)
from rankline.workflows.schema.ragged import offsets_of
from tests.factories.plan_columns import listed

NAN = float("nan")
ROWS = st.lists(st.lists(st.integers(-9, 9), max_size=5), min_size=1, max_size=6)


def vector(values: Sequence[Any], dtype: str = "int64") -> Vector:
    """Numbers of a dtype or, of "string", strings; None where missing."""
    is_there = np.array([value is not None for value in values])
    valid = None if is_there.all() else is_there
    if dtype == "string":
        return Vector(pa.array([value or b"" for value in values], pa.large_binary()), valid)
    return Vector(np.array([0 if value is None else value for value in values], dtype=dtype), valid)


def lists(rows: Sequence[Sequence[Any]], dtype: str = "int64", width: int | None = None) -> Lists:
    elements = vector([value for row in rows for value in row], dtype)
    return Lists(elements, offsets_of(np.array([len(row) for row in rows], np.int64)), None, width)


def test_rows_become_what_a_table_holds_there_in_lists_too() -> None:
    step = Take(table=vector([10, None, 30]))
    assert listed(step.run(vector([2, 1, 0]))) == [30, None, 10]
    found = step.run(lists([[2], [], [1, 0]], width=2))
    assert isinstance(found, Lists)
    assert (listed(found), found.width) == ([[30], [], [None, 10]], 2)


@pytest.mark.parametrize(
    ("column", "dtype", "expected"),
    [
        (vector([1, None, 3]), "float32", [1.0, None, 3.0]),
        (vector([1.5, NAN, -2.5], "float64"), "int32", [1, None, -2]),
        (vector([1.5, 2.5], "float64"), "int32", [1, 2]),
        (vector([1, None, 3]), "int8", [1, None, 3]),
        (vector([0.1], "float64"), "float32", [np.float32(0.1)]),
    ],
)
def test_numbers_take_another_dtype_or_stay_missing(column: Vector, dtype: str, expected: list[Any]) -> None:
    cast = Cast(dtype=dtype).run(column)
    assert isinstance(cast, Vector)
    assert cast.values.dtype == dtype
    assert listed(cast) == expected
    assert (cast.valid is None) == (None not in expected or dtype.startswith("float"))


@pytest.mark.parametrize(
    ("column", "dtype", "refused"),
    [
        (vector([1, 2**31 - 1, -(2**31)]), "int32", None),
        (vector([1, 2**32 + 5]), "int32", 2**32 + 5),
        (vector([7, 300]), "uint8", 300),
        (vector([7, -1]), "uint64", -1),
        (vector([2**63], "uint64"), "int64", 2**63),
        (vector([0, 1, 5]), "bool", 5),
        (vector([5, None]), "int8", None),
        (lists([[1], [2, 300]]), "int8", 300),
    ],
)
def test_numbers_that_a_dtype_does_not_hold_are_refused(
    column: Vector | Lists, dtype: str, refused: int | None
) -> None:
    step = Narrow(column="user", dtype=dtype)
    if refused is None:
        assert listed(step.run(column)) == listed(column)
    else:
        with pytest.raises(
            UnfitError, match=rf"^column 'user' contains {refused}, which is out of range for {dtype}\.$"
        ):
            step.run(column)


def test_lists_that_are_longer_than_a_model_takes_are_refused() -> None:
    step = Limit(column="tags", width=2)
    assert step.run(lists([[1], [2, 3]])).width == 2  # type: ignore[union-attr]
    with pytest.raises(UnfitError, match=r"^column 'tags' has a list of 3 values, expected at most 2\.$"):
        step.run(lists([[1], [1, 2, 3]]))


def test_digits_become_numbers_and_what_is_none_is_missing() -> None:
    assert listed(HexToInt().run(vector([b"0f", b"x", b"FF"], "string"))) == [15.0, None, 255.0]
    assert listed(HexToInt().run(vector([b"0f", None, b"FF"], "string"))) == [15.0, None, 255.0]


def test_part_of_a_time_is_missing_where_the_time_is() -> None:
    days = np.array(["2021-02-03", "1969-12-31"], "datetime64[us]").astype(np.int64).tolist()
    assert listed(DatePart(part="day").run(vector(days))) == [3.0, 31.0]
    assert listed(DatePart(part="year").run(vector([days[0], None, days[1]]))) == [2021.0, None, 1969.0]
    assert listed(DatePart(part="month").run(vector([NAN, days[1]], "float64"))) == [None, 12.0]


def test_function_takes_columns_and_a_number_in_their_order() -> None:
    left, right = vector([7, 9]), vector([2, 4])
    assert listed(Arithmetic(function="subtract").run(left, right)) == [5, 5]
    assert listed(Arithmetic(function="divide", operand=2).run(left)) == [3.5, 4.5]
    assert listed(Arithmetic(function="log").run(vector([1.0, np.e], "float64"))) == [0.0, 1.0]
    halves = Arithmetic(function="multiply", operand=0.5).run(vector([3.0], "float32"))
    assert isinstance(halves, Vector)
    assert halves.values.dtype == np.float32
    assert listed(Arithmetic(function="add", operand=0).run(vector([1, None]))) == [1.0, None]
    assert listed(Arithmetic(function="add").run(lists([[1], [2, 3]]), lists([[4], [5, 6]]))) == [[5], [7, 9]]
    with pytest.raises(ValueError, match=r"^function 'exec' is not one of \['add', .*'subtract'\]$"):
        Arithmetic(function="exec")


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        (vector([b"a", None, b""], "string"), "é", [b"a", "é".encode(), b""]),
        (vector([b"a", b"b"], "string"), "é", [b"a", b"b"]),
        (vector([1, None]), 7, [1, 7]),
        (vector([1, 2]), 7, [1, 2]),
        (vector([NAN, 2.5], "float32"), 0.1, [float(np.float32(0.1)), 2.5]),
    ],
)
def test_value_takes_the_place_of_what_is_missing(column: Vector, value: Any, expected: list[Any]) -> None:
    filled = Fill(value=value).run(column)
    assert isinstance(filled, Vector)
    assert (listed(filled), filled.valid) == (expected, None)
    assert is_string(filled) or filled.values.dtype == column.values.dtype


def test_missing_values_become_a_flag() -> None:
    assert listed(IsMissing().run(vector([1, None]))) == [False, True]
    assert listed(IsMissing().run(lists([[NAN], [1.0]], "float32"))) == [[True], [False]]


def test_numbers_beyond_the_bounds_become_them_and_the_request_stays_as_it_was() -> None:
    column = vector([-5, 0, None, 9])
    assert listed(Clip(lowest=-1, highest=3).run(column)) == [-1, 0, None, 3]
    assert listed(Clip(lowest=None, highest=3).run(column)) == [-5, 0, None, 3]
    assert listed(Clip(lowest=-1, highest=None).run(column)) == [-1, 0, None, 9]
    assert listed(column) == [-5, 0, None, 9]
    assert listed(Clip(lowest=-1, highest=3).run(vector([NAN, 4.5], "float64"))) == [None, 3.0]


def test_bin_is_how_many_boundaries_are_at_most_the_value() -> None:
    column = vector([-1.0, 0.0, 1.5, 2.0, NAN], "float64")
    up, down = (Digitize(boundaries=np.array([0, 1.5, 9]), descending=is_so).run(column) for is_so in (False, True))
    assert isinstance(up, Vector)
    assert isinstance(down, Vector)
    assert (listed(up), listed(down)) == ([0, 1, 2, 2, 3], [3, 2, 1, 1, 0])
    assert up.values.dtype == down.values.dtype == np.int32


def test_rows_of_several_indexes_are_the_digits_of_one_key() -> None:
    columns = [vector(digits) for digits in ([1, 2], [0, 4], [1, 2])]
    assert listed(Combine(sizes=(3, 5, 4)).run(*columns)) == [(1 * 5 + 0) * 4 + 1, (2 * 5 + 4) * 4 + 2]
    with pytest.raises(ValueError, match="zip"):
        Combine(sizes=(3, 5)).run(*columns)


def test_bucket_is_that_of_the_hash_and_what_is_missing_hashes_to_0() -> None:
    column, words = vector([3, None, 5]), vector([b"a", b"b", None], "string")
    buckets = Bucket(num_buckets=7).run(column)
    assert isinstance(buckets, Vector)
    assert buckets.values.dtype == np.int32
    assert listed(buckets) == [bucket_of(np.array([3]), 7)[0], 0, bucket_of(np.array([5]), 7)[0]]
    hashes = [hash_values(column.values), hash_values(words.values)]
    hashes[0][1] = hashes[1][2] = 0
    assert listed(Bucket(num_buckets=7).run(column, words)) == bucket_of_many(hashes, 7).tolist()


@given(ROWS, st.integers(-6, 6), st.integers(-6, 6))
def test_slice_of_each_list_is_that_of_python(rows: list[list[int]], start: int, end: int) -> None:
    column = lists(rows)
    sliced = Slice(start=start, end=end, width=5).run(column)
    assert isinstance(sliced, Lists)
    assert listed(sliced) == [row[start:end] for row in rows]
    assert (sliced.width, sliced.valid) == (5, None)


@given(ROWS, st.integers(0, 5))
def test_shorter_lists_are_padded_at_their_ends(rows: list[list[int]], width: int) -> None:
    padded = Pad(width=width, value=-1).run(lists(rows, width=9))
    assert isinstance(padded, Lists)
    assert listed(padded) == [row + [-1] * (width - len(row)) for row in rows]
    assert (padded.width, padded.valid) == (9, None)


@pytest.mark.parametrize("step", [Pad(width=2, value=0), Slice(start=0, end=2, width=None), NullToEmpty()])
def test_missing_lists_stay_missing_unless_they_are_to_be_empty(step: Step) -> None:
    column = lists([[1, 2], [], [3, 4]])._replace(valid=np.array([True, False, True]))
    found = step.run(column)
    assert isinstance(found, Lists)
    assert listed(found) == [[1, 2], [] if isinstance(step, NullToEmpty) else None, [3, 4]]
    assert found.offsets.tolist() == [0, 2, 2, 4]


@given(ROWS, st.data())
def test_latest_values_take_the_lengths_of_another_column(rows: list[list[int]], data: Any) -> None:
    lengths = data.draw(st.lists(st.integers(0, 5), min_size=len(rows), max_size=len(rows)))
    for like in (lengths, [len(row) for row in rows]):
        cut = SameLengths().run(lists(rows, width=9), lists([[0] * length for length in like], width=7))
        assert isinstance(cut, Lists)
        expected = [
            [0] * (length - len(row)) + row[max(len(row) - length, 0) :] for row, length in zip(rows, like, strict=True)
        ]
        assert (listed(cut), cut.width, cut.valid) == (expected, 7, None)
