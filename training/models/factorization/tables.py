"""Models that are tables alone, a row for each id: what is served is a factorisation machine over them.

ids, lists ─▶ a vector and a linear weight per column ─▶ all pairs, and the sum of the linear weights ─▶ Φ

For a label that is a number, its mean and deviation take the place of Φ, the distribution of a normal number. How the
tables are found is the models'.
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
    """The ids of a feature in a matrix of rows.

    Attributes:
        first, last: its columns, up to `last`: one, or as many as its longest list has; 0 is behind the end of a list.
    """

    feature: Feature
    first: int
    last: int

    def of_inputs(self, column: Column) -> Array:
        """Its part of the matrix, int32."""
        if isinstance(column, Ragged):
            return column.padded(self.last - self.first).values.astype(np.int32)
        return column.reshape(len(column), -1).astype(np.int32)

    def of_rows(self, rows: Array) -> Array:
        """The ids of each row: (N,), or (N, W) of lists."""
        return rows[:, self.first : self.last] if self.feature.is_list else rows[:, self.first]

    def looked_up(self, table: Array, rows: Array) -> Array:
        """What each row has in a table, (N, dimensions): of a list the mean, of an empty one nothing."""
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
    """What is fitted.

    Attributes:
        columns: the categorical features.
        sides: places of users and of items among them.
        head: what is learned.
        width: columns of `matrix`.
        tables: of each categorical feature (ids, `served_dim` + 1): vectors, and last their linear weights.
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
        sizes = [feature.embedding_shape[0] for feature in spec.categorical]
        self.tables = [np.zeros((size, model.served_dim + 1), np.float32) for size in sizes]

    @abstractmethod
    def begin(self, rows: Array, labels: Array, seed: int) -> None:
        """Take up the rows to learn from: those of `matrix`, in the order of the files, and labels (N,)."""

    @abstractmethod
    def learn(self, share: float) -> None:
        """Have learned that share of the whole since `begin`, and what it says in `tables`."""

    def matrix(self, inputs: Mapping[str, Any]) -> Array:
        """Columns by name → the ids of N rows, int32 (N, `width`)."""
        return np.concatenate([ids.of_inputs(inputs[ids.feature.name]) for ids in self.columns], axis=1)

    def scores(self, rows: Array) -> Array:
        """What the head says of rows of `matrix`: float32 (N, 1)."""
        found = np.stack([ids.looked_up(table, rows) for ids, table in zip(self.columns, self.tables, strict=True)])
        vectors, linear = found[..., :-1], found[..., -1:].sum(axis=0)
        squares = (vectors**2).sum(axis=(0, 2))
        scores = linear + ((vectors.sum(axis=0) ** 2).sum(axis=1) - squares)[:, None] / 2
        head = self.head
        said: Array = ndtr(scores) if head.task == BINARY else scores * head.deviation + head.mean
        return said.astype(np.float32)

    def keras_model(self) -> Any:
        """The same as a Keras model, whose one output is that of the head, (N, 1)."""
        from rankline.training.models.factorization.served_tables import served_model

        named = {ids.feature.name: table for ids, table in zip(self.columns, self.tables, strict=True)}
        return served_model(self._spec, named)


def users_and_items(spec: FeatureSpec, model: TablesConfig) -> tuple[int, int]:
    """The places of users and items among the categorical features."""
    if numbers := [feature.name for feature in spec.continuous]:
        raise SpecError(f"model {model.name!r} takes ids and lists of ids, and {numbers} are numbers. Bucketize them.")
    if endless := [feature.name for feature in spec.categorical if feature.is_list and feature.max_length is None]:
        raise SpecError(f"model {model.name!r} takes lists with a max_length, and {endless} have none.")
    user = _place(spec, model, "user", model.user_column or spec.metadata.group_by)
    item = _place(spec, model, "item", model.item_column or spec.metadata.item)
    if user == item:
        name = spec.categorical[user].name
        raise SpecError(f"model {model.name!r} got {name!r} for users and items, expected two columns.")
    return user, item


def _place(spec: FeatureSpec, model: TablesConfig, role: str, name: str | None) -> int:
    names = [feature.name for feature in spec.categorical]
    singles = [feature.name for feature in spec.categorical if not feature.is_list]
    if name not in singles:
        raise SpecError(
            f"model {model.name!r} needs a column of single ids of the {role}s, got {name!r}. Name it with "
            f"{role}_column. Available: {', '.join(singles) or 'none'}."
        )
    return names.index(name)
