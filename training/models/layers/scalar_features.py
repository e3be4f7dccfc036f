"""A layer for features with one value per row, which looks up several features together."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from rankline.training.models.layers.dense_features import DenseFeatures, key_of, kind_of, num_ids, width_of
from rankline.workflows.core.errors import ConfigError, SpecError

AGGREGATIONS = ("concat", "stack")

FUSED_IDS = 65_536
"""Up to this number of ids per step, a fused table trains faster on a CPU than one table per column.

Below it, the overhead of starting operations dominates: lookup, gradient and row-wise Adagrad for 26 columns of width 8
took 0.58 ms of CPU time fused and 0.80 ms separately for one row, 5.4 and 6.0 ms for 1,024 rows. Above it, the single
hash table that sums the gradients of equal ids no longer fits into the caches: 19.4 and 17.5 ms for 4,096 rows, 81 and
58 ms for 16,384. A request has few ids, so `for_serving` always fuses.
"""


@keras.utils.register_keras_serializable("rankline")
class ScalarDenseFeatures(DenseFeatures):
    """`DenseFeatures` for columns with one value per row. Tables of equal width can be fused into one variable.

    Fused tables are stacked vertically: all columns of one width share one gather, one sparse gradient and one
    optimizer update. This is faster up to `FUSED_IDS` ids per step.

    Call with a dict that has `key` of shape (N, 1) for each column. An id outside [0, num_buckets) of its own column is
    an error on a CPU, even if it would be a row of the next table; on a GPU it gives zeros.

    Args:
        feature_columns: see `DenseFeatures`.
        aggregation: "concat" concatenates the columns, (N, sum of widths); "stack" stacks columns of equal width,
            (N, columns, width). Both in the order of the columns' names.
        fused: use one table for all columns of a width instead of one per column.
        **kwargs: see `DenseFeatures`.
    """

    def __init__(
        self, feature_columns: Sequence[Any], aggregation: str = "concat", fused: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(feature_columns, **kwargs)
        if aggregation not in AGGREGATIONS:
            raise ConfigError(f"aggregation is {aggregation!r}, expected {' or '.join(AGGREGATIONS)}.")
        widths = {column.name: width_of(column) for column in self._columns}
        if aggregation == "stack" and len(set(widths.values())) > 1:
            raise ConfigError(
                f"aggregation 'stack' got columns of widths {widths}, expected equal widths. Use 'concat'."
            )
        self.aggregation, self.fused = aggregation, fused
        fused_columns: dict[str, list[Any]] = {}
        for column in self._columns:
            if (name := self._fused_name(column)) is not None:
                fused_columns.setdefault(name, []).append(column)
        self._fused = fused_columns  # assigned once complete: Keras cannot save a model with a modified dictionary

    def table(self, key: str) -> Any:
        """Return one column's table, of shape (num_buckets, dimension). If the table is fused, the result is a copy."""
        if key in self.tables:
            return self.tables[key]
        for name, columns in self._fused.items():
            ends = np.cumsum([num_ids(column) for column in columns])
            for column, end in zip(columns, ends, strict=True):
                if key_of(column) == key:
                    return self.tables[name][end - num_ids(column) : end]
        raise KeyError(key)

    def for_serving(self) -> "ScalarDenseFeatures":
        """Return an equivalent layer with fused tables. If this layer's tables are not fused, they are copied."""
        if self.fused:
            return self
        zeros = keras.initializers.Zeros()  # avoids random initial values, which would be overwritten
        columns = [c._replace(initializer=zeros) if kind_of(c) == "embedding" else c for c in self._columns]
        layer = type(self)(columns, self.aggregation, name=self.name, dtype=self.dtype_policy)
        layer.build(None)
        for name, columns in layer._fused.items():
            layer.tables[name].assign(tf.concat([self.table(key_of(column)) for column in columns], axis=0))
        return layer

    def call(self, inputs: Mapping[str, Any]) -> Any:
        if missing := [key for key in self.keys if key not in inputs]:
            raise SpecError(f"columns {missing} do not have one value per row. Use DenseFeatures for lists.")
        return self.lookup(inputs)

    def lookup(self, columns: Mapping[str, Any]) -> Any:
        rows = {name: self._rows(name, columns) for name in self._fused}
        done: Counter[str] = Counter()
        parts = []
        for name, run in groupby(self._columns, key=self._fused_name):
            members = list(run)
            if name is None:
                parts += [self._aggregated(self._dense(column, columns), [column]) for column in members]
                continue
            of_run = rows[name]
            if len(members) < len(self._fused[name]):
                of_run = of_run[:, done[name] : done[name] + len(members)]
                done[name] += len(members)
            parts.append(self._aggregated(of_run, members))
        return tf.concat(parts, axis=1) if len(parts) > 1 else parts[0]

    def compute_output_shape(self, input_shape: Any) -> Any:
        shape = super().compute_output_shape(input_shape)
        if self.aggregation == "concat":
            return shape
        return tf.TensorShape((shape[0], len(self._columns), width_of(self._columns[0])))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "aggregation": self.aggregation, "fused": self.fused}

    def _add_tables(self) -> None:
        if not self.fused:
            super()._add_tables()
        for name, columns in self._fused.items():
            self.tables[name] = self._add_table(name, columns)

    def _fused_name(self, column: Any) -> str | None:
        """Return the name of the fused table that contains this column's rows, or None if the column is not fused."""
        if not self.fused or kind_of(column) != "embedding":
            return None
        return f"{'' if column.trainable else 'constant_'}width_{column.dimension}_embedding"

    def _rows(self, name: str, columns: Mapping[str, Any]) -> Any:
        """Look up the rows of all columns in a fused table. Return a tensor of shape (N, number of columns, width)."""
        members = self._fused[name]
        sizes = np.array([num_ids(column) for column in members])
        ids = tf.cast(tf.concat([columns[key_of(column)] for column in members], axis=1), tf.int64)
        if len(members) > 1:  # map invalid ids past the end instead of to a row of the next table
            ids = tf.where((ids >= 0) & (ids < sizes), ids + (np.cumsum(sizes) - sizes), sizes.sum())
        return tf.gather(self.tables[name], ids)

    def _aggregated(self, part: Any, members: Sequence[Any]) -> Any:
        width = width_of(members[0])
        shape = (-1, len(members), width) if self.aggregation == "stack" else (-1, len(members) * width)
        return tf.reshape(tf.cast(part, self.compute_dtype), shape)
