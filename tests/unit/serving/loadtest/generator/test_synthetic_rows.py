from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.serving.client import ModelSchema
from rankline.serving.loadtest.generator.payloads import MISSING_SHARE, UNSEEN_SHARE, generate, zipf
from rankline.workflows.schema.tensors import Tensor

NUM_ROWS = 20_000


def schema(*names: str, with_mask: bool) -> ModelSchema:
    tensors = tuple(Tensor(name=name, dtype="int64", dims=(1,)) for name in names)
    masks = tuple(Tensor(name=f"{name}__valid", dtype="bool", dims=(1,)) for name in names)
    return ModelSchema(
        name="m", inputs=tensors, outputs=tensors, max_batch_size=8, optional_inputs=masks if with_mask else ()
    )


def made_up(values: Any, *, exponent: float = 1.0, num_rows: int = NUM_ROWS, may_lack: bool = False) -> pa.Array:
    table = pa.table({"x": values})
    rows = generate(table, schema("x", with_mask=may_lack), num_rows, exponent, np.random.default_rng(0))
    assert rows.num_rows == num_rows
    return rows["x"].combine_chunks()


def share_of(column: pa.Array, value: object) -> float:
    return float(pc.sum(pc.equal(column, pa.scalar(value, column.type))).as_py() / len(column))


@given(num_ranks=st.integers(1, 300), exponent=st.sampled_from([0.0, 0.5, 1.2]), seed=st.integers(0, 99))
def test_ranks_are_in_range_and_the_same_with_the_same_seed(num_ranks: int, exponent: float, seed: int) -> None:
    ranks = zipf(np.random.default_rng(seed), num_ranks, (20, 3), exponent)
    assert ranks.shape == (20, 3)
    assert ((ranks >= 0) & (ranks < num_ranks)).all()
    np.testing.assert_array_equal(ranks, zipf(np.random.default_rng(seed), num_ranks, (20, 3), exponent))


@pytest.mark.parametrize(("exponent", "expected"), [(0.0, [1, 1, 1]), (1.0, [6, 3, 2]), (2.0, [36, 9, 4])])
def test_the_share_of_a_value_falls_with_the_rank_of_its_frequency(exponent: float, expected: list[int]) -> None:
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
def test_a_share_of_whole_numbers_and_texts_has_never_been_seen(values: pa.Array) -> None:
    column = made_up(values)
    known = pc.is_in(column, value_set=pa.array(values.to_pylist(), column.type))
    assert 1 - pc.mean(known.cast(pa.float64())).as_py() == pytest.approx(UNSEEN_SHARE, rel=0.3)


@pytest.mark.parametrize("values", [pa.array([2**63 - 1]), pa.array([0.5, 0.25]), pa.array([True, False])])
def test_a_type_without_other_values_keeps_to_the_known_ones(values: pa.Array) -> None:
    assert set(made_up(values).to_pylist()) == set(values.to_pylist())


def test_values_are_missing_where_a_request_can_say_so_and_where_they_were() -> None:
    assert made_up([1, 2]).null_count == 0
    assert made_up([1, 2], may_lack=True).null_count / NUM_ROWS == pytest.approx(MISSING_SHARE, rel=0.3)
    assert made_up(pa.array([1, 1, None])).null_count / NUM_ROWS == pytest.approx(1 / 3, abs=0.02)
    assert made_up(pa.array([None, None], pa.int64())).null_count == NUM_ROWS


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.large_list(pa.int64())])
def test_lists_are_as_long_as_known_ones_and_of_their_values(kind: pa.DataType) -> None:
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


def test_columns_are_drawn_independently_and_again_with_the_same_seed() -> None:
    table = pa.table({"x": [1, 2, 3, 4], "y": [1, 2, 3, 4]})

    def rows(seed: int) -> pa.Table:
        return generate(table, schema("x", "y", with_mask=False), NUM_ROWS, 0.0, np.random.default_rng(seed))

    found = rows(0)
    assert found.column_names == ["x", "y"]
    same = pc.mean(pc.equal(found["x"], found["y"]).cast(pa.float64())).as_py()
    assert same == pytest.approx(1 / 4, abs=0.03)
    assert rows(0).equals(found)
    assert not rows(1).equals(found)
