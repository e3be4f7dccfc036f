from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.training.threaded_workers import ThreadedWorker, of_all_workers
from training.sliced_checkpoint import fill_checkpoint
from training.table_parts import TablePart, hand_out, own_rows
from training.world import Array


def part_of(array: Array, world: ThreadedWorker) -> TablePart:
    return TablePart(rows=own_rows(array, world).copy(), num_rows=len(array), world=world)


@given(num_rows=st.integers(1, 12), size=st.integers(1, 5), width=st.sampled_from([(), (1,), (3, 2)]))
def test_parts_are_written_as_numpy_saves_the_whole_array(num_rows: int, size: int, width: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).normal(size=(num_rows, *width)).astype(np.float32)

    def write(world: ThreadedWorker) -> bytes:
        part, file = part_of(array, world), BytesIO()
        assert part.shape == array.shape
        if world.rank:
            part.send()
        else:
            part.write(file)
        return file.getvalue()

    expected = BytesIO()
    np.save(expected, array)
    assert of_all_workers(size, write) == [expected.getvalue(), *[b""] * (size - 1)]


@given(num_rows=st.integers(1, 9), size=st.integers(1, 4))
def test_each_worker_gets_its_rows_of_what_worker_0_has(num_rows: int, size: int) -> None:
    array = np.random.default_rng(0).random((num_rows, 2), np.float32)

    def receive(world: ThreadedWorker) -> Array:
        own = np.full_like(own_rows(array, world), np.nan)
        hand_out(None if world.rank else array, own, num_rows, world)
        return own

    for rank, own in enumerate(of_all_workers(size, receive)):
        np.testing.assert_array_equal(own, array[rank::size])


@pytest.fixture(scope="module")
def large() -> Array:
    """An array of two blocks, whose last one is no multiple of the workers."""
    return np.random.default_rng(0).random((1301, 1 << 14), np.float32)


def test_a_large_array_comes_in_blocks_of_bounded_size(large: Array) -> None:
    def check(world: ThreadedWorker) -> None:
        part = part_of(large, world)
        if world.rank:
            part.send()
            return
        first = 0
        for block in part.blocks():
            assert block.nbytes <= 1 << 26 < large.nbytes
            np.testing.assert_array_equal(block, large[first : first + len(block)])
            first += len(block)
        assert first == len(large)

    of_all_workers(3, check)


def test_a_checkpoint_of_tensorflow_takes_parts_in_slices_and_keeps_all_else(large: Array, tmp_path: Path) -> None:
    before = tf.train.Checkpoint(gap=tf.Variable(tf.zeros((0, large.shape[1])), shape=(None, large.shape[1])))
    before.other, before.count = tf.Variable([1.5, 2.5]), tf.Variable(7, dtype=tf.int64)
    prefix = Path(before.write(str(tmp_path / "c")))
    name = "gap/.ATTRIBUTES/VARIABLE_VALUE"

    def fill(world: ThreadedWorker) -> None:
        if world.rank:
            part_of(large, world).send()
        else:
            fill_checkpoint(prefix, {name: part_of(large, world)})

    of_all_workers(2, fill)
    assert dict(tf.train.list_variables(str(prefix)))[name] == list(large.shape)
    after = tf.train.Checkpoint(gap=tf.Variable(tf.zeros_like(large)))
    after.other, after.count = tf.Variable([0.0, 0.0]), tf.Variable(0, dtype=tf.int64)
    after.read(str(prefix)).assert_consumed()
    np.testing.assert_array_equal(after.gap, large)
    assert (after.other.numpy().tolist(), int(after.count)) == ([1.5, 2.5], 7)
    assert {path.name.split(".")[0] for path in tmp_path.iterdir()} == {"c"}  # no pieces are left
