"""Generator of synthetic data in Amazon's format, with drifting user interests and a known best possible AUC.

Each item that a user chooses comes from one of three sources:
    recent    an item in the category of the latest choice or of the one before
    long ago  an item in the category of a choice 11 to 99 choices ago, selected uniformly
    any       an item drawn by popularity alone

An interest therefore lasts for some choices, ends, and may return dozens of choices later. The next choice depends on
the order of the latest choices, which models without order cannot use, and on older choices, which models of the latest
ten cannot see. Within a category, items are drawn by popularity. No user chooses an item twice.
"""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.progress import SILENT, Progress
from rankline.workflows.data.auc import exact_auc
from rankline.workflows.data.planted_model import (
    ID_FACTOR,
    check_size,
    clear_truth,
    lognormal_shares,
    long_tailed_counts,
    write_truth,
)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_MEAN_LENGTH, _MIN_LENGTH, _LENGTH_SD, _MAX_OVER_MEAN = 125, 5, 0.5, 2.5
_ROWS_PER_ITEM, _ITEMS_PER_CATEGORY, _CATEGORIES_PER_DEPARTMENT = 20, 100, 8
_ITEMS_PER_CHOICE = 4  # minimum ratio of items to the longest history, so that most items are unchosen
_POPULARITY_SD, _CATEGORY_SD = 1.0, 0.7

_RECENT, _LONG_AGO = 0.4, 0.4
"""Shares of the sources; the remaining choices come from any category."""
_RECENT_WEIGHTS = np.array([0.8, 0.2])  # for the latest choice and the one before
_FIRST_LAG, _LAST_LAG = 11, 99

_USERS_PER_BLOCK, _LINES_PER_BLOCK = 1 << 10, 1 << 16
_NUM_NEGATIVES = 4
_FIRST_SECOND, _LAST_SECOND, _DAY_S, _DAYS_BETWEEN = 946_684_800, 1_136_073_600, 86_400, 5  # 2000 to 2006


@dataclass(frozen=True, kw_only=True)
class AmazonTruth:
    """Known properties of generated data. Ranking items by their true probability divided by their sampling probability
    as negatives gives the best AUC.
    """

    best_auc: float  # of each user's last choice against unchosen items drawn by their number of reviews
    num_users: int  # users, each with at least 5 reviews
    num_items: int  # items; some have no review
    num_categories: int  # categories of the items


@dataclass(frozen=True, kw_only=True)
class _Items:
    categories: Ints  # category of each item, ascending, shape (num_items,)
    popularity: Floats  # sums to 1, shape (num_items,)
    edges: Floats  # total popularity of the items before each item, shape (num_items + 1,)
    starts: Ints  # first item of each category, and the end, shape (num_categories + 1,)

    @property
    def shares(self) -> Floats:
        return np.diff(self.edges[self.starts])

    def draw(self, low: Floats, high: Floats, rng: np.random.Generator) -> Ints:
        places = np.searchsorted(self.edges, low + rng.random(len(low)) * (high - low), side="right") - 1
        items: Ints = np.clip(places, 0, len(self.popularity) - 1)
        return items


def generate_amazon(
    directory: Path, *, num_rows: int, seed: int, cardinality_scale: float = 1.0, progress: Progress = SILENT
) -> AmazonTruth:
    """Write `reviews.json` and `meta.json.gz` as JSON lines in Amazon's format, then `truth.json`.

    The same arguments give the same bytes. Users have about 125 reviews on average, most more than 100; there are at
    least four times as many items as the longest history has. The reviews are ordered by item, as in Amazon's files.
    Memory: about 100 bytes per review.
    """
    check_size(num_rows, seed)
    if not 0 < cardinality_scale < np.inf:
        raise ConfigError(f"cardinality_scale is {cardinality_scale}, expected a finite number above 0.")
    rng = np.random.default_rng(seed)
    lengths = _draw_lengths(num_rows, rng)
    items = _make_items(num_rows, int(lengths[0]), cardinality_scale, rng)
    clear_truth(directory)
    blocks, done = [], 0
    for start in range(0, len(lengths), _USERS_PER_BLOCK):
        blocks.append(_draw_histories(lengths[start : start + _USERS_PER_BLOCK], items, rng))
        done += int(lengths[start : start + _USERS_PER_BLOCK].sum())
        progress.update(done, num_rows, "reviews")
    truth = AmazonTruth(
        best_auc=_best_auc(blocks, items, rng),
        num_users=len(lengths),
        num_items=len(items.popularity),
        num_categories=len(items.shares),
    )
    chosen = np.concatenate([histories[histories >= 0] for histories in blocks])
    _write_reviews(directory / "reviews.json", np.repeat(np.arange(len(lengths)), lengths), chosen, lengths, rng)
    _write_items(directory / "meta.json.gz", items)
    write_truth(directory, truth)
    return truth


