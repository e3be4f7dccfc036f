"""Rows cut into messages, without a server."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.serving.client import ModelSchema
from rankline.serving.client.encoding import WireTensor
from rankline.serving.client.request_builder import prepare
from rankline.workflows.core.errors import RequestError
from rankline.workflows.schema.tensors import Tensor

SCHEMA = ModelSchema(
    name="m",
    inputs=(
        Tensor(name="n", dtype="int64", dims=(1,)),
        Tensor(name="tags__values", dtype="int64", dims=(-1,)),
        Tensor(name="tags__nnzs", dtype="int32", dims=(1,)),
    ),
    outputs=(Tensor(name="score", dtype="float32", dims=(1,)),),
    max_batch_size=4,
    optional_inputs=(
        Tensor(name="n__valid", dtype="bool", dims=(1,)),
        Tensor(name="note", dtype="object", dims=(1,)),
    ),
)


def tensors(_schema: ModelSchema, tensors: Sequence[WireTensor]) -> dict[str, Any]:
    """A message that can be looked at."""
    return {
        tensor.schema.name: tensor.data if tensor.schema.datatype == "BYTES" else tensor.data.reshape(tensor.shape)
        for tensor in tensors
    }


ROWS = st.lists(st.tuples(st.none() | st.integers(0, 9), st.none() | st.lists(st.integers(1, 9), max_size=5)))


@given(ROWS, st.integers(1, 200))
def test_messages_hold_all_rows_in_order_and_no_more_than_fits(rows: list[Any], max_message_bytes: int) -> None:
    columns = {"n": [n for n, _ in rows], "tags": [tags for _, tags in rows]}
    request = prepare(columns, SCHEMA, tensors, max_message_bytes=max_message_bytes)
    assert request.num_rows == len(rows)
    seen: list[Any] = []
    for message in request.messages:
        num_rows = len(message["n"])
        assert num_rows <= SCHEMA.max_batch_size
        assert num_rows == 1 or sum(array.nbytes for array in message.values()) <= max_message_bytes
        valid = message.get("n__valid", np.ones((num_rows, 1), np.bool_))
        lengths, values = message["tags__nnzs"][:, 0].tolist(), message["tags__values"]
        assert values.shape[1] == max(1, *lengths)
        for i, length in enumerate(lengths):
            tags = None if length < 0 else values[i, :length].tolist()
            seen.append((message["n"][i, 0].item() if valid[i, 0] else None, tags))
    assert seen == rows


def test_a_mask_is_only_sent_where_something_is_missing() -> None:
    complete = {"n": [1, 2], "tags": [[], [1]]}
    assert list(prepare(complete, SCHEMA, tensors).messages[0]) == ["n", "tags__values", "tags__nnzs"]
    (message,) = prepare(complete | {"n": [None, 2]}, SCHEMA, tensors).messages
    assert message["n__valid"].tolist() == [[False], [True]]


def test_lists_and_masks_may_be_given_as_the_tensors_that_they_become() -> None:
    columns = {"n": [1, 2], "n__valid": [True, False], "tags__values": [[7, 0], [8, 9]], "tags__nnzs": [1, 2]}
    (message,) = prepare(pa.table(columns), SCHEMA, tensors).messages
    assert {name: array.tolist() for name, array in message.items()} == {
        "n": [[1], [2]],
        "n__valid": [[True], [False]],
        "tags__values": [[7, 0], [8, 9]],
        "tags__nnzs": [[1], [2]],
    }


def test_optional_columns_may_be_left_out_or_given() -> None:
    (message,) = prepare({"n": [1], "tags": [[1]], "note": ["é"]}, SCHEMA, tensors).messages
    assert message["note"].tobytes() == b"\x02\0\0\0" + "é".encode()
    assert "note" not in prepare({"n": [1], "tags": [[1]]}, SCHEMA, tensors).messages[0]


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({"n": [1]}, r"missing \['tags'\] for model 'm'. Expected \['n', 'tags', 'note'\], got \['n'\]"),
        ({"n": [1], "tags__values": [[1]]}, r"missing \['tags__nnzs'\]"),
        ({"n": [1], "tags": [[1]], "tags__nnzs": [1]}, r"unknown \['tags__nnzs'\]"),
        ({"n": [1], "tags": [[1], []]}, r"columns differ in length: {'n': 1, 'tags': 2}"),
        ({"n": [None], "n__valid": [True], "tags": [[1]]}, "'n' has 1 nulls, and INT64 cannot hold them"),
        ([1], "rows are a list, expected a table, a mapping from names to columns or values, or a list"),
        ([], "rows are a list"),
        (np.zeros((2, 2)), "rows are a ndarray"),
        ({"n": [1, 2], "tags": [[], []], "note": "é"}, "'note' is the single value 'é', expected a column"),
        ([{"n": 1}, {"tags": [1], "m": 3}], r"unknown \['m'\]"),
    ],
)
def test_rows_that_do_not_fit_are_refused(columns: Any, error: str) -> None:
    with pytest.raises(RequestError, match=error):
        prepare(columns, SCHEMA, tensors)


class Polars:
    """As much of a DataFrame of polars as is asked."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def to_arrow(self) -> pa.Table:
        return self._table


TWO_ROWS = [{"n": 1, "tags": [2, 3], "note": "é"}, {"n": None, "tags": [], "note": "b"}]


@pytest.mark.parametrize(
    ("rows", "num_rows"),
    [
        (TWO_ROWS, 2),
        (tuple(TWO_ROWS), 2),
        (pa.Table.from_pylist(TWO_ROWS), 2),
        (pa.RecordBatch.from_pylist(TWO_ROWS), 2),
        (Polars(pa.Table.from_pylist(TWO_ROWS)), 2),
        (pd.DataFrame(TWO_ROWS), 2),
        ([{"note": "é", "tags": [2, 3], "n": 1}, {"tags": (), "note": "b"}], 2),
        (TWO_ROWS[0], 1),
        ({"n": np.int64(1), "tags": np.array([2, 3]), "note": np.str_("é")}, 1),
        (pd.DataFrame(TWO_ROWS).iloc[0], 1),
        ({"n": [1], "tags": [[2, 3]], "note": iter(["é"])}, 1),
    ],
)
def test_rows_are_the_same_however_they_are_given(rows: Any, num_rows: int) -> None:
    expected = prepare(pa.Table.from_pylist(TWO_ROWS[:num_rows]), SCHEMA, tensors).messages
    given = prepare(rows, SCHEMA, tensors).messages
    assert [{name: array.tolist() for name, array in message.items()} for message in given] == [
        {name: array.tolist() for name, array in message.items()} for message in expected
    ]
