"""Rows that are sent: drawn from known ones, laid out as messages, or made up."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.serving.client import ModelSchema
from rankline.serving.client.config import DEFAULTS
from rankline.serving.client.core import run
from rankline.serving.client.grpc import GrpcTransport
from rankline.serving.client.request_builder import prepare
from rankline.serving.loadtest.generator.payloads import (
    MISSING_SHARE,
    UNSEEN_SHARE,
    can_be_cut,
    draw,
    generate,
    lay_out,
    zipf,
)
from rankline.workflows.schema.tensors import Tensor


@given(num_rows=st.integers(1, 500), skew=st.sampled_from([0.0, 0.5, 1.2]), seed=st.integers(0, 99))
def test_draw_is_of_existing_rows_and_reproducible(num_rows: int, skew: float, seed: int) -> None:
    drawn = draw(np.random.default_rng(seed), num_rows, (40, 3), skew)
    assert drawn.shape == (40, 3)
    assert ((drawn >= 0) & (drawn < num_rows)).all()
    np.testing.assert_array_equal(drawn, draw(np.random.default_rng(seed), num_rows, (40, 3), skew))


@given(num_rows=st.integers(1, 60), count=st.integers(1, 100))
def test_draw_without_skew_repeats_no_row_before_all_have_come(num_rows: int, count: int) -> None:
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
def test_requests_can_be_cut_apart_unless_lists_are_padded(
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


def test_cut_requests_equal_those_of_the_client() -> None:
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


NUM_ROWS = 20_000


def single_columns(*names: str, with_mask: bool) -> ModelSchema:
    tensors = tuple(Tensor(name=name, dtype="int64", dims=(1,)) for name in names)
    masks = tuple(Tensor(name=f"{name}__valid", dtype="bool", dims=(1,)) for name in names)
    return ModelSchema(
        name="m", inputs=tensors, outputs=tensors, max_batch_size=8, optional_inputs=masks if with_mask else ()
    )


def made_up(values: Any, *, exponent: float = 1.0, num_rows: int = NUM_ROWS, may_lack: bool = False) -> pa.Array:
    table = pa.table({"x": values})
    rows = generate(table, single_columns("x", with_mask=may_lack), num_rows, exponent, np.random.default_rng(0))
    assert rows.num_rows == num_rows
    return rows["x"].combine_chunks()


def share_of(column: pa.Array, value: object) -> float:
    return float(pc.sum(pc.equal(column, pa.scalar(value, column.type))).as_py() / len(column))


@given(num_ranks=st.integers(1, 300), exponent=st.sampled_from([0.0, 0.5, 1.2]), seed=st.integers(0, 99))
def test_zipf_ranks_are_in_range_and_reproducible(num_ranks: int, exponent: float, seed: int) -> None:
    ranks = zipf(np.random.default_rng(seed), num_ranks, (20, 3), exponent)
    assert ranks.shape == (20, 3)
    assert ((ranks >= 0) & (ranks < num_ranks)).all()
    np.testing.assert_array_equal(ranks, zipf(np.random.default_rng(seed), num_ranks, (20, 3), exponent))


@pytest.mark.parametrize(("exponent", "expected"), [(0.0, [1, 1, 1]), (1.0, [6, 3, 2]), (2.0, [36, 9, 4])])
def test_generated_values_follow_the_ranks_of_their_frequency(exponent: float, expected: list[int]) -> None:
    for values in ([7, 9, 9, 9, 8, 8], ["b", "z", "z", "z", "y", "y"], [0.5, 0.9, 0.9, 0.9, 0.75, 0.75]):
        column = made_up(values, exponent=exponent)
        assert column.type == pa.array(values).type
        ranking = sorted(set(values), key=values.count, reverse=True)
        shares = [share_of(column, value) for value in ranking]
        right = np.asarray(expected) / sum(expected)
        np.testing.assert_allclose(shares, right, atol=0.02)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([3, 5, None]),
        pa.array([100, 120], pa.int8()),
        pa.array([2**64 - 9], pa.uint64()),
        pa.array(["a", "ß", ""]),
        pa.array([""], pa.large_string()),
        pa.array(["a", "b"]).dictionary_encode(),
    ],
)
def test_generated_ids_include_a_share_of_unseen_ones(values: pa.Array) -> None:
    column = made_up(values)
    known = pc.is_in(column, value_set=pa.array(values.to_pylist(), column.type))
    assert 1 - pc.mean(known.cast(pa.float64())).as_py() == pytest.approx(UNSEEN_SHARE, rel=0.3)


def test_generated_values_are_missing_where_requests_can_say_so() -> None:
    assert made_up([1, 2]).null_count == 0
    assert made_up([1, 2], may_lack=True).null_count / NUM_ROWS == pytest.approx(MISSING_SHARE, rel=0.3)
    assert made_up(pa.array([1, 1, None])).null_count / NUM_ROWS == pytest.approx(1 / 3, abs=0.02)
    assert made_up(pa.array([None, None], pa.int64())).null_count == NUM_ROWS


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.large_list(pa.int64())])
def test_generated_lists_have_known_lengths_and_values(kind: pa.DataType) -> None:
    column = made_up(pa.array([[1, 1, 2], [], None, [1]], kind))
    lengths = pc.list_value_length(column).fill_null(-1)
    for length in (-1, 0, 1, 3):
        assert share_of(lengths, length) == pytest.approx(0.25, abs=0.02)
    elements = column.flatten()
    assert share_of(elements, 1) == pytest.approx(2 / 3, abs=0.03)
    assert share_of(elements, 2) == pytest.approx(1 / 3, abs=0.03)
    assert made_up(pa.array([[], []], kind)).to_pylist() == [[]] * NUM_ROWS
    fixed = made_up(pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)))
    assert set(pc.list_value_length(fixed).to_pylist()) == {2}
