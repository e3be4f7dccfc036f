"""Features of one value per row, whose tables are looked up together."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from rankline.training.models.layers.columns import key_of, kind_of, num_ids, width_of
from rankline.training.models.layers.dense_features import DenseFeatures
from rankline.workflows.core.errors import ConfigError, SpecError

AGGREGATIONS = ("concat", "stack")

FUSED_IDS = 65_536
"""Up to so many ids per step a fused table learns faster on a CPU than one per column.

Below, what an operation costs to start counts: a step of lookup, gradient and row-wise Adagrad for 26 columns of width
8 took 0.58 ms fused and 0.80 ms apart for one row, 5.4 and 6.0 for 1,024 rows (processor time). Above, the hash table
that adds up the gradients of equal ids outgrows the caches, and there is but one: 19.4 and 17.5 ms for 4,096 rows, 81
and 58 for 16,384. A served row has few ids, so `for_serving` always fuses.
"""


@keras.utils.register_keras_serializable("rankline")
class ScalarDenseFeatures(DenseFeatures):
    """`DenseFeatures` for columns with exactly one value per row, whose tables of equal width may be one variable.

    Fused, the tables stand one below the other: all columns of one width take one gather, one sparse gradient and one
    update of the optimizer. That is faster up to `FUSED_IDS` ids per step.

    Call with a dict that holds `key` of shape (N, 1) for each column. An id outside of [0, num_buckets) of its own
    column is an error on a CPU, also where it would be a row of the next table; on a GPU it gives zeros.

    Args:
        feature_columns: see `DenseFeatures`.
        aggregation: "concat" puts the columns side by side, (N, sum of widths); "stack" one below the other, (N, number
            of columns, width), where all have the same width. Both in the order of the columns' names.
        fused: one table for all columns of a width; if not, one per column.
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
                f"aggregation 'stack' got columns of the widths {widths}, expected one width. Take 'concat'."
            )
        self.aggregation, self.fused = aggregation, fused
        fused_columns: dict[str, list[Any]] = {}
        for column in self._columns:
            if (name := self._fused_name(column)) is not None:
                fused_columns.setdefault(name, []).append(column)
        self._fused = fused_columns  # whole: Keras cannot save a model that holds a dictionary changed later

    def table(self, key: str) -> Any:
        """The table of one column, (num_buckets, dimension); a copy of it if it is fused."""
        if key in self.tables:
            return self.tables[key]
        for name, columns in self._fused.items():
            ends = np.cumsum([num_ids(column) for column in columns])
            for column, end in zip(columns, ends, strict=True):
                if key_of(column) == key:
                    return self.tables[name][end - num_ids(column) : end]
        raise KeyError(key)

    def for_serving(self) -> "ScalarDenseFeatures":
        """The layer with fused tables; they are a copy if its own are not."""
        if self.fused:
            return self
        zeros = keras.initializers.Zeros()  # draws nothing that is not kept
        columns = [c._replace(initializer=zeros) if kind_of(c) == "embedding" else c for c in self._columns]
        layer = type(self)(columns, self.aggregation, name=self.name, dtype=self.dtype_policy)
        layer.build(None)
        for name, columns in layer._fused.items():
            layer.tables[name].assign(tf.concat([self.table(key_of(column)) for column in columns], axis=0))
        return layer

    def call(self, inputs: Mapping[str, Any]) -> Any:
        """Look up and aggregate; see the class."""
        if missing := [key for key in self.keys if key not in inputs]:
            raise SpecError(f"columns {missing} do not have one value per row. Take DenseFeatures for lists.")
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
        """(N, `output_dim`), or stacked (N, number of columns, width)."""
        shape = super().compute_output_shape(input_shape)
        if self.aggregation == "concat":
            return shape
        return tf.TensorShape((shape[0], len(self._columns), width_of(self._columns[0])))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "aggregation": self.aggregation, "fused": self.fused}

    def _add_tables(self) -> None:
        """One for all embedding columns of a width, if they are fused."""
        if not self.fused:
            super()._add_tables()
        for name, columns in self._fused.items():
            self.tables[name] = self._add_table(name, columns)

    def _fused_name(self, column: Any) -> str | None:
        """Name of the variable that holds the column's table with others; None if there is none."""
        if not self.fused or kind_of(column) != "embedding":
            return None
        return f"{'' if column.trainable else 'constant_'}width_{column.dimension}_embedding"

    def _rows(self, name: str, columns: Mapping[str, Any]) -> Any:
        """Table rows of all columns of a fused table, (N, number of columns, width)."""
        members = self._fused[name]
        sizes = np.array([num_ids(column) for column in members])
        ids = tf.cast(tf.concat([columns[key_of(column)] for column in members], axis=1), tf.int64)
        if len(members) > 1:  # no row of a neighbour: the one behind all tables, which is none
            ids = tf.where((ids >= 0) & (ids < sizes), ids + (np.cumsum(sizes) - sizes), sizes.sum())
        return tf.gather(self.tables[name], ids)

    def _aggregated(self, part: Any, members: Sequence[Any]) -> Any:
        width = width_of(members[0])
        shape = (-1, len(members), width) if self.aggregation == "stack" else (-1, len(members) * width)
        return tf.reshape(tf.cast(part, self.compute_dtype), shape)
