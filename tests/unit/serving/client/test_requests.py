"""Rows and candidates as messages: schemas, layout, limits and refusals, without a server."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2 as pb
from tritonclient.utils import deserialize_bytes_tensor

from rankline.serving.client import ModelSchema
from rankline.serving.client.encoding import WireTensor
from rankline.serving.client.request_builder import join_scores, prepare, prepare_ranking
from rankline.workflows.core.errors import RequestError, ServerError
from rankline.workflows.schema.tensors import Tensor


def config(*inputs: tuple[str, int, list[int], bool], max_batch_size: int = 8) -> pb.ModelConfig:
    message = pb.ModelConfig(name="m", max_batch_size=max_batch_size)
    for name, data_type, dims, optional in inputs:
        message.input.add(name=name, data_type=data_type, dims=dims, optional=optional)
    message.output.add(name="score", data_type=pb.TYPE_FP32, dims=[1])
    return message


def test_schema_joins_inputs_of_one_column() -> None:
    schema = ModelSchema.from_config(
        config(
            ("n", pb.TYPE_INT64, [1], False),
            ("n__valid", pb.TYPE_BOOL, [1], True),
            ("price", pb.TYPE_FP32, [1], False),
            ("tags__values", pb.TYPE_STRING, [-1], False),
            ("tags__nnzs", pb.TYPE_INT32, [1], False),
            ("note", pb.TYPE_STRING, [1], True),
        )
    )
    found = {
        column.name: (column.values.name, column.lengths and column.lengths.name, column.mask and column.mask.name)
        for column in schema.columns
    }
    assert found == {
        "n": ("n", None, "n__valid"),
        "price": ("price", None, None),
        "tags": ("tags__values", "tags__nnzs", None),
        "note": ("note", None, None),
    }
    assert [column.name for column in schema.columns if not column.is_required] == ["note"]
    assert [tensor.name for tensor in schema.inputs] == ["n", "price", "tags__values", "tags__nnzs"]
    assert schema.inputs[2] == Tensor(name="tags__values", dtype="object", dims=(-1,))


def test_schema_keeps_similar_names_apart() -> None:
    schema = ModelSchema.from_config(
        config(
            ("a__values", pb.TYPE_INT64, [-1], False),
            ("b__nnzs", pb.TYPE_INT32, [1], False),
            ("c__values", pb.TYPE_INT64, [2, 2], False),
            ("c__nnzs", pb.TYPE_INT32, [1], False),
            ("d__valid", pb.TYPE_BOOL, [1], False),
            ("a__values__valid", pb.TYPE_INT64, [1], True),
        )
    )
    names = ["a__values", "b__nnzs", "c__values", "c__nnzs", "d__valid", "a__values__valid"]
    assert [column.name for column in schema.columns] == names
    assert not any(column.lengths or column.mask for column in schema.columns)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (config(("x", pb.TYPE_INT64, [1], False), max_batch_size=0), "'m' does not support batches"),
        (config(), "'m' has no inputs or no outputs"),
        (config(("x", pb.TYPE_BF16, [1], False)), "'x' is of type BF16"),
    ],
)
def test_schema_refuses_unsupported_models(message: pb.ModelConfig, error: str) -> None:
    with pytest.raises(RequestError, match=error):
        ModelSchema.from_config(message)


MAX_BATCH_SIZE, MAX_LIST_LENGTH = 12, 5


def schema(*candidates: str, **parameters: str) -> ModelSchema:
    message = pb.ModelConfig(name="m", max_batch_size=MAX_BATCH_SIZE)
    for name, data_type, dims, optional in (
        ("user", pb.TYPE_INT64, 1, False),
        ("item", pb.TYPE_STRING, -1 if "item" in candidates else 1, False),
        ("item__valid", pb.TYPE_BOOL, -1 if "item" in candidates else 1, True),
        ("price", pb.TYPE_FP32, -1 if "price" in candidates else 1, False),
        ("history__values", pb.TYPE_STRING, -1, False),
        ("history__nnzs", pb.TYPE_INT32, 1, False),
    ):
        message.input.add(name=name, data_type=data_type, dims=[dims], optional=optional)
    message.output.add(name="score", data_type=pb.TYPE_FP32, dims=[-1 if candidates else 1])
    for key, value in {"CANDIDATES": ",".join(candidates), **parameters}.items():
        message.parameters[key].string_value = value
    return ModelSchema.from_config(message)


BOTH = schema("item", "price", MAX_LIST_LENGTH=str(MAX_LIST_LENGTH))
ITEM = replace(schema("item"), inputs=tuple(tensor for tensor in schema("item").inputs if tensor.name != "price"))
ROW = {"user": 7, "history": ["x", "y"]}
HISTORY = {"history__values": [[b"x", b"y"]], "history__nnzs": [[2]]}


def tensors(_schema: ModelSchema, tensors: Sequence[WireTensor]) -> dict[str, Any]:
    """A message that can be looked at."""
    return {
        tensor.schema.name: (
            deserialize_bytes_tensor(tensor.data) if tensor.schema.datatype == "BYTES" else tensor.data
        ).reshape(tensor.shape)
        for tensor in tensors
    }


def plain(message: dict[str, Any]) -> dict[str, Any]:
    return {name: array.tolist() for name, array in message.items()}


def test_schema_names_candidate_columns() -> None:
    assert BOTH.candidates == ("item", "price")
    assert (BOTH.max_list_length, schema("item").max_list_length, schema().candidates) == (MAX_LIST_LENGTH, 0, ())
    assert [t.name for t in (*BOTH.inputs, *BOTH.optional_inputs) if t.is_candidates] == [
        "item",
        "price",
        "item__valid",
    ]
    assert [output.is_candidates for output in (*BOTH.outputs, *schema().outputs)] == [True, False]


WORDS = st.none() | st.text(max_size=3)


@given(st.lists(st.tuples(WORDS, st.none() | st.floats(0, 1, width=32)), min_size=1, max_size=30), st.integers(1, 300))
def test_ranking_is_cut_to_the_servers_limits_with_the_row_in_each_message(
    candidates: list[Any], max_message_bytes: int
) -> None:
    items, prices = (list(column) for column in zip(*candidates, strict=True))
    request = prepare_ranking(ROW, {"item": items, "price": prices}, BOTH, tensors, max_message_bytes=max_message_bytes)
    assert (request.num_rows, request.is_ranking) == (len(candidates), True)
    seen: list[Any] = []
    for message in request.messages:
        shape = message["item"].shape
        assert shape == message["price"].shape
        assert 1 <= shape[1] <= MAX_LIST_LENGTH
        assert shape[0] == 1
        mask = message.pop("item__valid", np.ones(shape, np.bool_))
        words = [word.decode() if there else None for word, there in zip(message["item"][0], mask[0], strict=True)]
        numbers = [None if np.isnan(number) else number for number in message["price"][0].tolist()]
        seen += zip(words, numbers, strict=True)
        shared = {name: value for name, value in plain(message).items() if name not in ("item", "price")}
        assert shared == {"user": [[7]], **HISTORY}
    assert seen == candidates


@pytest.mark.parametrize(
    "candidates",
    [
        ["a", "b", "c"],
        np.array(["a", "b", "c"], dtype=object),
        pa.chunked_array([["a"], ["b", "c"]]),
        pd.Series(["a", "b", "c"]),
        {"item": ["a", "b", "c"]},
        pa.table({"item": ["a", "b", "c"]}),
    ],
)
def test_ranking_takes_a_single_column_without_its_name(candidates: Any) -> None:
    (message,) = prepare_ranking(ROW, candidates, ITEM, tensors).messages
    assert plain(message) == {"user": [[7]], **HISTORY, "item": [[b"a", b"b", b"c"]]}


@pytest.mark.parametrize(
    ("row", "candidates", "of", "error"),
    [
        (ROW, [], ITEM, "there are no candidates, expected at least one"),
        (
            ROW,
            ["a"],
            schema(),
            r"model 'm' accepts only one candidate per row\. Call predict with one row per "
            r"candidate",
        ),
        (ROW, ["a"], BOTH, r"candidates have type list, expected a mapping with the columns \['item', 'price'\]"),
        (ROW, {"item": ["a", "b"], "price": [1.0]}, BOTH, r"columns differ in length: {'item': 2, 'price': 1}"),
        (ROW | {"item": "a"}, ["a"], ITEM, r"the row contains \['item'\], which belong to the candidates"),
        ([1], ["a"], ITEM, "the row is a list, expected a mapping from names to values"),
        (ROW, {"item": ["a"], "age": [3]}, ITEM, r"unknown columns \['age'\]"),
        (ROW, {"item": ["a", "b"], "user": [3, 4]}, ITEM, r"\['user'\], expected a single value shared by all"),
        (ROW, [["a", "b"]], ITEM, r"candidates contain lists, expected one value per candidate for \['item'\]"),
    ],
)
def test_ranking_refuses_rows_and_candidates_that_do_not_fit(
    row: Any, candidates: Any, of: ModelSchema, error: str
) -> None:
    with pytest.raises(RequestError, match=error):
        prepare_ranking(row, candidates, of, tensors)


def columns(items: Any, num_rows: int) -> dict[str, Any]:
    return {"user": list(range(num_rows)), "history": [["x"]] * num_rows, "item": items}


def test_rows_of_candidates_are_cut_to_the_batch_size() -> None:
    items = [[f"{row}{number}" for number in range(4)] for row in range(7)]
    for given_ in (items, np.array(items, dtype=object), pa.array(items)):
        request = prepare(columns(given_, 7), ITEM, tensors)
        assert [message["item"].shape for message in request.messages] == [(3, 4), (3, 4), (1, 4)]
        sent = [word.decode() for message in request.messages for word in message["item"].ravel()]
        assert sent == [item for row in items for item in row]
    nulls = [["a", None], [None, "d"]]
    (message,) = prepare(columns(nulls, 2), ITEM, tensors).messages
    assert message["item__valid"].tolist() == [[True, False], [False, True]]


@pytest.mark.parametrize(
    ("items", "error"),
    [
        ([[], []], "'item' has no candidates, expected at least one per row"),
        ([["a"], ["a", "b"]], r"'item' has ragged lists \(1 to 2 values"),
        ([[["a"]], [["b"]]], r"'item' has rows of shape \[1, 1\], expected \[-1\]"),
    ],
)
def test_rows_of_candidates_that_do_not_fit_are_refused(items: Any, error: str) -> None:
    with pytest.raises(RequestError, match=error):
        prepare(columns(items, 2), ITEM, tensors)
    with pytest.raises(RequestError, match=r"\{'item': 2, 'price': 1\}\. Pass the same number in each"):
        prepare(columns([["a", "b"]], 1) | {"price": [1.0]}, BOTH, tensors)


def scores(*shape: int) -> Any:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_scores_are_joined_to_the_shape_of_the_request() -> None:
    ranking = prepare_ranking(ROW, ["a"] * 14, ITEM, tensors)
    assert join_scores([scores(1, 12), scores(1, 2)], ITEM, ranking).tolist() == [*range(12), 0, 1]
    alone = prepare(columns(["a"] * 3, 3), ITEM, tensors)
    assert join_scores([scores(3, 1)], ITEM, alone).tolist() == [0, 1, 2]
    several = prepare(columns([["a", "b"]] * 3, 3), ITEM, tensors)
    assert join_scores([scores(3, 2)], ITEM, several).tolist() == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(ServerError, match="does not match the declared output 'score': received 1 rows, expected 14"):
        join_scores([scores(1, 1)], ITEM, ranking)


MIXED = ModelSchema(
    name="m",
    inputs=(
        Tensor(name="n", dtype="int64", dims=(1,)),
        Tensor(name="tags__values", dtype="int64", dims=(-1,)),
        Tensor(name="tags__nnzs", dtype="int32", dims=(1,)),
    ),
    outputs=(Tensor(name="score", dtype="float32", dims=(1,)),),
    max_batch_size=4,
    optional_inputs=(Tensor(name="n__valid", dtype="bool", dims=(1,)), Tensor(name="note", dtype="object", dims=(1,))),
)


ROWS = st.lists(st.tuples(st.none() | st.integers(0, 9), st.none() | st.lists(st.integers(1, 9), max_size=5)))


@given(ROWS, st.integers(1, 200))
def test_messages_hold_all_rows_in_order_within_the_limits(rows: list[Any], max_message_bytes: int) -> None:
    columns = {"n": [n for n, _ in rows], "tags": [tags for _, tags in rows]}
    request = prepare(columns, MIXED, tensors, max_message_bytes=max_message_bytes)
    assert request.num_rows == len(rows)
    seen: list[Any] = []
    for message in request.messages:
        num_rows = len(message["n"])
        assert num_rows <= MIXED.max_batch_size
        assert num_rows == 1 or sum(array.nbytes for array in message.values()) <= max_message_bytes
        valid = message.get("n__valid", np.ones((num_rows, 1), np.bool_))
        lengths, values = message["tags__nnzs"][:, 0].tolist(), message["tags__values"]
        assert values.shape[1] == max(1, *lengths)
        for i, length in enumerate(lengths):
            tags = None if length < 0 else values[i, :length].tolist()
            seen.append((message["n"][i, 0].item() if valid[i, 0] else None, tags))
    assert seen == rows


def test_lists_and_masks_may_be_given_as_tensors() -> None:
    columns = {"n": [1, 2], "n__valid": [True, False], "tags__values": [[7, 0], [8, 9]], "tags__nnzs": [1, 2]}
    (message,) = prepare(pa.table(columns), MIXED, tensors).messages
    assert {name: array.tolist() for name, array in message.items()} == {
        "n": [[1], [2]],
        "n__valid": [[True], [False]],
        "tags__values": [[7, 0], [8, 9]],
        "tags__nnzs": [[1], [2]],
    }


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({"n": [1]}, r"missing columns \['tags'\] for model 'm'\. Expected \['n', 'tags', 'note'\], got \['n'\]"),
        ({"n": [1], "tags__values": [[1]]}, r"missing columns \['tags__nnzs'\]"),
        ({"n": [1], "tags": [[1], []]}, r"columns differ in length: {'n': 1, 'tags': 2}"),
        ({"n": [None], "n__valid": [True], "tags": [[1]]}, "'n' has 1 nulls, which INT64 cannot represent"),
        ([1], "rows have type list, expected a table, a mapping from names to columns or values, or a list"),
        (
            pa.table([[1], [2]], names=["n", "n"]),
            "column 'n' appears twice in the rows, expected distinct names. Rename",
        ),
        (pd.DataFrame([[1, 2]], columns=["n", "n"]), "column 'n' appears twice in the rows"),
        ({"n": [1, 2], "tags": [[], []], "note": "é"}, "'note' is the single value 'é', expected a column"),
        ([{"n": 1}, {"tags": [1], "m": 3}], r"unknown columns \['m'\]"),
    ],
)
def test_rows_that_do_not_fit_are_refused(columns: Any, error: str) -> None:
    with pytest.raises(RequestError, match=error):
        prepare(columns, MIXED, tensors)


@pytest.mark.parametrize("rows", [[], (), {"n": [], "tags": []}])
def test_no_rows_have_no_scores(rows: Any) -> None:
    request = prepare(rows, MIXED, tensors)
    assert request.num_rows == 0
    assert join_scores([], MIXED, request).shape == (0,)


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
def test_row_containers_are_equivalent(rows: Any, num_rows: int) -> None:
    expected = prepare(pa.Table.from_pylist(TWO_ROWS[:num_rows]), MIXED, tensors).messages
    given = prepare(rows, MIXED, tensors).messages
    assert [{name: array.tolist() for name, array in message.items()} for message in given] == [
        {name: array.tolist() for name, array in message.items()} for message in expected
    ]
