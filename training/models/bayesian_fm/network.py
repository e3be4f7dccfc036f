"""A factorisation machine that is fitted by Gibbs sampling.

ids, lists ─▶ a vector and a linear weight per column ─▶ all pairs, and the sum of the linear weights ─▶ Φ

For a label that is a number, its mean and deviation take the place of Φ, the distribution of a normal number.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr

from training.loader.columns import Column
from training.models.bayesian_fm import BayesianFMConfig
from training.models.bayesian_fm.gibbs import Array, Chain
from training.models.bayesian_fm.grouping import Encoded, partners
from training.models.bayesian_fm.posterior import Posterior
from training.models.config import StepConfig
from workflows.errors import SpecError
from workflows.feature_spec import Feature, FeatureSpec
from workflows.heads import BINARY
from workflows.lists import Ragged

_DRAW_EVERY = 2
"""Sweeps from one draw that is kept to the next: neighbours are alike."""


@dataclass(frozen=True, kw_only=True)
class Ids:
    """The ids of a feature in a matrix of rows.

    Attributes:
        feature: the feature.
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

    def encoded(self, rows: Array) -> Encoded:
        """The column as groups."""
        return (Encoded.of_lists if self.feature.is_list else Encoded.of)(self.of_rows(rows))

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


class BayesianFM:
    """What is fitted.

    Args:
        spec: the features and heads.
        model: its choices.

    Attributes:
        width: columns of `matrix`.
        tables: of each categorical feature (ids, `served_dim` + 1): vectors, and last their linear weights.

    Raises:
        SpecError: see `users_and_items`.
    """

    def __init__(self, spec: FeatureSpec, model: BayesianFMConfig) -> None:
        self._spec, self._model = spec, model
        (self._head,) = spec.heads
        self._sides = users_and_items(spec, model)
        ends = np.cumsum([0, *(feature.max_length or 1 for feature in spec.categorical)]).tolist()
        self._columns = [
            Ids(feature=feature, first=first, last=last)
            for feature, first, last in zip(spec.categorical, ends[:-1], ends[1:], strict=True)
        ]
        self.width: int = ends[-1]
        sizes = [feature.embedding_shape[0] for feature in spec.categorical]
        self.tables = [np.zeros((size, model.served_dim + 1), np.float32) for size in sizes]
        self._sampler: _Sampler | None = None

    def matrix(self, inputs: Mapping[str, Any]) -> Array:
        """Columns by name → the ids of N rows, int32 (N, `width`)."""
        return np.concatenate([ids.of_inputs(inputs[ids.feature.name]) for ids in self._columns], axis=1)

    def begin(self, rows: Array, labels: Array, seed: int) -> None:
        """Take up the rows to learn from: those of `matrix`, and labels (N,)."""
        head = self._head
        wanted = labels if head.task == BINARY else (labels - head.mean) / head.deviation
        order = np.lexsort((labels, *rows.T))  # draws are the same whatever the order, and memory is read in order
        encoded = [ids.encoded(rows[order]) for ids in self._columns]
        self._sampler = _Sampler(encoded, self._sides, wanted[order], self._model, seed, is_binary=head.task == BINARY)

    def sweep(self, sweeps: int) -> None:
        """Have so many sweeps since `begin`, and the mean of their draws in `tables`."""
        assert self._sampler is not None  # it has begun
        self._sampler.run(sweeps)
        self.tables = self._sampler.tables([len(table) for table in self.tables])

    def scores(self, rows: Array) -> Array:
        """What the head says of rows of `matrix`: float32 (N, 1)."""
        found = np.stack([ids.looked_up(table, rows) for ids, table in zip(self._columns, self.tables, strict=True)])
        vectors, linear = found[..., :-1], found[..., -1:].sum(axis=0)
        squares = (vectors**2).sum(axis=(0, 2))
        scores = linear + ((vectors.sum(axis=0) ** 2).sum(axis=1) - squares)[:, None] / 2
        head = self._head
        said: Array = ndtr(scores) if head.task == BINARY else scores * head.deviation + head.mean
        return said.astype(np.float32)

    def keras_model(self) -> Any:
        """The same as a Keras model, whose one output is that of the head, (N, 1)."""
        from training.models.bayesian_fm.served import served_model

        named = {ids.feature.name: table for ids, table in zip(self._columns, self.tables, strict=True)}
        return served_model(self._spec, named)