def _draw_lengths(num_rows: int, rng: np.random.Generator) -> Ints:
    """Sample review counts per user that sum to `num_rows`, in descending order."""
    lengths = long_tailed_counts(
        num_rows, round(num_rows / _MEAN_LENGTH), rng, least=_MIN_LENGTH, sd=_LENGTH_SD, most_over_mean=_MAX_OVER_MEAN
    )
    return np.sort(lengths)[::-1]


def _make_items(num_rows: int, longest: int, cardinality_scale: float, rng: np.random.Generator) -> _Items:
    num_items = max(round(num_rows / _ROWS_PER_ITEM * cardinality_scale), _ITEMS_PER_CHOICE * longest)
    num_categories = max(2, num_items // _ITEMS_PER_CATEGORY)
    weights = rng.lognormal(sigma=_CATEGORY_SD, size=num_categories)
    others = rng.choice(num_categories, size=num_items - num_categories, p=weights / weights.sum())
    categories = np.sort(np.concatenate((np.arange(num_categories), others)))  # every category has an item
    popularity = lognormal_shares(num_items, _POPULARITY_SD, rng)
    return _Items(
        categories=categories,
        popularity=popularity,
        edges=np.concatenate(([0.0], np.cumsum(popularity))),
        starts=np.searchsorted(categories, np.arange(num_categories + 1)),
    )


def _draw_histories(lengths: Ints, items: _Items, rng: np.random.Generator) -> Ints:
    """Sample each user's choices in order, padded with -1, as an array of shape (num_users, maximum length)."""
    histories = np.full((len(lengths), int(lengths[0])), -1)
    for step in range(histories.shape[1]):
        left = np.arange(np.count_nonzero(lengths > step))
        while len(left):  # repeated items are drawn again, from any source
            drawn = _draw_choices(histories[left, :step], items, rng)
            is_new = ~(histories[left, :step] == drawn[:, None]).any(axis=1)
            histories[left[is_new], step] = drawn[is_new]
            left = left[~is_new]
    return histories


def _draw_choices(before: Ints, items: _Items, rng: np.random.Generator) -> Ints:
    num_users, step = before.shape
    recent, long_ago = _shares_at(step)
    source = rng.random(num_users)
    lags = np.minimum(1 + rng.choice(len(_RECENT_WEIGHTS), size=num_users, p=_RECENT_WEIGHTS), step)
    is_long = (source >= recent) & (source < recent + long_ago)
    lags[is_long] = rng.integers(_FIRST_LAG, max(_FIRST_LAG, min(step, _LAST_LAG)) + 1, np.count_nonzero(is_long))
    low, high = np.zeros(num_users), np.ones(num_users)
    like = np.flatnonzero(source < recent + long_ago)
    categories = items.categories[before[like, step - lags[like]]]
    low[like], high[like] = items.edges[items.starts[categories]], items.edges[items.starts[categories + 1]]
    return items.draw(low, high, rng)


def _shares_at(step: int) -> tuple[float, float]:
    """Return the probabilities that the choice after `step` others copies the category of a recent or an older choice.
    A probability is 0 if no such choice exists.
    """
    return (_RECENT if step else 0.0), (_LONG_AGO if step >= _FIRST_LAG else 0.0)


def _best_auc(blocks: list[Ints], items: _Items, rng: np.random.Generator) -> float:
    counts = np.bincount(np.concatenate([block[block >= 0] for block in blocks]), minlength=len(items.popularity))
    draw = counts / counts.sum()
    scores = []
    for histories in blocks:
        rows, last = np.arange(len(histories)), (histories >= 0).sum(axis=1) - 1
        candidates = np.column_stack((histories[rows, last], _draw_negatives(histories, draw, rng)))
        before = np.where(np.arange(histories.shape[1]) < last[:, None], histories, -1)
        probability = _probabilities(before, last, candidates, items)
        scores.append(np.log(probability) - np.log(draw[candidates]) + np.log(_left(histories, draw))[:, None])
    score = np.concatenate(scores)
    labels = np.zeros(score.shape, dtype=np.bool_)
    labels[:, 0] = True
    return exact_auc(labels.ravel(), score.ravel())


def _draw_negatives(histories: Ints, draw: Floats, rng: np.random.Generator) -> Ints:
    drawn = rng.choice(len(draw), size=(len(histories), _NUM_NEGATIVES), p=draw)
    while len(own := np.argwhere((histories[:, None, :] == drawn[:, :, None]).any(axis=2))):
        drawn[tuple(own.T)] = rng.choice(len(draw), size=len(own), p=draw)
    return drawn


def _left(histories: Ints, weights: Floats) -> Floats:
    """Return the total weight of the items that each history does not contain, as an array of shape (num_users,)."""
    left: Floats = 1 - np.where(histories >= 0, weights[histories], 0).sum(axis=1)
    return left


def _probabilities(before: Ints, steps: Ints, candidates: Ints, items: _Items) -> Floats:
    """Return the probability that each candidate, which must not be in the history, is chosen next.

    The choices before are in order, padded with -1: (num_users, longest).
    """
    has_it = before >= 0
    of_own = np.where(has_it, _weights(before, steps, np.where(has_it, before, 0), items), 0).sum(axis=1)
    probabilities: Floats = _weights(before, steps, candidates, items) / (1 - of_own)[:, None]
    return probabilities


def _weights(before: Ints, steps: Ints, candidates: Ints, items: _Items) -> Floats:
    """Return the probability of sampling each candidate, before repeated items are resampled."""
    rows, of_candidates = np.arange(len(before)), items.categories[candidates]
    alike = np.zeros(candidates.shape)
    shares = np.array([_shares_at(step) for step in steps.tolist()])
    num_long = np.maximum(np.minimum(steps, _LAST_LAG) - _FIRST_LAG + 1, 1)
    for lag, weights in _lag_weights(shares, num_long):
        is_there = lag <= steps
        same = items.categories[before[rows, np.maximum(steps - lag, 0)]][:, None] == of_candidates
        alike += np.where(is_there[:, None] & same, weights[:, None], 0)
    weighted: Floats = items.popularity[candidates] * (
        alike / items.shares[of_candidates] + (1 - shares.sum(axis=1))[:, None]
    )
    return weighted


def _lag_weights(shares: Floats, num_long: Ints) -> Iterator[tuple[int, Floats]]:
    """Yield each lag and, per user, the probability that a choice copies the category chosen `lag` steps earlier."""
    for lag, weight in enumerate(_RECENT_WEIGHTS, start=1):
        yield lag, shares[:, 0] * weight
    for lag in range(_FIRST_LAG, _LAST_LAG + 1):
        yield lag, shares[:, 1] / num_long


def _write_reviews(path: Path, users: Ints, chosen: Ints, lengths: Ints, rng: np.random.Generator) -> None:
    days = rng.geometric(1 / _DAYS_BETWEEN, len(users))
    total = np.cumsum(days)
    before_user = (total - days)[np.cumsum(lengths) - lengths]
    joined = rng.integers(_FIRST_SECOND // _DAY_S, _LAST_SECOND // _DAY_S, len(lengths))
    seconds = (np.repeat(joined - before_user, lengths) + total) * _DAY_S
    order = np.lexsort((users, seconds, chosen))
    user_names = pa.array([f"A{index * ID_FACTOR % 2**32:013X}" for index in range(len(lengths))])
    item_names = pa.array(_item_names(int(chosen.max()) + 1))
    with path.open("wb") as stream:
        for start in range(0, len(order), _LINES_PER_BLOCK):
            rows = order[start : start + _LINES_PER_BLOCK]
            lines = pc.binary_join_element_wise(
                '{"reviewerID": "',
                user_names.take(pa.array(users[rows])),
                '", "asin": "',
                item_names.take(pa.array(chosen[rows])),
                '", "unixReviewTime": ',
                pa.array(seconds[rows]).cast(pa.string()),
                "}\n",
                "",
            )
            stream.write(lines.buffers()[2].slice(0, pc.sum(pc.binary_length(lines)).as_py()))


def _write_items(path: Path, items: _Items) -> None:
    with path.open("wb") as file, gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as stream:
        for name, category in zip(_item_names(len(items.categories)), items.categories.tolist(), strict=True):
            department = category // _CATEGORIES_PER_DEPARTMENT
            categories = [["Generated", f"Department {department}", f"Category {category}"]]
            stream.write(json.dumps({"asin": name, "categories": categories}).encode() + b"\n")


def _item_names(count: int) -> list[str]:
    return [f"B0{index * ID_FACTOR % 2**32:08X}" for index in range(count)]
