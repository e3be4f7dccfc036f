"""Scored rows, the input of metrics, collected from batches so that equal rows are stored once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rankline.training.distributed.communicator import SOLO, Array, Communicator
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.schema.targets import BINARY, Head

_PENDING_ROWS = 1 << 20
_MAX_GROUPS = 1 << 31
_ROUNDING = 1e-6  # by which a blend of float32 probabilities may exceed 1


@dataclass(frozen=True, kw_only=True)
class ScoredRows:
    """Scored rows of a split, in any order.

    Attributes:
        labels: labels of one head, shape (N,).
        scores: probabilities or numbers, shape (N,), or probabilities of C classes, shape (N, C).
        counts: number of occurrences of each row, int64 of shape (N,).
        groups: group of each row, shape (N,), any sortable dtype; None if rows have no groups.
    """

    labels: Array
    scores: Array
    counts: Array
    groups: Array | None = None

    @classmethod
    def of(cls, labels: Array, scores: Array, groups: Array | None = None) -> "ScoredRows":
        return cls(labels=labels, scores=scores, counts=np.ones(len(labels), np.int64), groups=groups)

    def mean(self, values: Array) -> float:
        """Return the mean of `values`, of shape (N,) with one value per row, weighted by the rows' counts."""
        return float(np.average(values.astype(np.float64), weights=self.counts))


class Tally:
    """Collects the rows of a split batch by batch.

    For a single binary head it stores 16 bytes for each distinct (group, score, label), and up to 8 more for as many
    rows that have not been counted yet. There are at most 2^30 float32 probabilities, and models produce far fewer
    distinct ones, so memory does not grow with the number of rows. The metrics are exact and do not depend on the order
    of the rows. Rows of other tasks and of several heads are stored individually.
    """

    def __init__(self, heads: Sequence[Head]) -> None:
        self._is_binary = [head.task for head in heads] == [BINARY]
        self._has_groups = False
        self._keys, self._counts = np.empty(0, np.int64), np.empty(0, np.int64)
        self._pending: list[Array] = []
        self._num_pending = 0
        self._held: list[tuple[Array, ...]] = []

    def add(self, labels: Array, scores: Array, groups: Array | None = None) -> None:
        """Add a batch. Pass groups for all batches or for none.

        Raises:
            FloatingPointError: a score is not finite.
            ConfigError: a score of a single binary head is not a probability.
            ValueError: a label of a single binary head is neither 0 nor 1.
        """
        if not np.isfinite(scores).all():
            raise FloatingPointError("a score is not finite.")
        if self._is_binary and len(scores) and not -_ROUNDING <= scores.min() <= scores.max() <= 1 + _ROUNDING:
            raise ConfigError(
                f"the model's scores are between {scores.min():.3g} and {scores.max():.3g}, expected probabilities. "
                "End its network with a sigmoid."
            )
        if not self._is_binary or (groups is not None and groups.dtype.kind not in "iu"):
            self._held.append((labels, scores) if groups is None else (labels, scores, groups))
            return
        self._has_groups = groups is not None
        self._pending.append(_packed(labels, scores, groups))
        self._num_pending += len(labels)
        if self._num_pending > max(_PENDING_ROWS, len(self._keys)):
            self._count()

    def rows(self, world: Communicator = SOLO) -> ScoredRows:
        """Gather the rows of all workers. Every worker gets the same result."""
        if self._held:
            labels, scores, *groups = (
                world.all_gather(np.concatenate(column)) for column in zip(*self._held, strict=True)
            )
            return ScoredRows.of(labels, scores, *groups)
        self._count()
        return _unpacked(*_merged(world.all_gather(self._keys), world.all_gather(self._counts)), self._has_groups)

    def _count(self) -> None:
        if self._pending:
            keys, counts = np.unique(np.concatenate(self._pending), return_counts=True)
            self._pending, self._num_pending = [], 0
            self._keys, self._counts = _merged(
                np.concatenate([self._keys, keys]), np.concatenate([self._counts, counts])
            )


def starts(values: Array) -> Array:
    """Return a mask that marks the first value and each value that differs from its predecessor."""
    changes = np.ones(len(values), dtype=bool)
    changes[1:] = values[1:] != values[:-1]
    return changes


def _packed(labels: Array, scores: Array, groups: Array | None) -> Array:
    """Encode each row as an integer: 31 bits for the group, 32 for the float32 score, 1 for the label."""
    if not np.isin(labels, (0, 1)).all():
        raise ValueError("labels contain values other than 0 and 1.")
    keys: Array = scores.astype(np.float32).view(np.uint32).astype(np.int64) << 1 | (labels == 1)
    if groups is None:
        return keys
    if groups.min(initial=0) < 0 or groups.max(initial=0) >= _MAX_GROUPS:
        raise ValueError(
            f"groups range from {groups.min()} to {groups.max()}, expected ids from 0 to {_MAX_GROUPS - 1}."
        )
    keys |= groups.astype(np.int64) << 33
    return keys


def _unpacked(keys: Array, counts: Array, has_groups: bool) -> ScoredRows:
    return ScoredRows(
        labels=(keys & 1).astype(np.float32),
        scores=(keys >> 1 & 0xFFFFFFFF).astype(np.uint32).view(np.float32),
        counts=counts,
        groups=keys >> 33 & (_MAX_GROUPS - 1) if has_groups else None,  # mask the sign extension of the shift
    )


def _merged(keys: Array, counts: Array) -> tuple[Array, Array]:
    """Sort the keys and sum the counts of equal ones. A stable sort is fast here: the input is a few sorted runs."""
    order = np.argsort(keys, kind="stable")
    begins = np.flatnonzero(starts(keys[order]))
    return keys[order][begins], np.add.reduceat(counts[order], begins) if len(begins) else counts


MAX_ROWS = 1_000_000
"""Takes 8 MB for a binary head; the standard error of an AUC over this many rows is below 0.001."""


class FirstRows:
    """The labels and scores of the first rows of a split, up to `MAX_ROWS`."""

    def __init__(self) -> None:
        self._parts: list[tuple[Array, Array]] = []
        self._room = MAX_ROWS

    def add(self, labels: Array, scores: Array) -> None:
        """Add a batch, up to the maximum number of rows."""
        if self._room:
            self._parts.append((labels[: self._room].copy(), scores[: self._room].copy()))
            self._room -= len(self._parts[-1][0])

    def gathered(self, world: Communicator = SOLO) -> tuple[Array, Array]:
        """Gather the labels and scores of all workers, in the order of the split. Every worker gets the same result."""
        labels, scores = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        return world.all_gather(labels)[:MAX_ROWS], world.all_gather(scores)[:MAX_ROWS]
