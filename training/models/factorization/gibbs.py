"""Gibbs sampling of the weights of a factorization machine.

In each column a row has a *group*: an id, or a list of ids. A group's vector is a weighted sum of the vectors of its
*features*, which come in blocks: the id itself, the ids of the list (their mean), or attributes of the id, such as the
items of a user, with weight 1/√(their number). With linear weights b and vectors v of the groups:

    f = offset + Σ_c b_c + Σ_{c<c'} v_c · v_c'

For a binary label, a latent normal variable around f is positive if the label is 1 (Albert & Chib 1993, "Bayesian
analysis of binary and polychotomous response data"); a numeric label is itself that variable. Each block has a normal
prior for each of its dimensions, whose mean and precision are drawn as well (Freudenthaler, Schmidt-Thieme & Rendle
2011, "Bayesian factorization machines"). The statistics of the rows of a group are summed once, and the features of all
its blocks are drawn from these sums (Rendle 2013, "Scaling factorization machines to relational data"). The time of a
sweep is therefore proportional to rows × dimensions, no matter how many items a user has.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rankline.training.data.loader.gather import compiled
from rankline.workflows.nvt.keys import sorted_distinct

Array = npt.NDArray[Any]
_START = 0.1
"""Standard deviation of the initial vectors; all zeros would take many sweeps to leave."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """A sparse weight matrix that maps features to groups of rows, stored feature by feature.

    Attributes:
        starts: start of the entries of each feature, and the end; (features + 1,).
        groups: group of each entry, int32.
        weights: weight of each entry.
    """

    starts: Array
    groups: Array
    weights: Array

    @classmethod
    def of_entries(cls, features: Array, groups: Array, weights: Array, num_features: int) -> "Block":
        order = np.argsort(features, kind="stable")
        starts = np.concatenate(([0], np.cumsum(np.bincount(features, minlength=num_features))))
        return cls(starts=starts, groups=groups[order].astype(np.int32), weights=weights[order].astype(np.float64))

    @classmethod
    def identity(cls, num_groups: int) -> "Block":
        """Build the identity matrix, in which each group has itself as its only feature."""
        return cls.of_entries(np.arange(num_groups), np.arange(num_groups), np.ones(num_groups), num_groups)

    def __len__(self) -> int:
        return len(self.starts) - 1


@dataclass(frozen=True, kw_only=True)
class GroupedColumn:
    """A column with grouped rows. `groups`, int32 (N,), maps rows to groups; `blocks` contain the groups' features."""

    groups: Array
    num_groups: int
    blocks: tuple[Block, ...]


