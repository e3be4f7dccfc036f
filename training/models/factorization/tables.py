"""Models that consist of tables with a row per id, exported as a factorization machine over these tables.

    ids, lists ─▶ a vector and a linear weight per column ─▶ dot products of all pairs, sum of linear weights ─▶ Φ

For a numeric label, rescaling by its mean and standard deviation replaces Φ, the normal distribution function.
Subclasses define how to fit the tables.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr

from rankline.training.data.loader.columns import Column
from rankline.training.distributed.communicator import Array
from rankline.training.models.config import TablesConfig
from rankline.workflows.core.errors import SpecError
from rankline.workflows.schema.feature_spec import Feature, FeatureSpec
from rankline.workflows.schema.ragged import Ragged
from rankline.workflows.schema.targets import BINARY


@dataclass(frozen=True, kw_only=True)
class Ids:
    """The columns that one feature's ids occupy in a matrix of rows.

    Attributes:
        first, last: range of its columns in the matrix: one, or the length of its longest list, padded with 0.
    """

    feature: Feature
    first: int
    last: int

    def of_inputs(self, column: Column) -> Array:
        if isinstance(column, Ragged):
            return column.padded(self.last - self.first).values.astype(np.int32)
        return column.reshape(len(column), -1).astype(np.int32)

    def of_rows(self, rows: Array) -> Array:
        """Return each row's ids, of shape (N,), or (N, W) for lists."""
        return rows[:, self.first : self.last] if self.feature.is_list else rows[:, self.first]

    def looked_up(self, table: Array, rows: Array) -> Array:
        """Look up each row's ids in `table`, returning one vector per row. The vectors of lists are averaged, and empty
        lists give zeros.
        """
        ids = self.of_rows(rows)
        if not self.feature.is_list:
            return table[ids]
        is_there = ids > 0
        total = np.zeros((len(ids), table.shape[1]), np.float32)
        for place in range(ids.shape[1]):
            total += table[ids[:, place]] * is_there[:, place, None]
        mean: Array = total / np.maximum(is_there.sum(axis=1), 1)[:, None]
        return mean


class TablesModel(ABC):
    """Base class of models that consist only of tables with a row per id.

    Attributes:
        sides: indices of the user and the item column.
        width: columns of `matrix`.
        tables: for each categorical feature (ids, `served_dim` + 1): vectors, and linear weights in the last column.
    """

    def __init__(self, spec: FeatureSpec, model: TablesConfig) -> None:
        self._spec = spec
        (self.head,) = spec.heads
        self.sides = users_and_items(spec, model)
        ends = np.cumsum([0, *(feature.max_length or 1 for feature in spec.categorical)]).tolist()
        self.columns = [
            Ids(feature=feature, first=first, last=last)
            for feature, first, last in zip(spec.categorical, ends[:-1], ends[1:], strict=True)
        ]
        self.width: int = ends[-1]
        self.row_dtype = np.int32
        sizes = [feature.embedding_shape[0] for feature in spec.categorical]
        self.tables = [np.zeros((size, model.served_dim + 1), np.float32) for size in sizes]

    @abstractmethod
    def begin(self, rows: Array, labels: Array, seed: int) -> None:
        """Start fitting to `rows`, which have the format of `matrix` and are in file order. `labels` has shape (N,)."""

    @abstractmethod
    def learn(self, share: float) -> None:
        """Continue fitting until `share`, a fraction of the whole training, is complete. Then update `tables`."""

    def matrix(self, inputs: Mapping[str, Any]) -> Array:
        """Convert a dict of columns to a matrix of ids, int32 of shape (N, `width`)."""
        return np.concatenate([ids.of_inputs(inputs[ids.feature.name]) for ids in self.columns], axis=1)

    def scores(self, rows: Array) -> Array:
        """Return scores as float32 of shape (N, 1), for rows encoded by `matrix`."""
        found = np.stack([ids.looked_up(table, rows) for ids, table in zip(self.columns, self.tables, strict=True)])
        vectors, linear = found[..., :-1], found[..., -1:].sum(axis=0)
        squares = (vectors**2).sum(axis=(0, 2))
        scores = linear + ((vectors.sum(axis=0) ** 2).sum(axis=1) - squares)[:, None] / 2
        head = self.head
        said: Array = ndtr(scores) if head.task == BINARY else scores * head.deviation + head.mean
        return said.astype(np.float32)

    def keras_model(self) -> Any:
        """Return an equivalent Keras model with a single output, the scores of shape (N, 1)."""
        from rankline.training.models.factorization.served_tables import served_model

        named = {ids.feature.name: table for ids, table in zip(self.columns, self.tables, strict=True)}
        return served_model(self._spec, named)


def users_and_items(spec: FeatureSpec, model: TablesConfig) -> tuple[int, int]:
    """Return the indices of the user column and the item column among the categorical features."""
    if numbers := [feature.name for feature in spec.continuous]:
        raise SpecError(
            f"model {model.name!r} supports only ids and lists of ids, but {numbers} are numeric. Bucketize them."
        )
    if endless := [feature.name for feature in spec.categorical if feature.is_list and feature.max_length is None]:
        raise SpecError(f"model {model.name!r} supports only lists with a max_length, but {endless} have none.")
    user = _place(spec, model, "user", model.user_column or spec.metadata.group_by)
    item = _place(spec, model, "item", model.item_column or spec.metadata.item)
    if user == item:
        name = spec.categorical[user].name
        raise SpecError(f"model {model.name!r} got {name!r} for both users and items, expected two columns.")
    return user, item


def _place(spec: FeatureSpec, model: TablesConfig, role: str, name: str | None) -> int:
    names = [feature.name for feature in spec.categorical]
    singles = [feature.name for feature in spec.categorical if not feature.is_list]
    if name not in singles:
        raise SpecError(
            f"model {model.name!r} requires a column with one {role} id per row, got {name!r}. Set {role}_column. "
            f"Available: {', '.join(singles) or 'none'}."
        )
    return names.index(name)
