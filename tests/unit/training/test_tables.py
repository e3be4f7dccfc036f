"""Split tables as one worker sees them; how several exchange rows is in tests/integration/test_split_tables.py."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.training.threaded_workers import Place, of_all_workers
from training.layers.tables import Section, SplitTable, add_table, rows_of, split_tables
from training.models.base import UniformIds
from training.splitting import Splitting, splitting
from training.world import SOLO

NUM_ROWS, DIMENSION = 70, 3


def make(world: Any, sections: list[Section], above_bytes: int = 0, seed: int = 1) -> Any:
    keras.utils.set_random_seed(seed)
    with splitting(Splitting(world=world, above_bytes=above_bytes)):
        return add_table(keras.layers.Layer(), "x_embedding", sections, DIMENSION)


def whole_table(size: int, make_sections: Any, dimension: int = DIMENSION) -> Any:
    """The parts that each of `size` workers starts with, put together."""
    whole = np.full((sum(section.num_rows for section in make_sections()), dimension), np.nan, np.float32)
    for rank in range(size):
        whole[rank::size] = make(Place(rank, size), make_sections()).part.numpy()
    return whole


@examples(1 / 4)
@given(size=st.integers(2, 9), num_rows=st.integers(1, 20))
def test_a_table_starts_the_same_whatever_the_number_of_workers(size: int, num_rows: int) -> None:
    def sections() -> list[Section]:
        return [
            Section(UniformIds(0.1), num_rows),
            Section(keras.initializers.TruncatedNormal(), 5),
            Section("zeros", 2),
            Section(keras.initializers.VarianceScaling(mode="fan_in"), num_rows),
        ]

    np.testing.assert_array_equal(whole_table(size, sections), whole_table(1, sections))


def test_rows_are_drawn_in_blocks_that_do_not_repeat_and_only_the_first_has_reserved_ids() -> None:
    num_rows = 2_000_000  # two blocks
    for initializer in (UniformIds(0.1), keras.initializers.RandomUniform(-0.1, 0.1)):
        part = make(Place(1, 2), [Section(initializer, num_rows)]).part.numpy()
        assert part.shape == (num_rows // 2, DIMENSION)
        is_reserved = ~part.any(axis=1)
        assert np.flatnonzero(is_reserved).tolist() == ([0] if isinstance(initializer, UniformIds) else [])
        _, counts = np.unique(part[~is_reserved, 0], return_counts=True)
        assert counts.mean() < 1.1  # float32 has 2²³ values between 1 and 2, of which a uniform number is one
        assert part.std() == pytest.approx(0.2 / 12**0.5, rel=0.01)


@pytest.mark.parametrize("mode", ["fan_in", "fan_out", "fan_avg"])
def test_the_variance_is_that_of_the_whole_table(mode: str) -> None:
    def initializer() -> Any:
        return keras.initializers.VarianceScaling(0.3, mode, "uniform")

    part = make(Place(0, 2), [Section(initializer(), 4000)]).part
    assert part.numpy().std() == pytest.approx(initializer()((4000, DIMENSION)).numpy().std(), rel=0.02)


def test_a_table_over_one_worker_gives_the_rows_and_gradients_of_a_variable() -> None:
    table = make(SOLO, [Section(UniformIds(0.1), NUM_ROWS)])
    ids = tf.constant([[3, 69], [3, 0]], tf.int64)
    for of in (table, table.part):
        with tf.GradientTape() as tape:
            rows = rows_of(of, ids)
            loss = tf.reduce_sum(rows**2)
        assert rows.shape == (2, 2, DIMENSION)
        gradient = tape.gradient(loss, table.part)
        assert isinstance(gradient, tf.IndexedSlices)
        np.testing.assert_array_equal(rows, table.part.numpy()[ids.numpy()])
        np.testing.assert_array_equal(np.unique(gradient.indices), [0, 3, 69])


@pytest.mark.parametrize("wrong", [-1, NUM_ROWS])
def test_an_id_that_the_table_does_not_have_is_an_error(wrong: int) -> None:
    table = make(Place(0, 2), [Section("zeros", NUM_ROWS)])
    with pytest.raises(tf.errors.InvalidArgumentError, match="an id is outside of"):
        table.rows(tf.constant([1, wrong]))


def test_only_tables_above_the_limit_are_split_and_only_in_the_block() -> None:
    sections = [Section("zeros", NUM_ROWS)]
    num_bytes = NUM_ROWS * DIMENSION * 4
    assert isinstance(make(Place(0, 2), sections, above_bytes=num_bytes - 1), SplitTable)
    for table in (
        make(Place(0, 2), sections, above_bytes=num_bytes),
        add_table(keras.layers.Layer(), "x_embedding", sections, DIMENSION),
    ):
        assert isinstance(table, tf.Variable)
        assert table.shape == (NUM_ROWS, DIMENSION)
    assert split_tables([keras.layers.Layer()]) == []


def test_the_limit_is_a_share_of_the_least_memory_that_a_worker_has() -> None:
    choices = of_all_workers(2, lambda world: Splitting.of(0.25, world))
    assert choices[0].above_bytes == choices[1].above_bytes > 1 << 20
    assert Splitting.of(0.0, SOLO) is None
    whole = Splitting.of(0.5, SOLO)
    assert whole is not None
    assert whole.above_bytes == pytest.approx(2 * choices[0].above_bytes, abs=2)