class Chain:
    """A Gibbs sampler that stores the current sample of all weights and computes the next. Reproducible given a seed.

    Attributes:
        groups: for each column the weights of its groups, (factors + 1, groups); the last row is linear.
        features: for each column and block the weights of its features, (factors + 1, features).
        offset: constant term of all rows.
    """

    def __init__(
        self, columns: Sequence[GroupedColumn], labels: Array, *, factors: int, seed: int, is_binary: bool
    ) -> None:
        self._columns, self._labels, self._is_binary = columns, labels.astype(np.float64), is_binary
        self._random = np.random.default_rng(seed)
        self.features = [[_drawn(self._random, factors, len(block)) for block in column.blocks] for column in columns]
        self.groups = [
            np.sum([_of_groups(*pair, column.num_groups) for pair in zip(column.blocks, drawn, strict=True)], axis=0)
            for column, drawn in zip(columns, self.features, strict=True)
        ]
        self._priors = [[np.tile([0.0, 1.0], (factors + 1, 1)) for _ in column.blocks] for column in columns]
        self.offset, self._noise_precision = 0.0, 1.0
        self._sums = self._of_rows([of[:-1] for of in self.groups])  # (factors, N)
        self._errors = np.zeros(len(labels))  # latent variable minus f
        self._latent = self._scores()

    def sweep(self) -> None:
        _seed(self._random.integers(1 << 32))  # Numba's generator is global and shared by all chains
        if self._is_binary:
            _draw_latent(self._labels, self._latent, self._errors)
        else:
            self._errors += self._labels - self._latent
            self._latent = self._labels
            self._noise_precision = _gamma((1 + len(self._errors)) / 2, (1 + self._errors @ self._errors) / 2)
        self._draw_offset()
        factors = len(self._sums)
        for dimension in (factors, *range(factors)):
            is_linear = dimension == factors
            sums = self._errors if is_linear else self._sums[dimension]  # not used for linear weights
            for place in range(len(self._columns)):
                self._draw_column(place, dimension, sums, is_linear=is_linear)

    def scores(self) -> Array:
        """Return the model's raw scores f, of shape (N,)."""
        scores: Array = self._latent - self._errors
        return scores

    def _draw_offset(self) -> None:
        precision = self._noise_precision * len(self._errors) + 0.01
        mean = self._noise_precision * (self._errors.sum() + self.offset * len(self._errors)) / precision
        drawn = mean + _normal() / math.sqrt(precision)
        self._errors -= drawn - self.offset
        self.offset = drawn

    def _draw_column(self, place: int, dimension: int, sums: Array, *, is_linear: bool) -> None:
        column, weights = self._columns[place], self.groups[place][dimension]
        slopes, squares = np.zeros(column.num_groups), np.zeros(column.num_groups)
        _add_up(column.groups, sums, weights, self._errors, slopes, squares, is_linear)
        change = np.zeros(column.num_groups)
        for block, features, priors in zip(column.blocks, self.features[place], self._priors[place], strict=True):
            drawn, prior = features[dimension], priors[dimension]
            _draw_prior(drawn, prior)
            of_block = (block.starts, block.groups, block.weights)
            _draw_features(*of_block, drawn, slopes, squares, change, prior, self._noise_precision)
        _apply(column.groups, sums, weights, self._errors, change, is_linear)
        weights += change

    def _of_rows(self, of_groups: Sequence[Array]) -> Array:
        """Sum the values of each row's groups over all columns, returning an array of shape (…, N)."""
        pairs = zip(of_groups, self._columns, strict=True)
        total: Array = np.sum([numbers[..., column.groups] for numbers, column in pairs], axis=0)
        return total

    def _scores(self) -> Array:
        own = self._of_rows([of[-1] - (of[:-1] ** 2).sum(axis=0) / 2 for of in self.groups])
        scores: Array = self.offset + own + (self._sums**2).sum(axis=0) / 2
        return scores


def _drawn(random: np.random.Generator, factors: int, num_features: int) -> Array:
    weights = np.zeros((factors + 1, num_features))
    weights[:-1] = random.normal(scale=_START, size=(factors, num_features))
    return weights


def _of_groups(block: Block, features: Array, num_groups: int) -> Array:
    """Sum the weighted features of each group, returning an array of shape (…, groups)."""
    of_entry = np.repeat(np.arange(len(block)), np.diff(block.starts))
    sums = np.zeros((len(features), num_groups))
    for of_dimension, weights in zip(sums, features, strict=True):
        np.add.at(of_dimension, block.groups, block.weights * weights[of_entry])
    return sums


# --- Loops


@compiled
def _seed(seed: int) -> None:
    np.random.seed(seed)


@compiled
def _normal() -> float:
    return np.random.standard_normal()


@compiled
def _gamma(shape: float, rate: float) -> float:
    return np.random.gamma(shape, 1 / rate)


@compiled
def _above(bound: float) -> float:
    """Sample a standard normal truncated below at `bound` (Robert 1995, "Simulation of truncated normal variables")."""
    if bound < 0.5:
        while True:
            number = np.random.standard_normal()
            if number > bound:
                return number
    rate = (bound + math.sqrt(bound * bound + 4)) / 2
    while True:
        number = bound + np.random.exponential(1 / rate)
        if np.random.random() <= math.exp(-((number - rate) ** 2) / 2):
            return number


@compiled
def _draw_latent(labels: Array, latent: Array, errors: Array) -> None:
    """Sample latent variables, positive for label 1 and negative for label 0."""
    for row in range(len(labels)):
        score = latent[row] - errors[row]
        side = 1.0 if labels[row] > 0.5 else -1.0
        errors[row] = side * _above(-side * score)
        latent[row] = score + errors[row]


@compiled
def _add_up(
    groups: Array, sums: Array, weights: Array, errors: Array, slopes: Array, squares: Array, is_linear: bool
) -> None:
    """Add each row's statistics to its group. `h` is the derivative of f with respect to the group's weight."""
    for row in range(len(groups)):
        group = groups[row]
        h = 1.0 if is_linear else sums[row] - weights[group]
        slopes[group] += h * errors[row]
        squares[group] += h * h


