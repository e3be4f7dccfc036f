"""Tensors: their types and names, ragged and padded lists, and Arrow's types."""

from datetime import date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import np_to_triton_dtype, triton_to_np_dtype

from rankline.workflows.schema.arrow_types import plain_values
from rankline.workflows.schema.ragged import Padded, Ragged, pad, padded_rows, padded_tensors, ragged_tensors
from rankline.workflows.schema.tensor_names import argument_names, tensor_name
from rankline.workflows.schema.tensors import Tensor

TYPES = sorted(set(dict(model_config_pb2.DataType.items())) - {"TYPE_INVALID", "TYPE_BF16"})


@pytest.mark.parametrize("data_type", TYPES)
def test_triton_types_are_distinct_and_named(data_type: str) -> None:
    tensor = Tensor.from_config("x", data_type, ["-1", 2])
    assert tensor.data_type == data_type
    assert tensor.numpy_dtype == np.dtype(triton_to_np_dtype(tensor.datatype))
    assert tensor.datatype == np_to_triton_dtype(tensor.numpy_dtype)
    assert (tensor.dims, tensor.is_scalar) == ((-1, 2), False)


def test_type_that_numpy_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="'x' is of type BF16, which NumPy does not support"):
        Tensor.from_config("x", "TYPE_BF16", [1])


@pytest.mark.parametrize(("dtype", "nothing"), [("int32", 0), ("object", b""), ("bool", False)])
def test_rows_of_nothing_have_its_shape_and_type(dtype: str, nothing: object) -> None:
    rows = Tensor(name="x", dtype=dtype, dims=(-1, 2)).zeros(3)
    assert (rows.shape, rows.dtype) == ((3, 1, 2), np.dtype(dtype))
    assert (rows == nothing).all()


def test_ordinary_names_are_those_of_arguments() -> None:
    names = ["userId", "genres__values", "C1", "output", "user_2"]
    assert argument_names(names) == dict(zip(names, names, strict=True))


@pytest.mark.parametrize("name", ["class", "self", "torch", "inf", "_", "", "1st", "价格", "as_hex_41"])
def test_name_that_no_argument_can_have_is_written_in_hexadecimal(name: str) -> None:
    argument = argument_names([name, "other"])[name]
    assert argument.isidentifier()
    assert argument != name
    assert tensor_name(argument) == name


def test_names_that_differ_in_case_only_stay_apart() -> None:
    arguments = argument_names(["Fee", "fee", "FEE", "free"])
    assert len({argument.lower() for argument in arguments.values()}) == 4
    assert [tensor_name(argument) for argument in arguments.values()] == ["Fee", "fee", "FEE", "free"]


LISTS = st.lists(st.lists(st.integers(-(2**62), 2**62), max_size=5), max_size=8)


def rows_of(lists: Ragged) -> list[list[int]]:
    return [lists.values[begin:end].tolist() for begin, end in pairwise(lists.offsets)]


@given(LISTS, st.integers(0, 2))
def test_lists_are_the_same_ragged_and_padded(rows: list[list[int]], more: int) -> None:
    lists = Ragged.of_rows(rows)
    assert rows_of(lists) == rows
    assert lists.lengths.tolist() == list(map(len, rows))
    assert lists.lengths.dtype == np.int32
    width = max(map(len, rows), default=0) + more
    padded = lists.padded(width)
    assert padded.values.tolist() == [row + [0] * (width - len(row)) for row in rows]
    assert rows_of(padded.ragged()) == rows
    assert lists.padded().values.shape[1] == width - more


@given(LISTS, st.integers(0, 3))
def test_arrows_lists_are_taken_as_they_are_sliced_or_not(rows: list[list[int]], start: int) -> None:
    array = pa.array(rows, pa.list_(pa.int64())).slice(start)
    assert rows_of(Ragged.of_arrow(array)) == rows[start:]


@pytest.mark.parametrize("lengths", [[7, 3], [6], [0, 10]])
def test_lists_that_are_longer_than_the_rows_do_not_go_on_in_the_next(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match=rf"^a list has {max(lengths)} values, expected at most 5$"):
        pad(np.arange(sum(lengths)), np.array(lengths), 5)


