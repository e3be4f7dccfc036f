"""Embeddings of users, candidates and histories."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf
import tf_keras as keras

from rankline.training.models.layers.dense_features import Lists, add_table
from rankline.workflows.core.errors import ConfigError, SpecError
from rankline.workflows.schema.feature_spec import HISTORY, NEGATIVES, TARGET, USERS, FeatureSpec
from rankline.workflows.schema.tensor_names import NNZS, VALUES


class PaddedLists(NamedTuple):
    """A list column of N rows, represented as a padded matrix.

    Attributes:
        values: (N, W); the first `nnzs[i]` values of row i count.
        nnzs: number of values of each row, (N, 1).
    """

    values: Any
    nnzs: Any


class SequenceFeatures(keras.layers.Layer):  # type: ignore[misc]  # tensorflow has no types
    """Looks up the embeddings of user, target and history features. Target, history and negatives share tables.

    There are N rows with C candidates each (1 in training), histories of T items, and D = `dimension` × number of item
    features. Call with a dict that has `name`, ids (N, 1), for each single-value feature, and `name__values` (M, 1) and
    `name__nnzs` (N, 1), as the loader returns them, for each list feature. All lists of a row must be equally long.
    Returns a dict:

    - "target": (N, C, D).
    - "history": (N, T, D), the latest item at T - 1, preceded by the others, with zeros for padding. T is `length`, or
      else the length of the longest history in the batch, at least `num_recent` and 1.
    - "mask": float32 (N, T), 1 at items, by the length of the history and not by ids.
    - "user": (N, `dimension` × number of user features), with `users`, if the spec has any.
    - "bias": float32 (N, C), with `biases`: the sum of one weight per id of the target.
    - "same": float32 (N, C, T), with `same`: 1 where the last feature of the history, such as the category, equals the
      target's.
    - "negatives": (N, `num_recent`, D), with `num_recent`: negatives for the last items of the history; zeros if the
      inputs have none.

    Tables are float32 under every Keras policy, and rows are cast after the lookup. A gradient covers only the rows
    that were looked up. Ids must be in [0, cardinality).

    Args:
        spec: its channels of `SEQUENCE_CHANNELS` are looked up.
        dimension: columns of each table.
        initializer: initializer of the tables; biases are initially zero.
        num_recent: number of latest items that the model processes separately.
        users: look up the features of the user.
        biases: see above.
        same: see above.
        length: fixed T, as XLA requires; longer histories lose their oldest items. Without it, histories lose their
            oldest items beyond the spec's `max_length`.
    """

    def __init__(
        self,
        spec: FeatureSpec,
        *,
        dimension: int,
        initializer: Any,
        num_recent: int = 0,
        users: bool = True,
        biases: bool = False,
        same: bool = False,
        length: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not spec.is_sequential:
            raise SpecError(f"the feature spec has no channel {TARGET!r}, which sequence features need.")
        if length is not None and length < max(num_recent, 1):
            raise ConfigError(f"length is {length}, expected a positive integer of at least num_recent ({num_recent}).")
        self._spec = spec
        self._users, self._targets, self._history, self._negatives = (
            [feature.name for feature in spec.channel(channel)] for channel in (USERS, TARGET, HISTORY, NEGATIVES)
        )
        self.dimension, self.num_recent, self.length = dimension, num_recent, length
        self.users, self.biases, self.same = users, biases, same
        self.initializer = keras.initializers.get(initializer)
        self.tables: dict[str, Any] = {}
        self.bias_tables: dict[str, Any] = {}

    def build(self, input_shape: Any) -> None:
        for name in (*self._looked_up_users, *self._targets):
            # A new initializer each: Keras' initializers repeat their values, with a warning, when reused.
            initializer = type(self.initializer).from_config(self.initializer.get_config())
            self.tables[name] = self._add_table(name, self.dimension, initializer)
        for name in self._targets if self.biases else ():
            self.bias_tables[name] = self._add_table(f"{name}_bias", 1, "zeros", of=name)
        super().build(input_shape)

    def call(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        columns: dict[str, Any] = {name: inputs[name] for name in (*self._looked_up_users, *self._targets)}
        for names in (self._history, self._negatives):
            for name in (name for name in names if name + VALUES in inputs):
                nnzs = tf.cast(tf.reshape(inputs[name + NNZS], [-1]), tf.int32)
                columns[name] = _Runs(tf.reshape(inputs[name + VALUES], [-1]), tf.cumsum(nnzs) - 1, nnzs)
                if name != names[0]:
                    message = f"lists {names[0]} and {name} have different lengths in some rows."
                    tf.debugging.assert_equal(nnzs, columns[names[0]].nnzs, message)
        return self._look_up(columns)

    def lookup(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Compute the layer's output. Lists may be `Lists` or `PaddedLists`, and each row may have several candidates.

        Args:
            columns: name → ids (N, 1), for the target (N, C); `Lists` or `PaddedLists` for a list.
        """
        return self._look_up({name: _as_runs(column) for name, column in columns.items()})

    def for_serving(self) -> "SequenceFeatures":
        """Return an equivalent layer that is faster for few rows."""
        return self

    def get_config(self) -> dict[str, Any]:
        names = ("dimension", "num_recent", "users", "biases", "same", "length")
        return {
            **super().get_config(),
            "spec": self._spec.to_yaml(),
            "initializer": keras.initializers.serialize(self.initializer),
            **{name: getattr(self, name) for name in names},
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "SequenceFeatures":
        return cls(**{**config, "spec": FeatureSpec.from_yaml(config["spec"])})

    @property
    def _looked_up_users(self) -> list[str]:
        return self._users if self.users else []

    def _add_table(self, name: str, dimension: int, initializer: Any, of: str | None = None) -> Any:
        num_ids = self._spec[of or name].cardinality
        assert num_ids is not None  # checked by the spec
        return add_table(self, f"{name}_embedding", (num_ids, dimension), initializer)

    def _look_up(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        target_ids = [columns[name] for name in self._targets]
        history = [columns[name] for name in self._history]
        num_rows = tf.shape(target_ids[0])[0]
        history_places = _Places(history[0], num_rows, self._num_steps(history[0].nnzs), self._max_items)
        places = [history_places]
        lists = [history]
        if self.num_recent and self._negatives and self._negatives[0] in columns:
            negatives = [columns[name] for name in self._negatives]
            places.append(_Places(negatives[0], num_rows, self.num_recent, self.num_recent))
            lists.append(negatives)
        ids = [  # per feature: ids of all targets, of the history, of the negatives
            [tf.reshape(of_targets, [-1]), *(place.of(runs) for place, runs in zip(places, of_lists, strict=True))]
            for of_targets, *of_lists in zip(target_ids, *lists, strict=True)
        ]
        targets, *items = self._item_rows(ids)
        result = {
            "target": tf.reshape(targets, tf.concat([tf.shape(target_ids[0]), [targets.shape[1]]], axis=0)),
            "history": history_places.spread(items[0]),
            "mask": tf.cast(history_places.is_item, tf.float32),
        }
        if self._looked_up_users:
            rows = [tf.gather(self.tables[name], tf.reshape(columns[name], [-1])) for name in self._looked_up_users]
            result["user"] = tf.cast(tf.concat(rows, axis=1), self.compute_dtype)
        if self.biases:
            weights = [tf.gather(self.bias_tables[n], i) for n, i in zip(self._targets, target_ids, strict=True)]
            result["bias"] = tf.add_n(weights)[..., 0]
        if self.same:
            # Ids plus one, so that padding is 0, which no target has.
            listed = history_places.spread(ids[-1][1][:, None] + 1)
            result["same"] = tf.cast(target_ids[-1][:, :, None] + 1 == listed[:, None, :, 0], tf.float32)
        if self.num_recent:
            of_none = tf.zeros(tf.stack([num_rows, self.num_recent, targets.shape[1]]), self.compute_dtype)
            result["negatives"] = places[1].spread(items[1]) if len(places) > 1 else of_none
        return result

    @property
    def _max_items(self) -> int:
        longest = self._spec[self._history[0]].max_length
        assert longest is not None  # checked by the spec: a list has one
        return self.length or longest

    def _num_steps(self, nnzs: Any) -> Any:
        if self.length:
            return self.length
        longest = tf.minimum(tf.reduce_max(nnzs), self._max_items)
        return tf.maximum(longest, max(self.num_recent, 1))

    def _item_rows(self, ids: list[list[Any]]) -> list[Any]:
        """Look up all item features, one gather per table. Return concatenated features for each part of `ids`."""
        rows = [
            tf.gather(self.tables[name], tf.concat(of_feature, axis=0))
            for name, of_feature in zip(self._targets, ids, strict=True)
        ]
        side_by_side = tf.cast(tf.concat(rows, axis=1), self.compute_dtype)
        sizes = [tf.size(part) for part in ids[0]]
        parts: list[Any] = tf.split(side_by_side, tf.stack(sizes), num=len(sizes))
        return parts


class _Runs(NamedTuple):
    """A list column in flat form. Row i is the `nnzs[i]` elements of `values` up to and including index `last[i]`."""

    values: Any
    last: Any
    nnzs: Any


def _as_runs(column: Any) -> Any:
    if isinstance(column, Lists):
        ones = tf.ones_like(column.rows, tf.int32)
        nnzs = tf.math.unsorted_segment_sum(ones, column.rows, column.num_rows)
        return _Runs(column.values, tf.cumsum(nnzs) - 1, nnzs)
    if isinstance(column, PaddedLists):
        num_rows, width = tf.unstack(tf.shape(column.values))
        nnzs = tf.cast(tf.reshape(column.nnzs, [-1]), tf.int32)
        return _Runs(tf.reshape(column.values, [-1]), tf.range(num_rows) * width + nnzs - 1, nnzs)
    return column


class _Places:
    """The positions of a list column's latest values in a right-aligned matrix of shape (N, T).

    Attributes:
        is_item: bool (N, T).
    """

    def __init__(self, runs: _Runs, num_rows: Any, num_steps: Any, max_items: int) -> None:
        first = num_steps - tf.minimum(runs.nnzs, max_items)
        self.is_item = tf.range(num_steps) >= first[:, None]
        self._shape = [num_rows, num_steps]
        self._indices = tf.cast(tf.where(self.is_item), tf.int32)
        rows, steps = tf.unstack(self._indices, axis=1)
        self._sources = tf.gather(runs.last - num_steps + 1, rows) + steps

    def of(self, runs: _Runs) -> Any:
        """Return the values at these positions in row order, as a tensor of shape (number of values,)."""
        return tf.gather(runs.values, self._sources)

    def spread(self, rows: Any) -> Any:
        """Scatter `rows` (number of values, D) to their positions in a tensor (N, T, D) that is zero elsewhere.

        This is a scatter because its gradient is a gather; the gradient of a gather would be a sum.
        """
        return tf.scatter_nd(self._indices, rows, tf.stack([*self._shape, rows.shape[1]]))