@compiled
def _apply(groups: Array, sums: Array, weights: Array, errors: Array, change: Array, is_linear: bool) -> None:
    for row in range(len(groups)):
        group = groups[row]
        if is_linear:
            errors[row] -= change[group]
        else:
            errors[row] -= (sums[row] - weights[group]) * change[group]
            sums[row] += change[group]


@compiled
def _draw_prior(weights: Array, prior: Array) -> None:
    """Sample the mean and precision of a block's weights under a normal-gamma prior of unit strength."""
    mean, squares = prior[0], prior[0] ** 2
    for weight in weights:
        squares += (weight - mean) ** 2
    precision = _gamma((len(weights) + 2) / 2, (1 + squares) / 2)
    prior[0] = weights.sum() / (len(weights) + 1) + _normal() / math.sqrt(precision * (len(weights) + 1))
    prior[1] = precision


@compiled
def _draw_features(
    starts: Array,
    groups: Array,
    entries: Array,
    weights: Array,
    slopes: Array,
    squares: Array,
    change: Array,
    prior: Array,
    noise_precision: float,
) -> None:
    """Sample the weights of a block one by one, updating `slopes` and `change` after each."""
    mean, precision = prior
    for feature in range(len(weights)):
        slope, square = 0.0, 0.0
        for place in range(starts[feature], starts[feature + 1]):
            group, entry = groups[place], entries[place]
            slope += entry * slopes[group]
            square += entry * entry * squares[group]
        known = precision + noise_precision * square
        expected = (precision * mean + noise_precision * (slope + weights[feature] * square)) / known
        step = expected + _normal() / math.sqrt(known) - weights[feature]
        weights[feature] += step
        for place in range(starts[feature], starts[feature + 1]):
            group, entry = groups[place], entries[place]
            slopes[group] -= entry * step * squares[group]
            change[group] += entry * step


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """A column whose rows are mapped to groups numbered from 0.

    Attributes:
        ids: distinct ids, sorted.
        frequencies: number of occurrences of each id.
        groups: group of each row, int32 (N,).
        own: the ids as features of the groups.
    """

    ids: Array
    frequencies: Array
    groups: Array
    num_groups: int
    own: Block
    is_list: bool

    @classmethod
    def of(cls, ids: Array) -> "Encoded":
        """Encode a column of single ids, where each distinct id is a group."""
        distinct, groups, counts = np.unique(ids, return_inverse=True, return_counts=True)
        return cls(
            ids=distinct,
            frequencies=counts,
            groups=groups.astype(np.int32),
            num_groups=len(distinct),
            own=Block.identity(len(distinct)),
            is_list=False,
        )

    @classmethod
    def of_lists(cls, ids: Array) -> "Encoded":
        """Encode an (N, W) array of zero-padded id lists. Each distinct list becomes a group of equal weights."""
        lists, groups, counts = np.unique(ids, axis=0, return_inverse=True, return_counts=True)
        of_entry, place = np.nonzero(lists)
        distinct, features = np.unique(lists[of_entry, place], return_inverse=True)
        shares = 1 / np.bincount(of_entry, minlength=len(lists))[of_entry]
        return cls(
            ids=distinct,
            frequencies=np.bincount(features, counts[of_entry], minlength=len(distinct)),
            groups=groups.reshape(-1).astype(np.int32),
            num_groups=len(lists),
            own=Block.of_entries(features, of_entry, shares, len(distinct)),
            is_list=True,
        )

    def known(self, *beside: Block) -> GroupedColumn:
        return GroupedColumn(groups=self.groups, num_groups=self.num_groups, blocks=(self.own, *beside))


def partners(side: Encoded, other: Encoded) -> Block:
    """Build a block where each group of `side` has as features the k groups of `other` sharing rows, weighted 1/√k."""
    pairs = sorted_distinct(side.groups.astype(np.int64) * other.num_groups + other.groups)
    groups, features = np.divmod(pairs, other.num_groups)
    weights = 1 / np.sqrt(np.bincount(groups, minlength=side.num_groups))[groups]
    return Block.of_entries(features, groups, weights, other.num_groups)
