"""Embedding tables defined by `tf.feature_column`s, and a layer that concatenates features, including lists.

The columns are `embedding_column` and `indicator_column` over `categorical_column_with_identity`, and `numeric_column`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tf_keras as keras

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.schema.tensor_names import NNZS, VALUES

COMBINERS = {"mean": tf.sparse.segment_mean, "sum": tf.sparse.segment_sum, "sqrtn": tf.sparse.segment_sqrt_n}


def key_of(column: Any) -> str:
    return str(getattr(column, "categorical_column", column).key)


def kind_of(column: Any) -> str:
    """Return the kind of a feature column: "numeric", "embedding" or "indicator"."""
    categorical = getattr(column, "categorical_column", None)
    if categorical is None and hasattr(column, "normalizer_fn"):
        return "numeric"
    if hasattr(categorical, "number_buckets"):  # only identity columns have it
        return "embedding" if hasattr(column, "combiner") else "indicator"
    raise ConfigError(
        f"DenseFeatures got {type(column).__name__}, expected numeric_column, or categorical_column_with_identity "
        "wrapped in embedding_column or indicator_column."
    )


def num_ids(column: Any) -> int:
    """Return the number of ids of an embedding or indicator column. Ids start at 0."""
    return int(column.categorical_column.num_buckets)


def width_of(column: Any) -> int:
    """Return the number of columns that a feature column contributes to a layer's output."""
    kind = kind_of(column)
    if kind == "numeric":
        return int(column.shape[0])
    return int(column.dimension) if kind == "embedding" else num_ids(column)


def initializer_of(column: Any) -> Any:
    """Convert an embedding column's initializer to a Keras one. By default, columns use a TensorFlow 1 initializer."""
    initializer = column.initializer
    if isinstance(initializer, keras.initializers.Initializer):
        return initializer
    return getattr(keras.initializers, type(initializer).__name__).from_config(initializer.get_config())


def column_config(column: Any) -> dict[str, Any]:
    kind = kind_of(column)
    if kind == "numeric":
        if column.normalizer_fn is not None:
            raise ConfigError(
                f"numeric column {column.key!r} has a normalizer_fn. Normalize the values when preparing the data "
                "instead."
            )
        return {"kind": kind, "key": column.key, "shape": list(column.shape)}
    config = {"kind": kind, "key": key_of(column), "num_buckets": num_ids(column)}
    if kind == "embedding":
        if column.combiner not in COMBINERS:
            raise ConfigError(f"combiner is {column.combiner!r}. Available: {sorted(COMBINERS)}.")
        initializer = keras.initializers.serialize(initializer_of(column))
        config |= {"dimension": column.dimension, "combiner": column.combiner, "initializer": initializer}
        config["trainable"] = column.trainable
    return config


def column_from_config(config: Mapping[str, Any]) -> Any:
    if config["kind"] == "numeric":
        return tf.feature_column.numeric_column(config["key"], shape=tuple(config["shape"]))
    ids = tf.feature_column.categorical_column_with_identity(config["key"], config["num_buckets"])
    if config["kind"] == "indicator":
        return tf.feature_column.indicator_column(ids)
    initializer = keras.initializers.deserialize(config["initializer"])
    return tf.feature_column.embedding_column(
        ids, config["dimension"], config["combiner"], initializer=initializer, trainable=config["trainable"]
    )


def add_table(layer: Any, name: str, shape: tuple[int, int], initializer: Any, *, trainable: bool = True) -> Any:
    # TensorFlow restricts names of saved variables; column names may have any characters.
    safe = re.sub(r"[^A-Za-z0-9_.\\/>-]", lambda found: f"_{ord(found[0]):x}", name)
    # Keras would cast only in `call`, and `lookup` is used without it.
    return layer.add_weight(
        name=safe,
        shape=shape,
        dtype=tf.float32,
        initializer=initializer,
        trainable=trainable,
        experimental_autocast=False,
    )


class Lists(NamedTuple):
    """A list column of N rows, represented as flat tensors.

    Attributes:
        values: all values, row after row, shape (M,).
        rows: the row of each value, shape (M,), in ascending order.
        num_rows: N, a scalar.
    """

    values: Any
    rows: Any
    num_rows: Any