@pytest.mark.parametrize("rows", [[], [[]], [[b"a", b""], []], [[b"b"]]])
def test_strings_are_padded_with_empty_ones(rows: list[list[bytes]]) -> None:
    flat = np.array([value for row in rows for value in row], dtype=object)
    padded = pad(flat, np.array(list(map(len, rows)), np.int64), 2)
    assert padded.tolist() == [row + [b""] * (2 - len(row)) for row in rows]


@pytest.mark.parametrize("dtype", [np.int32, np.float64, object])
def test_many_lists_keep_their_type_and_order(dtype: type) -> None:
    rng = np.random.default_rng(5)
    lengths = rng.integers(-1, 30, 999).astype(np.int32)
    lists = [rng.integers(1, 99, max(length, 0)).tolist() for length in lengths]
    padded = pad(np.array([value for row in lists for value in row], dtype=dtype), lengths, 30)
    nothing = b"" if dtype is object else 0
    assert padded.dtype == dtype
    assert padded.tolist() == [row + [nothing] * (30 - len(row)) for row in lists]
    assert rows_of(Padded(padded, np.maximum(lengths, 0)).ragged()) == lists


@given(LISTS.filter(bool), st.booleans())
def test_encoded_rows_give_the_lists_back(rows: list[list[int]], as_arrays: bool) -> None:
    column: Any = pd.Series([np.array(row, np.int64) for row in rows] if as_arrays else rows, dtype=object)
    frame = pd.DataFrame({"tags": column, "price": np.arange(len(rows), dtype=np.float32)})
    padded = padded_rows(frame)
    values, nnzs = padded["tags__values"], padded["tags__nnzs"]
    assert (values.dtype, nnzs.dtype, nnzs.shape) == (np.int64, np.int32, (len(rows), 1))
    assert [row[:count].tolist() for row, count in zip(values, nnzs[:, 0], strict=True)] == rows
    assert not values[np.arange(values.shape[1]) >= nnzs].any()
    assert (padded["price"].dtype, padded["price"].shape) == (np.float32, (len(rows), 1))
    ragged = ragged_tensors(frame)
    assert ragged["tags__offsets"].dtype == np.int32
    assert rows_of(Ragged(values=ragged["tags__values"], offsets=ragged["tags__offsets"])) == rows
    assert ragged["price"].shape == (len(rows),)


def test_candidates_keep_their_dimension() -> None:
    tensors = padded_tensors({"item": np.ones((2, 3)), "user": np.ones(2)})
    assert {name: tensor.shape for name, tensor in tensors.items()} == {"item": (2, 3), "user": (2, 1)}


TEXT_LISTS = pa.large_list(pa.string())
DAY = 86_400_000_000


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (pa.array([True, None]), pa.int64(), [1, None]),
        (pa.array([Decimal("0.5")]), pa.float64(), [0.5]),
        (pa.array([date(1970, 1, 2), None], pa.date32()), pa.int64(), [DAY, None]),
        (pa.array([datetime(1970, 1, 2)], pa.timestamp("s")), pa.int64(), [DAY]),
        (pa.array([DAY * 1000 + 999], pa.timestamp("ns", "Asia/Tokyo")), pa.int64(), [DAY]),
        (pa.array([[True, None], None, []]), pa.large_list(pa.int64()), [[1, None], None, []]),
        (pa.array([[date(1970, 1, 2)]] * 3).slice(1), pa.large_list(pa.int64()), [[DAY], [DAY]]),
        (pa.array(["a", None]), pa.string(), ["a", None]),
        (pa.array([b"x"]), pa.binary(), [b"x"]),
        (pa.DictionaryArray.from_arrays([0, None], pa.array(["a"], pa.string_view())), pa.string(), ["a", None]),
        (pa.array([["a", None], None, ["b"]], pa.list_(pa.string_view())), TEXT_LISTS, [["a", None], None, ["b"]]),
        (pa.array([["a"], None, ["b"], []], pa.list_view(pa.string())).slice(1), TEXT_LISTS, [None, ["b"], []]),
        (pa.array([[1.5], None], pa.list_(pa.float16())), pa.large_list(pa.float32()), [[1.5], None]),
        (pc.run_end_encode(pa.array([True, True, None])), pa.int64(), [1, 1, None]),
    ],
)
def test_finer_types_become_numbers_and_others_stay(values: pa.Array, kind: pa.DataType, expected: list[Any]) -> None:
    plain = plain_values(values)
    assert plain.type == kind
    assert plain.to_pylist() == expected
