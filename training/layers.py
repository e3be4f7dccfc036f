"""Keras layers for tabular features."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from workflows.errors import ConfigError
from workflows.tensor_names import NNZS, VALUES

_SEGMENT_REDUCTIONS = {
    "mean": tf.sparse.segment_mean,
    "sum": tf.sparse.segment_sum,
    "sqrtn": tf.sparse.segment_sqrt_n,
}


class Lists(NamedTuple):
    """A list column of N rows as tensors.

    Attributes:
        values: all values, one row after the other, shape (M,).
        rows: the row of each value, shape (M,), not descending.
        num_rows: N, a scalar.
    """

    values: Any
    rows: Any
    num_rows: Any


class DenseFeatures(tf.keras.layers.Layer):  # type: ignore[misc]  # tensorflow has no types
    """Turns a dict of feature tensors into one dense matrix, column by column in the order of their names.

    Takes what `tf.feature_column` makes: `embedding_column` and `indicator_column` over
    `categorical_column_with_identity`, and `numeric_column`. Unlike `tf.keras.layers.DenseFeatures` it takes lists
    as two flat tensors, the way the loader hands them out. The lookup is one gather, or one gather and segment
    reduction for a list, and its gradient touches the rows that were looked up, never the whole table. An empty list
    gives zeros. Every id must lie in [0, num_buckets).

    Call with a dict that holds for each column key either `key` of shape (N, 1), ids or numbers (a number column may
    be wider: (N, width)), or, for lists, `key__values` (M, 1) and `key__nnzs` (N, 1) with the values of one row after
    the other. Returns float32 of shape (N, sum of the columns' widths).

    Args:
        feature_columns: the columns; a name may occur once.
        **kwargs: of `tf.keras.layers.Layer`. An `activity_regularizer` acts on the looked-up rows of the batch.

    Raises:
        ConfigError: a column of another kind, or two of the same name.
    """

    def __init__(self, feature_columns: Sequence[Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._columns = sorted(feature_columns, key=lambda column: column.name)
        names = [column.name for column in self._columns]
        if len(set(names)) != len(names) or not names:
            raise ConfigError(f"DenseFeatures got the columns {names}, expected at least one and each once.")
        for column in self._columns:
            _ = _column_config(column)
        self.tables: dict[str, Any] = {}

    @property
    def keys(self) -> list[str]:
        """Names of the features, in the order of the columns."""
        return [_key(column) for column in self._columns]

    @property
    def output_dim(self) -> int:
        """Width of the result."""
        return sum(_width(column) for column in self._columns)

    def build(self, input_shape: Any) -> None:
        """Make one table of shape (num_buckets, dimension) for each embedding column."""
        for column in self._columns:
            if _kind(column) == "embedding":
                self.tables[_key(column)] = self.add_weight(
                    name=column.name,
                    shape=(column.categorical_column.num_buckets, column.dimension),
                    initializer=_initializer(column),
                    trainable=column.trainable,
                )
        super().build(input_shape)

    def call(self, inputs: Mapping[str, Any]) -> Any:
        """Look up and concatenate; see the class."""
        return self.lookup({key: _lists(key, inputs) if key not in inputs else inputs[key] for key in self.keys})

    def lookup(self, columns: Mapping[str, "Any | Lists"]) -> Any:
        """The same for lists whose layout the caller has resolved.

        Args:
            columns: key → tensor of shape (N, 1), or `Lists`.
        """
        parts = [self._dense(column, columns) for column in self._columns]
        return tf.concat(parts, axis=1) if len(parts) > 1 else parts[0]

    def compute_output_shape(self, input_shape: Any) -> Any:
        """(N, `output_dim`)."""
        rows = [shape[0] for name, shape in input_shape.items() if not name.endswith(VALUES)]
        return tf.TensorShape((rows[0], self.output_dim))

    def get_config(self) -> dict[str, Any]:
        """The columns as plain values."""
        return {**super().get_config(), "feature_columns": [_column_config(column) for column in self._columns]}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "DenseFeatures":
        """Build the layer again from `get_config`."""
        columns = [_column_from_config(column) for column in config.pop("feature_columns")]
        return cls(columns, **config)

    def _dense(self, column: Any, columns: Mapping[str, "Any | Lists"]) -> Any:
        ids, kind = columns[_key(column)], _kind(column)
        if kind == "numeric":
            return tf.cast(ids, tf.float32)
        if kind == "indicator":
            table, reduce = tf.eye(column.categorical_column.num_buckets), tf.sparse.segment_sum
        else:
            table, reduce = self.tables[_key(column)], _SEGMENT_REDUCTIONS[column.combiner]
        if not isinstance(ids, Lists):
            return tf.gather(table, tf.reshape(ids, [-1]))
        table = tf.convert_to_tensor(table)
        return reduce(table, ids.values, ids.rows, num_segments=ids.num_rows, sparse_gradient=True)


def _lists(key: str, inputs: Mapping[str, Any]) -> Lists:
    nnzs = tf.reshape(inputs[key + NNZS], [-1])
    num_rows = tf.size(nnzs)
    return Lists(tf.reshape(inputs[key + VALUES], [-1]), tf.repeat(tf.range(num_rows), nnzs), num_rows)


def _key(column: Any) -> str:
    return str(getattr(column, "categorical_column", column).key)


def _kind(column: Any) -> str:
    categorical = getattr(column, "categorical_column", None)
    if categorical is None and hasattr(column, "normalizer_fn"):
        return "numeric"
    if hasattr(categorical, "number_buckets"):  # only identity columns have ids ready made
        return "embedding" if hasattr(column, "combiner") else "indicator"
    raise ConfigError(
        f"DenseFeatures got {type(column).__name__}, expected numeric_column, or embedding_column or indicator_column "
        "over categorical_column_with_identity."
    )


def _width(column: Any) -> int:
    kind = _kind(column)
    if kind == "numeric":
        return int(column.shape[0])
    return int(column.dimension if kind == "embedding" else column.categorical_column.num_buckets)


def _column_config(column: Any) -> dict[str, Any]:
    kind = _kind(column)
    if kind == "numeric":
        if column.normalizer_fn is not None:
            raise ConfigError(f"numeric column {column.key!r} has a normalizer_fn. Normalise when preparing instead.")
        return {"kind": kind, "key": column.key, "shape": list(column.shape)}
    config = {"kind": kind, "key": column.categorical_column.key, "num_buckets": column.categorical_column.num_buckets}
    if kind == "embedding":
        if column.combiner not in _SEGMENT_REDUCTIONS:
            raise ConfigError(f"combiner is {column.combiner!r}. Available: {sorted(_SEGMENT_REDUCTIONS)}.")
        initializer = tf.keras.initializers.serialize(_initializer(column))
        config |= {"dimension": column.dimension, "combiner": column.combiner, "initializer": initializer}
        config["trainable"] = column.trainable
    return config


def _initializer(column: Any) -> Any:
    """The column's initializer as a Keras one; the default of `embedding_column` is of TensorFlow 1."""
    initializer = column.initializer
    if isinstance(initializer, tf.keras.initializers.Initializer):
        return initializer
    return getattr(tf.keras.initializers, type(initializer).__name__).from_config(initializer.get_config())


def _column_from_config(config: Mapping[str, Any]) -> Any:
    if config["kind"] == "numeric":
        return tf.feature_column.numeric_column(config["key"], shape=tuple(config["shape"]))
    ids = tf.feature_column.categorical_column_with_identity(config["key"], config["num_buckets"])
    if config["kind"] == "indicator":
        return tf.feature_column.indicator_column(ids)
    initializer = tf.keras.initializers.deserialize(config["initializer"])
    return tf.feature_column.embedding_column(
        ids, config["dimension"], config["combiner"], initializer=initializer, trainable=config["trainable"]
    )
