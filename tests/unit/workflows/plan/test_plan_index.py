"""How an index of keys is laid out, which a saved plan and its native twin share."""

import numpy as np
import pyarrow as pa
import pytest

from rankline.workflows.nvt.kernels.hashing import bucket_of, hash_ids, hash_strings
from rankline.workflows.plan import KeyIndex
from rankline.workflows.plan.columns import Lists, Vector

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
def test_there_is_about_one_key_to_a_part(num_keys: int, num_parts: int) -> None:
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
