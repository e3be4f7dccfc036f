"""Candidates laid out for the wire, without a server."""

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
ITEM = replace(
    schema("item"),
    inputs=tuple(tensor for tensor in schema("item").inputs if tensor.name != "price"),
)
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


def test_the_schema_says_what_may_hold_several() -> None:
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
def test_candidates_are_cut_to_what_the_server_takes_and_the_row_goes_with_all_of_them(
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
        pa.array(["a", "b", "c"]),
        pa.chunked_array([["a"], ["b", "c"]]),
        pd.Series(["a", "b", "c"]),
        {"item": ["a", "b", "c"]},
        pa.table({"item": ["a", "b", "c"]}),
    ],
)
def test_one_column_of_candidates_needs_no_name(candidates: Any) -> None:
    (message,) = prepare_ranking(ROW, candidates, ITEM, tensors).messages
    assert plain(message) == {"user": [[7]], **HISTORY, "item": [[b"a", b"b", b"c"]]}


def test_without_a_limit_on_lists_the_batch_size_is_one() -> None:
    request = prepare_ranking(ROW, [str(number) for number in range(30)], ITEM, tensors)
    assert [message["item"].shape for message in request.messages] == [(1, 12), (1, 12), (1, 6)]


def test_an_empty_or_missing_history_and_a_missing_user_can_be_ranked_for() -> None:
    with_mask = replace(
        ITEM, optional_inputs=(*ITEM.optional_inputs, replace(schema().optional_inputs[0], name="user__valid"))
    )
    (message,) = prepare_ranking({"user": None, "history": []}, ["a"], with_mask, tensors).messages
    assert plain(message) | {"user__valid": [[False]], "history__nnzs": [[0]]} == plain(message)
    (message,) = prepare_ranking({"user": 1, "history": None}, ["a"], ITEM, tensors).messages
    assert message["history__nnzs"].tolist() == [[-1]]


@pytest.mark.parametrize(
    ("row", "candidates", "of", "error"),
    [
        (ROW, [], ITEM, "there are no candidates, expected at least one"),
        (ROW, ["a"], schema(), "model 'm' takes one candidate per row. Predict a row for each"),
        (ROW, ["a"], BOTH, r"candidates are a list, expected a mapping from \['item', 'price'\] to columns"),
        (ROW, {"item": ["a", "b"], "price": [1.0]}, BOTH, r"columns differ in length: {'item': 2, 'price': 1}"),
        (ROW | {"item": "a"}, ["a"], ITEM, r"the row has \['item'\], which the candidates are given for"),
        ([1], ["a"], ITEM, "the row is a list, expected a mapping from names to values"),
        (ROW, {"item": ["a"], "age": [3]}, ITEM, r"unknown \['age'\]"),
        (
            ROW,
            {"item": ["a", "b"], "user": [3, 4]},
            ITEM,
            r"\['user'\] are given for each candidate, expected in the row",
        ),
        (ROW, [["a", "b"]], ITEM, r"candidates are lists, expected one value per candidate of \['item'\]"),
    ],
)
def test_what_cannot_be_ranked_is_refused(row: Any, candidates: Any, of: ModelSchema, error: str) -> None:
    with pytest.raises(RequestError, match=error):
        prepare_ranking(row, candidates, of, tensors)


def columns(items: Any, num_rows: int) -> dict[str, Any]:
    return {"user": list(range(num_rows)), "history": [["x"]] * num_rows, "item": items}


def test_rows_may_hold_several_and_are_cut_so_that_all_of_them_fit() -> None:
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
def test_rows_whose_candidates_do_not_fit_are_refused(items: Any, error: str) -> None:
    with pytest.raises(RequestError, match=error):
        prepare(columns(items, 2), ITEM, tensors)
    with pytest.raises(RequestError, match="{'item': 2, 'price': 1} candidates, expected the same number of each"):
        prepare(columns([["a", "b"]], 1) | {"price": [1.0]}, BOTH, tensors)


def scores(*shape: int) -> Any:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_answers_are_joined_by_what_was_asked() -> None:
    ranking = prepare_ranking(ROW, ["a"] * 14, ITEM, tensors)
    assert join_scores([scores(1, 12), scores(1, 2)], ITEM, ranking).tolist() == [*range(12), 0, 1]
    alone = prepare(columns(["a"] * 3, 3), ITEM, tensors)
    assert join_scores([scores(3, 1)], ITEM, alone).tolist() == [0, 1, 2]
    several = prepare(columns([["a", "b"]] * 3, 3), ITEM, tensors)
    assert join_scores([scores(3, 2)], ITEM, several).tolist() == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(ServerError, match="does not fit its output 'score': 1 rows for 14"):
        join_scores([scores(1, 1)], ITEM, ranking)
