"""Conversion of user interactions to rows, each of which has an item to score and a history of previous items.

The steps follow NVIDIA's SIM for TensorFlow 2. Each user's last item is held out. Every earlier item gives a positive
row, whose history is the items before it, followed by negative rows with items that the user did not choose. A held-out
row is followed by one negative row. Negatives are drawn from all interactions, so popular items are drawn more often.
This module works on codes of users and items and does not depend on their raw values.

Each draw depends only on the seed, its purpose and its row number, so the block size does not affect the rows. The
random numbers are SplitMix64's (Steele, Lea & Flood, "Fast splittable pseudorandom number generators", 2014), which can
compute any number of a stream directly.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankline.workflows.core.errors import DataError
from rankline.workflows.nvt.keys import hash_ids, sorted_distinct
from rankline.workflows.preprocess.config import SequenceConfig
from rankline.workflows.schema.ragged import offsets_of

TRAIN, VALID = "train", "valid"
_STREAMS = {(TRAIN, "items"): 0, (TRAIN, "history"): 1, (VALID, "items"): 2, (VALID, "history"): 3}
_INCREMENT = np.uint64(0x9E3779B97F4A7C15)  # constant of SplitMix64
_ATTEMPTS = 32

Codes = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Interactions:
    items: NDArray[np.int32]  # item codes, grouped by user, in chronological order; shape (num_interactions,)
    offsets: Codes  # user i has the items from offsets[i] up to offsets[i + 1]; shape (num_users + 1,)
    num_items: int  # codes are in [0, num_items)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A block of N rows whose histories contain M items in total."""

    users: Codes  # shape (N,)
    items: NDArray[np.int32]  # the items to score, shape (N,)
    labels: NDArray[np.float32]  # 1 if the user chose the item, else 0; shape (N,)
    history: NDArray[np.int32]  # concatenated histories, each with the latest item last; shape (M,)
    negatives: NDArray[np.int32] | None  # for each of `history`, an item that the user did not choose, (M,)
    offsets: Codes  # row i has the items from offsets[i] up to offsets[i + 1]; shape (N + 1,)