def users_and_items(spec: FeatureSpec, model: BayesianFMConfig) -> tuple[int, int]:
    """The places of users and items among the categorical features.

    Raises:
        SpecError: one is not named, or is no column of single ids; or a feature is a number, or a list without bound.
    """
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


def _place(spec: FeatureSpec, model: BayesianFMConfig, role: str, name: str | None) -> int:
    names = [feature.name for feature in spec.categorical]
    singles = [feature.name for feature in spec.categorical if not feature.is_list]
    if name not in singles:
        raise SpecError(
            f"model {model.name!r} needs a column of single ids of the {role}s, got {name!r}. Name it with "
            f"{role}_column. Available: {', '.join(singles) or 'none'}."
        )
    return names.index(name)


class _Sampler:
    """A chain over rows, and the mean of its draws.

    Args:
        columns: of the rows.
        sides: places of users and items.
        labels: (N,).
        model: the choices.
        seed: of the draws.
        is_binary: what the labels are.
    """

    def __init__(
        self,
        columns: Sequence[Encoded],
        sides: tuple[int, int],
        labels: Array,
        model: BayesianFMConfig,
        seed: int,
        *,
        is_binary: bool,
    ) -> None:
        self._columns, self._model, self._is_binary, self._done = columns, model, is_binary, 0
        user, item = (columns[side] for side in sides)
        beside = dict(zip(sides, ([partners(user, item)], [partners(item, user)]), strict=True))
        grouped = [column.known(*beside.get(place, ())) for place, column in enumerate(columns)]
        self._chain = Chain(grouped, labels, factors=model.factors, seed=seed, is_binary=is_binary)
        self._posterior = self._nothing()

    def run(self, sweeps: int) -> None:
        """Have so many sweeps in all."""
        while self._done < sweeps:
            self._chain.sweep()
            self._done += 1
            after = self._done - self._model.burn_in
            if after > 0 and after % _DRAW_EVERY == 0:
                self._keep(self._posterior)

    def tables(self, num_ids: Sequence[int]) -> list[Array]:
        """Of each column what its ids have, float32 (ids, dimensions + 1); an id without rows the mean of the others.

        Args:
            num_ids: of each column.
        """
        posterior = self._posterior
        if not posterior.num_draws:  # in the burn-in: as it is
            posterior = self._nothing()
            self._keep(posterior)
        weights, offset = posterior.mean()
        if self._is_binary:
            # The mean of Φ(f) over f of a mean and a variance is Φ(mean / √(1 + variance)).
            scale = 1 / math.sqrt(1 + posterior.variance())
            weights[:, :-1] *= math.sqrt(scale)
            weights[:, -1] *= scale
            offset *= scale
        ends = np.cumsum([len(column.ids) for column in self._columns])
        tables = []
        for known, column, size in zip(np.split(weights, ends[:-1]), self._columns, num_ids, strict=True):
            usual = known.mean(axis=0) if len(known) else np.zeros(weights.shape[1])  # lists may all be empty
            table = np.tile(usual, (size, 1))
            table[column.ids] = known
            tables.append(table)
        of_each_row = [column.is_list for column in self._columns].index(False)
        tables[of_each_row][:, -1] += offset
        return [table.astype(np.float32) for table in tables]

    def _nothing(self) -> Posterior:
        return Posterior(np.concatenate([column.frequencies for column in self._columns]), self._model.served_dim)

    def _keep(self, posterior: Posterior) -> None:
        chain = self._chain
        weights = [
            of_features[0] if column.is_list else of_groups
            for column, of_groups, of_features in zip(self._columns, chain.groups, chain.features, strict=True)
        ]
        posterior.add(np.concatenate(weights, axis=1), chain.offset, chain.scores())


def build(
    spec: FeatureSpec,
    model: BayesianFMConfig,
    step: StepConfig,  # noqa: ARG001  (a network's signature)
) -> BayesianFM:
    """A machine that has not learned yet.

    Raises:
        SpecError: see `users_and_items`.
    """
    return BayesianFM(spec, model)
