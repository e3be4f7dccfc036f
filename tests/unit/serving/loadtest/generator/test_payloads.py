from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.serving.client import ModelSchema
from rankline.serving.client.config import DEFAULTS
from rankline.serving.client.core import run
from rankline.serving.client.grpc import GrpcTransport
from rankline.serving.client.request_builder import prepare
from rankline.serving.loadtest.generator.payloads import can_be_cut, draw, lay_out
from rankline.workflows.schema.tensors import Tensor


@given(num_rows=st.integers(1, 500), skew=st.sampled_from([0.0, 0.5, 1.2]), seed=st.integers(0, 99))
def test_draws_rows_that_exist_and_again_with_the_same_seed(num_rows: int, skew: float, seed: int) -> None:
    drawn = draw(np.random.default_rng(seed), num_rows, (40, 3), skew)
    assert drawn.shape == (40, 3)
    assert ((drawn >= 0) & (drawn < num_rows)).all()
    np.testing.assert_array_equal(drawn, draw(np.random.default_rng(seed), num_rows, (40, 3), skew))


def test_the_share_of_a_row_falls_with_its_rank_to_the_power_of_the_skew() -> None:
    drawn = draw(np.random.default_rng(0), 50, (200_000, 1), 1.0)
    shares = np.sort(np.bincount(drawn.ravel(), minlength=50) / drawn.size)[::-1]
    right = 1 / np.arange(1, 51)
    np.testing.assert_allclose(shares, right / right.sum(), rtol=0.1)


@given(num_rows=st.integers(1, 60), count=st.integers(1, 100))
def test_without_skew_no_row_comes_again_before_all_have_come(num_rows: int, count: int) -> None:
    drawn = draw(np.random.default_rng(0), num_rows, (count, 2)).ravel()
    for begin in range(0, drawn.size, num_rows):
        deal = drawn[begin : begin + num_rows]
        assert len(set(deal)) == len(deal)
    assert drawn.size == 2 * count


@pytest.mark.parametrize(
    ("dtype", "dims", "right"),
    [("int64", (1,), True), ("bool", (1,), True), ("object", (1,), True), ("int64", (-1,), False)],
)
@pytest.mark.parametrize("is_optional", [False, True])
def test_requests_can_be_cut_apart_unless_lists_are_filled_up(
    dtype: str, dims: tuple[int, ...], right: bool, is_optional: bool
) -> None:
    always = Tensor(name="user", dtype="int64", dims=(1,))
    other = Tensor(name="other", dtype=dtype, dims=dims)
    schema = ModelSchema(
        name="m",
        inputs=(always,) if is_optional else (always, other),
        outputs=(always,),
        max_batch_size=8,
        optional_inputs=(other,) if is_optional else (),
    )
    assert can_be_cut(schema) == right


@pytest.mark.parametrize(("count", "num_takers", "expected"), [(1, 4, 4), (6, 4, 6), (3, 1, 3)])
def test_each_process_that_sends_has_a_request_of_its_own(count: int, num_takers: int, expected: int) -> None:
    user = Tensor(name="user", dtype="int64", dims=(1,))
    schema = ModelSchema(name="m", inputs=(user,), outputs=(user,), max_batch_size=8)
    transport = GrpcTransport("127.0.0.1:1", DEFAULTS, is_async=False)  # connects when something is sent
    client: Any = SimpleNamespace(schema=schema, prepare=lambda rows: prepare(rows, schema, transport.encode))
    rows = pa.table({"user": range(50)})
    laid_out = lay_out(client, rows, 2, count, np.random.default_rng(0), num_takers=num_takers)
    run(transport.close())
    assert (len(laid_out.messages), laid_out.draws.shape) == (expected, (expected, 2))


def test_texts_and_numbers_are_cut_as_the_client_would_write_them() -> None:
    user = Tensor(name="user", dtype="int64", dims=(1,))
    word = Tensor(name="word", dtype="object", dims=(1,))
    schema = ModelSchema(name="m", inputs=(user, word), outputs=(user,), max_batch_size=8)
    transport = GrpcTransport("127.0.0.1:1", DEFAULTS, is_async=False)
    client: Any = SimpleNamespace(schema=schema, prepare=lambda rows: prepare(rows, schema, transport.encode))
    rows = pa.table({"user": range(50), "word": ["", "é", "long " * 60, "a\0b", "x" * 255] * 10})
    laid_out = lay_out(client, rows, 2, 21, np.random.default_rng(0))
    alone = [client.prepare(rows.take(pa.array(draws))).messages[0] for draws in laid_out.draws]
    run(transport.close())
    for number, message in enumerate(alone):
        message.id = str(number)  # comes back with the answer
    assert laid_out.messages == [message.SerializeToString() for message in alone]