@keras.utils.register_keras_serializable("rankline")
class DenseFeatures(keras.layers.Layer):  # type: ignore[misc]  # tensorflow has no types
    """Converts a dict of feature tensors to one dense matrix, with the columns ordered by name.

    Supports `tf.feature_column`s: `embedding_column` and `indicator_column` over `categorical_column_with_identity`,
    and `numeric_column`. Unlike `keras.layers.DenseFeatures` it accepts lists as two flat tensors, as the loader
    returns them. A lookup is one gather, or one gather and segment reduction for a list, and its gradient covers only
    the rows that were looked up. An empty list gives zeros. Ids must be in [0, num_buckets).

    Call with a dict that has for each column key either `key` of shape (N, 1), ids or numbers (a number column may be
    wider: (N, width)), or, for lists, `key__values` (M, 1) with the values row after row and `key__nnzs` (N, 1).
    Returns shape (N, sum of the columns' widths) in the layer's compute dtype. Tables are float32 under every Keras
    policy: rows are cast after the lookup, so gradients arrive in float32.

    Args:
        feature_columns: the columns; names must be unique.
        **kwargs: options of `keras.layers.Layer`. An `activity_regularizer` applies to the looked-up rows of the batch.
    """

    def __init__(self, feature_columns: Sequence[Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._columns = sorted(feature_columns, key=lambda column: column.name)
        for column in self._columns:
            _ = column_config(column)
        # An embedding of `x` and a number `x_embedding` have the same name, so compare kinds too.
        names = [(column.name, kind_of(column)) for column in self._columns]
        if len(set(names)) != len(names) or not names:
            keys = self.keys
            raise ConfigError(f"{type(self).__name__} got the columns {keys}, expected one or more distinct columns.")
        self.tables: dict[str, Any] = {}

    @property
    def keys(self) -> list[str]:
        return [key_of(column) for column in self._columns]

    @property
    def output_dim(self) -> int:
        return sum(width_of(column) for column in self._columns)

    def build(self, input_shape: Any) -> None:
        self._add_tables()
        super().build(input_shape)

    def for_serving(self) -> "DenseFeatures":
        """Return an equivalent layer that is faster for few rows."""
        return self

    def call(self, inputs: Mapping[str, Any]) -> Any:
        return self.lookup({key: _lists(key, inputs) if key not in inputs else inputs[key] for key in self.keys})

    def lookup(self, columns: Mapping[str, "Any | Lists"]) -> Any:
        """Compute the output of the layer for features whose lists are passed as `Lists`.

        Args:
            columns: key → tensor of shape (N, 1), or `Lists`.
        """
        parts = [tf.cast(self._dense(column, columns), self.compute_dtype) for column in self._columns]
        return tf.concat(parts, axis=1) if len(parts) > 1 else parts[0]

    def compute_output_shape(self, input_shape: Any) -> Any:
        num_rows = next(shape[0] for name, shape in input_shape.items() if not name.endswith(VALUES))
        return tf.TensorShape((num_rows, self.output_dim))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "feature_columns": [column_config(column) for column in self._columns]}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "DenseFeatures":
        columns = [column_from_config(column) for column in config.pop("feature_columns")]
        return cls(columns, **config)

    def _add_tables(self) -> None:
        for column in self._columns:
            if kind_of(column) == "embedding":
                self.tables[key_of(column)] = self._add_table(column.name, [column])

    def _add_table(self, name: str, columns: Sequence[Any]) -> Any:
        """Create a table in which the tables of one or more equally wide columns are stacked vertically."""
        first, num_rows = columns[0], sum(map(num_ids, columns))
        initializer = initializer_of(first) if len(columns) == 1 else _below_each_other(columns)
        return add_table(self, name, (num_rows, first.dimension), initializer, trainable=first.trainable)

    def _dense(self, column: Any, columns: Mapping[str, "Any | Lists"]) -> Any:
        ids, kind = columns[key_of(column)], kind_of(column)
        if kind == "numeric":
            return ids
        if kind == "indicator":
            table, reduce = tf.eye(num_ids(column)), tf.sparse.segment_sum
        else:
            table, reduce = self.tables[key_of(column)], COMBINERS[column.combiner]
        if not isinstance(ids, Lists):
            return tf.gather(table, tf.reshape(ids, [-1]))
        # The reduction can look up rows itself, but then it reads the table as a tensor. Once rows were updated,
        # TensorFlow copies the whole table in each step: 187 ms instead of 1.9 for 10 million rows of width 16.
        values = tf.gather(table, ids.values)
        return reduce(values, tf.range(tf.size(ids.values)), ids.rows, num_segments=ids.num_rows)


def _below_each_other(columns: Sequence[Any]) -> Any:
    parts = [(initializer_of(column), num_ids(column)) for column in columns]

    def initial(shape: Any, dtype: Any = tf.float32, **_: Any) -> Any:
        return tf.concat([draw((num_rows, shape[1]), dtype=dtype) for draw, num_rows in parts], axis=0)

    return initial


def _lists(key: str, inputs: Mapping[str, Any]) -> Lists:
    nnzs = tf.reshape(inputs[key + NNZS], [-1])
    num_rows = tf.size(nnzs)
    return Lists(tf.reshape(inputs[key + VALUES], [-1]), tf.repeat(tf.range(num_rows), nnzs), num_rows)
