"""Columns of a plan, and the index of keys, whose layout a saved plan and its native twin share."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rankline.workflows.nvt.keys import bucket_of, hash_ids, hash_strings
from rankline.workflows.plan import KeyIndex
from rankline.workflows.plan.columns import (
    AnyColumn,
    Lists,
    Vector,
    from_arrow,
    is_missing,
    is_string,
    lists_of,
    mask_of,
    num_rows_of,
    padded_of,
    take,
    take_or_missing,
    vector_of,
    with_one_more,
)
from rankline.workflows.schema.ragged import Padded
from tests.factories.plan_columns import listed

NAN = float("nan")
YES_NO = np.array([True, False])


def columns() -> dict[str, AnyColumn]:
    """Of each kind three rows, the second missing."""
    arrays = {
        "strings": pa.array(["é", None, "b"]),
        "numbers": pa.array([1, None, 3], pa.int16()),
        "flags": pa.array([True, None, False]),
        "floats": pa.array([1.5, None, 2.5], pa.float32()),
        "lists": pa.array([[1, None], None, [3]], pa.list_(pa.int32())),
        "lists of strings": pa.array([["a"], None, []], pa.large_list(pa.large_string())),
    }
    return {name: from_arrow(array) for name, array in arrays.items()}


ROWS: dict[str, list[Any]] = {
    "strings": ["é".encode(), None, b"b"],
    "numbers": [1, None, 3],
    "flags": [True, None, False],
    "floats": [1.5, None, 2.5],
    "lists": [[1, None], None, [3]],
    "lists of strings": [[b"a"], None, []],
}


@pytest.mark.parametrize("kind", ROWS)
def test_arrow_array_is_a_column_of_the_same_rows(kind: str) -> None:
    column = columns()[kind]
    assert listed(column) == ROWS[kind]
    assert num_rows_of(column) == 3
    assert (column.valid is None) == (kind == "floats")  # NaN is missing
    elements = column.elements if isinstance(column, Lists) else column
    assert is_string(elements) or elements.values.dtype == {
        "numbers": "int16",
        "flags": "bool",
        "floats": "float32",
        "lists": "int32",
    }.get(kind)


@pytest.mark.parametrize(
    ("array", "rows"),
    [
        (pa.array(["a", "b", "a"]).dictionary_encode(), [b"a", b"b", b"a"]),
        (pa.array([b"a", b""]), [b"a", b""]),
        (pa.array(["a"], pa.large_string()), [b"a"]),
        (pa.nulls(2), [None, None]),
        (pa.array([1, 2]), [1, 2]),
        (pa.array([[1], [2, 3]]), [[1], [2, 3]]),
    ],
)
def test_arrow_types_are_read_as_columns(array: pa.Array, rows: list[Any]) -> None:
    column = from_arrow(array)
    assert listed(column) == rows
    assert (column.valid is None) == (None not in rows)


def test_unsupported_arrow_types_are_rejected_by_name() -> None:
    with pytest.raises(
        ValueError, match=r"^type date32\[day\] is not supported, expected numbers, strings or lists of these$"
    ):
        from_arrow(pa.array([1], pa.date32()))


@pytest.mark.parametrize("kind", ROWS)
def test_rows_are_taken_with_what_is_missing(kind: str) -> None:
    column, rows = columns()[kind], ROWS[kind]
    assert listed(take(column, np.array([2, 1, 1, 0]))) == [rows[2], None, None, rows[0]]
    assert take(column, np.array([2, 0])).valid is None
    assert listed(take_or_missing(column, np.array([-1, 2, -5, 1, 0]))) == [None, rows[2], None, None, rows[0]]
    assert take_or_missing(column, np.array([2, 0])).valid is None
    assert listed(take_or_missing(take(column, np.array([2, 0])), np.array([1, -1]))) == [rows[0], None]


def test_width_is_kept_where_rows_are_taken() -> None:
    column = columns()["lists"]._replace(width=4)
    for found in (take(column, np.array([2])), take_or_missing(column, np.array([2]))):
        assert found.width == 4


@pytest.mark.parametrize(("kind", "value"), [("strings", "z"), ("numbers", 9.0), ("floats", NAN)])
def test_value_can_stand_at_the_end(kind: str, value: Any) -> None:
    column = columns()[kind]
    assert isinstance(column, Vector)
    longer = with_one_more(column, value)
    assert listed(longer) == ROWS[kind] + [{"strings": b"z", "numbers": 9, "floats": None}[kind]]
    assert is_string(longer) or longer.values.dtype == column.values.dtype
    whole = with_one_more(take(column, np.array([0, 2])), value)
    assert whole.valid is None


def test_mask_exists_only_with_missing_values() -> None:
    assert mask_of(np.array([True, True])) is None
    assert mask_of(YES_NO) is YES_NO


@pytest.mark.parametrize(
    ("values", "valid", "rows"),
    [
        (np.array([1, 2], "int16"), None, [1, 2]),
        (np.array([1, 2], "int16"), np.array([True, True]), [1, 2]),
        (np.array([1, 2], "int16"), YES_NO, [1, None]),
        (np.array([1.5, 2.5], "float32"), YES_NO, [1.5, None]),
        (np.array(["é", None], object), None, ["é".encode(), None]),
        (np.array([b"a", None], object), ~YES_NO, [None, None]),
        (np.array([b"a", "b"], object), np.array([True, True]), [b"a", b"b"]),
        (pa.array([b"a", b"b"], pa.large_binary()), YES_NO, [b"a", None]),
    ],
)
def test_array_and_its_mask_are_a_vector(values: Any, valid: Any, rows: list[Any]) -> None:
    vector = vector_of(values, valid)
    assert listed(vector) == rows
    assert is_string(vector) or vector.values.dtype == values.dtype
    assert (vector.valid is None) == (None not in rows or (not is_string(vector) and vector.values.dtype.kind == "f"))


def test_padded_lists_become_flat_ones_and_flat_ones_padded() -> None:
    padded = Padded(np.array([[1, 2, 0], [3, 0, 0]]), np.array([2, 1], np.int32))
    assert listed(lists_of(padded)) == [[1, 2], [3]]
    assert lists_of(padded, np.array([True, True])).valid is None
    lacking = lists_of(padded, YES_NO)
    assert listed(lacking) == [[1, 2], None]
    assert lacking.elements.values.tolist() == [1, 2]  # a missing list has none
    again = padded_of(lists_of(padded))
    assert (again.values.tolist(), again.lengths.tolist()) == ([[1, 2], [3, 0]], [2, 1])
    assert again.lengths.dtype == np.int32
    assert padded_of(lists_of(padded)._replace(width=4)).values.shape == (2, 4)
    empty = Lists(Vector(np.zeros(0)), np.zeros(1, np.int64))
    assert padded_of(empty).values.shape == (0, 1)


def test_is_missing_of_each_kind_of_column() -> None:
    assert is_missing(Vector(np.array([1, 2]))).tolist() == [False, False]
    assert is_missing(Vector(np.array([1.0, NAN]))).tolist() == [False, True]
    assert is_missing(lists_of(Padded(np.zeros((2, 1)), np.zeros(2, np.int32)))).tolist() == [False, False]
    assert is_missing(Vector(pa.array([b"a"], pa.large_binary()))).dtype == np.bool_


AT_MOST = 16 * 2 + (1 << 20)  # slots of two keys


def strings(*values: bytes) -> pa.LargeBinaryArray:
    return pa.array(values, pa.large_binary())


def test_dense_numbers_are_positions_between_two_free_slots() -> None:
    index = KeyIndex.build("key", np.array([7, 5], np.int64), 3, missing_row=9)
    assert (index.origin, index.rows.tolist(), index.rows.dtype) == (4, [0, 4, 0, 3, 0], np.int64)
    assert (index.hashes, index.starts, index.strings, index.seed) == (None, None, None, 0)
    assert (index.input, index.inputs, index.num_unknown, index.missing_row) == ("key", ("key",), 3, 9)
    assert index.row_bounds == (0, 9)
    assert KeyIndex.build("key", np.zeros(0, np.int64)).rows.tolist() == [0, 0]
    plain = KeyIndex.build(1, np.array([5], np.int64))
    assert (plain.inputs, plain.num_unknown, plain.missing_row, plain.row_bounds) == ((1,), 1, 0, (0, 1))


def test_numbers_are_dense_up_to_a_number_of_slots_for_each() -> None:
    widest = AT_MOST - 3
    assert len(KeyIndex.build("key", np.array([0, widest], np.int64)).rows) == AT_MOST
    assert KeyIndex.build("key", np.array([0, widest + 1], np.int64)).hashes is not None


def test_hashes_are_sorted_with_their_rows_and_one_more_at_the_end() -> None:
    keys = np.array([3, 1 << 40, 1 << 50], np.int64)
    index = KeyIndex.build("key", keys, 2, missing_row=1)
    assert index.hashes is not None
    assert index.starts is not None
    hashes = hash_ids(keys)
    order = np.argsort(hashes)
    assert index.hashes.tolist() == [*hashes[order].tolist(), 0]
    assert (index.rows.tolist(), index.rows.dtype) == ([*(order + 2).tolist(), 0], np.int32)
    bits = 2  # about one key to a part
    parts = [hash_ >> (64 - bits) for hash_ in hashes[order].tolist()]
    assert index.starts.tolist() == [sum(part < number for part in parts) for number in range((1 << bits) + 1)]
    assert index.starts.dtype == np.int32
    assert (index.missing_row, index.num_unknown, index.origin, index.row_bounds) == (1, 2, 0, (0, 4))


@pytest.mark.parametrize(("num_keys", "num_parts"), [(1, 2), (2, 2), (3, 4), (5, 8), (8, 8), (9, 16)])
def test_index_has_about_one_key_to_a_part(num_keys: int, num_parts: int) -> None:
    index = KeyIndex.build("key", strings(*(str(number).encode() for number in range(num_keys))))
    assert index.starts is not None
    assert len(index.starts) == num_parts + 1


def test_strings_are_kept_beside_their_hashes() -> None:
    keys = strings(b"a", b"b")
    index = KeyIndex.build("key", keys, 4, missing_row=2)
    assert (index.strings, index.seed, index.missing_row, index.num_unknown) == (keys, 0, 2, 4)
    assert index.hashes is not None
    assert sorted(index.hashes[:-1].tolist()) == sorted(hash_strings(keys, 0).tolist())
    none = KeyIndex.build("key", strings())
    assert none.rows_of(strings(b"a", b"")).tolist() == [0, 0]
    with pytest.raises(ValueError, match="^string keys are not distinct$"):
        KeyIndex.build("key", strings(b"a", b"a"))


def test_missing_keys_have_their_row_and_unknown_ones_are_dealt_out() -> None:
    index = KeyIndex.build("key", np.array([10], np.int64), 8, missing_row=5)
    keys, valid = np.array([10, 3, 4, 10]), np.array([True, True, True, False])
    expected = [8, *bucket_of(np.array([3, 4]), 8).tolist(), 5]
    assert index.rows_of(keys, valid).tolist() == expected
    vector = index.run(Vector(keys, valid))
    assert isinstance(vector, Vector)
    assert (vector.values.tolist(), vector.valid) == (expected, None)  # type: ignore[union-attr]
    lists = index.run(Lists(Vector(keys, valid), np.array([0, 3, 4]), None, 3))
    assert isinstance(lists, Lists)
    assert lists.elements.values.tolist() == expected  # type: ignore[union-attr]
    assert (lists.elements.valid, lists.offsets.tolist(), lists.width) == (None, [0, 3, 4], 3)