class Sequences:
    """A generator of rows from interactions. `num_rows`, `num_negatives` and `dropped` are available in advance.

    Raises:
        DataError: no rows are left for training or validation.
    """

    def __init__(self, interactions: Interactions, config: SequenceConfig) -> None:
        self._items, self._offsets, self._config = interactions.items, interactions.offsets, config
        lengths = np.diff(self._offsets)
        is_kept = lengths >= config.min_interactions
        if not is_kept.any():
            raise DataError(
                f"none of {len(lengths):,} users has {config.min_interactions} interactions or more; the maximum "
                f"is {lengths.max(initial=0)}. Lower min_interactions, or provide more data."
            )
        num_unused = 0 if config.holdout == "last" else 1
        users = np.repeat(np.arange(len(lengths)), lengths)
        in_reach = is_kept[users]
        own = None if config.own_items else _Pairs(users[in_reach], self._items[in_reach], interactions.num_items)
        if num_unused:
            in_reach[self._offsets[1:][is_kept] - 1] = False
        pool = self._items[in_reach]
        has_all = np.zeros_like(is_kept) if own is None else own.with_all(pool, len(lengths))
        if (has_all == is_kept).all():
            raise DataError(
                f"all {is_kept.sum():,} users chose every item, so no negatives can be drawn. Provide data "
                "with more items, or set own_items to draw from all items."
            )
        self._held_out = np.where(is_kept & ~has_all, lengths - 1 - num_unused, 0)
        longest = int(self._held_out.max())
        if longest <= config.min_history:
            raise DataError(
                f"no user has more than {longest} items before the held-out one, but min_history is "
                f"{config.min_history}, so there are no training rows. Lower min_history, or provide more data."
            )
        self._longest = min(longest, config.max_history)
        self.dropped = {
            f"of users with fewer than {config.min_interactions} interactions": int(lengths[~is_kept].sum()),
            "of users who chose every item": int(lengths[has_all].sum()),
        }
        self._negatives = _Negatives(pool, own, config.negative_seed)
        num_train = np.maximum(self._held_out - config.min_history, 0)
        self._positions = {
            TRAIN: _Positions(np.full_like(self._held_out, config.min_history), num_train),
            VALID: _Positions(self._held_out, (self._held_out >= config.min_history).astype(np.int64)),
        }
        self.num_negatives = {TRAIN: config.negatives, VALID: 1}
        self.num_rows = {name: len(split) * (1 + self.num_negatives[name]) for name, split in self._positions.items()}

    def training_interactions(self) -> tuple[Codes, NDArray[np.int32]]:
        """Return the users and items of all interactions before the held-out ones, for building vocabularies."""
        lengths = np.diff(self._offsets)
        before = np.arange(len(self._items)) < np.repeat(self._offsets[:-1] + self._held_out, lengths)
        return np.repeat(np.arange(len(lengths)), lengths)[before], self._items[before]

    def rows(self, split: str, max_values: int = 1 << 22) -> Iterator[Rows]:
        """Yield blocks of rows of a split, ordered by user and time, with each positive before its negatives.

        A block has at most `max_values` history items, unless a single positive has more.
        """
        positions, config = self._positions[split], self._config
        num_negatives = self.num_negatives[split]
        num_alike = 1 + num_negatives
        num_positives = max(1, max_values // (self._longest * num_alike))
        num_values = 0
        for start in range(0, len(positions), num_positives):
            users, places = positions.at(np.arange(start, min(start + num_positives, len(positions))))
            targets = self._offsets[users] + places
            drawn = self._negatives.draw(
                _STREAMS[split, "items"], start * num_negatives, np.repeat(users, num_negatives)
            )
            items = np.column_stack([self._items[targets], drawn.reshape(len(users), num_negatives)])
            labels = np.zeros(items.shape, dtype=np.float32)
            labels[:, 0] = 1
            lengths = np.repeat(np.minimum(places, config.max_history), num_alike)
            offsets = offsets_of(lengths)
            first = np.repeat(targets, num_alike) - lengths
            history = self._items[np.repeat(first - offsets[:-1], lengths) + np.arange(offsets[-1])]
            users = np.repeat(users, num_alike)
            negatives = None
            if config.negative_history:
                negatives = self._negatives.draw(_STREAMS[split, "history"], num_values, np.repeat(users, lengths))
            num_values += len(history)
            yield Rows(
                users=users,
                items=items.ravel(),
                labels=labels.ravel(),
                history=history,
                negatives=negatives,
                offsets=offsets,
            )


class _Positions:
    """A mapping from consecutive numbers to users and positions. User i has `counts[i]` positions from `first[i]`."""

    def __init__(self, first: Codes, counts: Codes) -> None:
        self._ends = np.cumsum(counts)
        self._shift = first - (self._ends - counts)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def at(self, numbers: Codes) -> tuple[Codes, Codes]:
        users = np.searchsorted(self._ends, numbers, side="right")
        return users, numbers + self._shift[users]


class _Pairs:
    """The set of (user, item) pairs in the interactions, for item codes below `num_items`."""

    def __init__(self, users: Codes, items: NDArray[np.int32], num_items: int) -> None:
        self._num_items = num_items
        self._keys = sorted_distinct(users * num_items + items)

    def hold(self, users: Codes, items: NDArray[np.int32]) -> NDArray[np.bool_]:
        keys = users * self._num_items + items
        places = np.searchsorted(self._keys, keys)
        found: NDArray[np.bool_] = self._keys[np.minimum(places, len(self._keys) - 1)] == keys
        return found

    def with_all(self, pool: NDArray[np.int32], num_users: int) -> NDArray[np.bool_]:
        """Return a mask of shape (num_users,) that marks the users who chose every item in `pool`."""
        is_there = np.zeros(self._num_items, dtype=np.bool_)
        is_there[pool] = True
        users, items = np.divmod(self._keys, self._num_items)
        num_chosen = np.bincount(users[is_there[items]], minlength=num_users)
        chose_all: NDArray[np.bool_] = np.equal(num_chosen, is_there.sum())
        return chose_all


class _Negatives:
    """A sampler that selects pool items in proportion to their frequency, excluding items that the user chose."""

    def __init__(self, pool: NDArray[np.int32], own: _Pairs | None, seed: int) -> None:
        self._pool, self._own, self._seed = pool, own, seed

    def draw(self, stream: int, first: int, users: Codes) -> NDArray[np.int32]:
        """Sample one item per user, starting at position `first` in a random stream, and return shape (N,). Every user
        must have an unchosen item.

        Items that the user chose are drawn again. After many failed attempts, the item is drawn from the user's
        unchosen items directly, which has the same distribution and always terminates.
        """
        numbers = np.arange(first, first + len(users))
        items = self._pick(self._pool, stream, 0, numbers)
        if self._own is None:
            return items
        vain = np.flatnonzero(self._own.hold(users, items))
        for attempt in range(1, _ATTEMPTS):
            if not len(vain):
                break
            items[vain] = self._pick(self._pool, stream, attempt, numbers[vain])
            vain = vain[self._own.hold(users[vain], items[vain])]
        for user in np.unique(users[vain]):
            left = self._pool[~self._own.hold(np.full(len(self._pool), user), self._pool)]
            rows = vain[users[vain] == user]
            items[rows] = self._pick(left, stream, _ATTEMPTS, numbers[rows])
        return items

    def _pick(self, pool: NDArray[np.int32], stream: int, attempt: int, numbers: Codes) -> NDArray[np.int32]:
        (start,) = np.random.SeedSequence((self._seed, stream, attempt)).generate_state(1, np.uint64)
        words = hash_ids((start + (numbers + 1).view(np.uint64) * _INCREMENT).view(np.int64))
        shares = (words >> np.uint64(11)) * 2.0**-53
        return pool[(shares * len(pool)).astype(np.int64)]
