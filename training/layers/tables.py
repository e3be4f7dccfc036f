"""Embedding tables: whole on every worker, or split over the workers of a run.

Row r of a split table is with worker r % size, at its place r // size. Frequent ids, which are the low ones, are so
spread evenly. A lookup sends each worker the ids it has to look up and gets their rows back; gradients go the same way.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tf_keras as keras

from training.splitting import current_splitting
from training.table_parts import TablePart
from training.world import World

# More than glibc ever takes from its heap, which in between smaller blocks kept up to 1.5 times the whole table.
_BLOCK_BYTES = 1 << 26


class Section(NamedTuple):
    """Rows of a table that start from an initializer.

    Attributes:
        initializer: as Keras has them. For split tables it must know `partition_shape` and `partition_offset`.
        num_rows: how many.
    """

    initializer: Any
    num_rows: int


class SplitTable:
    """A table of which this worker has its rows only.

    Where it starts from is the same whatever the number of workers: rows are drawn in blocks of a fixed size, of which
    each worker keeps its own.

    Args:
        world: the workers.
        num_rows: of the whole table.
        part: variable with the rows of this worker.
    """

    def __init__(self, world: World, num_rows: int, part: Any) -> None:
        self.world, self.num_rows, self.part = world, num_rows, part

    def rows(self, ids: Any) -> Any:
        """The rows of `ids`, of any shape: one more axis. All workers have to call it, each with ids of its own.

        Raises:
            tf.errors.InvalidArgumentError: an id is not in [0, `num_rows`).
        """
        size, width = self.world.size, self.part.shape[1]
        if size == 1:
            return tf.gather(self.part, ids)
        unique, places = tf.unique(tf.reshape(ids, [-1]))
        is_known = tf.reduce_all((unique >= 0) & (unique < self.num_rows))
        message = f"an id is outside of [0, {self.num_rows}), the rows of {self.part.name}"
        with tf.control_dependencies([tf.debugging.Assert(is_known, [message])]):
            unique = tf.identity(unique)
        by_owner = tf.dynamic_partition(tf.range(tf.size(unique)), tf.cast(unique % size, tf.int32), size)
        order, num_asked = tf.concat(by_owner, axis=0), tf.stack([tf.size(part) for part in by_owner])
        local, num_local = self.world.all_to_all(tf.gather(unique, order) // size, num_asked)
        answers, _ = self.world.all_to_all(tf.gather(self.part, local), num_local)
        answers = tf.ensure_shape(answers, (None, width))
        rows = _repeated(answers, tf.gather(tf.math.invert_permutation(order), places))
        return tf.reshape(rows, tf.concat([tf.shape(ids), [width]], axis=0))

    def own(self) -> TablePart:
        """What this worker has, as long as it does not learn."""
        return TablePart(rows=np.asarray(self.part.read_value()), num_rows=self.num_rows, world=self.world)


def split_tables(layers: Sequence[Any]) -> list[SplitTable]:
    """The split tables of feature layers, in an order that all workers have."""
    tables = (table for layer in layers for table in getattr(layer, "all_tables", ()))  # Keras' own layers have none
    return [table for table in tables if isinstance(table, SplitTable)]


def rows_of(table: Any, ids: Any) -> Any:
    """Rows of a variable, a tensor or a `SplitTable`."""
    return table.rows(ids) if isinstance(table, SplitTable) else tf.gather(table, ids)


def add_table(layer: Any, name: str, sections: Sequence[Section], dimension: int, *, trainable: bool = True) -> Any:
    """Give a Keras layer an embedding table, float32 (rows of all sections, dimension).

    Args:
        layer: its `add_weight` makes the variable.
        name: of the variable.
        sections: what the rows start from, one below the other.
        dimension: columns.
        trainable: whether it learns.

    Returns:
        A variable, or a `SplitTable` where `training.splitting` says so.
    """
    choice, num_rows = current_splitting(), sum(section.num_rows for section in sections)
    if choice is None or num_rows * dimension * tf.float32.size <= choice.above_bytes:
        initial = sections[0].initializer if len(sections) == 1 else _below_each_other(sections)
        return _variable(layer, name, (num_rows, dimension), initial, trainable)
    world = choice.world
    shape = (len(range(world.rank, num_rows, world.size)), dimension)
    part = _variable(layer, name, shape, _own_rows(sections, world.rank, world.size), trainable)
    return SplitTable(world, num_rows, part)


def _variable(layer: Any, name: str, shape: tuple[int, int], initializer: Any, trainable: bool) -> Any:
    # TensorFlow allows few characters in the name of a saved variable; a column may contain any.
    safe = re.sub(r"[^A-Za-z0-9_.\\/>-]", lambda found: f"_{ord(found[0]):x}", name)
    # Keras would cast in `call` only, and `lookup` is used without it.
    return layer.add_weight(
        name=safe,
        shape=shape,
        dtype=tf.float32,
        initializer=initializer,
        trainable=trainable,
        experimental_autocast=False,
    )


@tf.custom_gradient  # type: ignore[untyped-decorator]  # tensorflow has no types
def _repeated(rows: Any, places: Any) -> tuple[Any, Callable[[Any], tuple[Any, None]]]:
    """A gather, whose gradient is dense: what belongs to one row is summed up before it is sent."""
    return tf.gather(rows, places), lambda of: (tf.math.unsorted_segment_sum(of, places, tf.shape(rows)[0]), None)


def _below_each_other(sections: Sequence[Section]) -> Any:
    """An initializer that gives each section's rows what its own gives them."""

    def initial(shape: Any, dtype: Any = tf.float32, **_: Any) -> Any:
        return tf.concat([draw((num_rows, shape[1]), dtype=dtype) for draw, num_rows in sections], axis=0)

    return initial


def _own_rows(sections: Sequence[Section], rank: int, size: int) -> Any:
    """An initializer for the rows of one worker, which never has more than a block of the others'."""

    def initial(shape: Any, dtype: Any = tf.float32, **_: Any) -> Any:
        # One array, and no list of pieces: what a heap once had for many of them it keeps.
        own, place, first = np.empty(shape, dtype.as_numpy_dtype), 0, 0
        for section in sections:
            for block in _blocks(section, shape[1], dtype):
                rows = block[(rank - first) % size :: size].numpy()
                own[place : place + len(rows)] = rows
                place, first = place + len(rows), first + block.shape[0]
        return tf.convert_to_tensor(own)

    return initial


def _blocks(section: Section, dimension: int, dtype: Any) -> Iterator[Any]:
    initializer, whole = keras.initializers.get(section.initializer), (section.num_rows, dimension)
    if isinstance(initializer, keras.initializers.VarianceScaling):
        initializer = _by_columns(initializer, whole)
    per_block = max(1, _BLOCK_BYTES // (dimension * dtype.size))
    for first in range(0, section.num_rows, per_block):
        shape = (min(per_block, section.num_rows - first), dimension)
        yield initializer(whole, dtype=dtype, partition_shape=shape, partition_offset=(first, 0))


def _by_columns(initializer: Any, whole: tuple[int, int]) -> Any:
    """The same variance, told by the number of columns, which blocks of a table have in common with it."""
    config = initializer.get_config()
    num_inputs = {"fan_in": whole[0], "fan_out": whole[1], "fan_avg": sum(whole) / 2}[config["mode"]]
    config |= {"mode": "fan_out", "scale": config["scale"] * whole[1] / num_inputs}
    return keras.initializers.VarianceScaling.from_config(config)
