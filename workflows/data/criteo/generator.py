"""Synthetic data in Criteo's format with planted effects and a known best attainable AUC.

Clicks are drawn with P(click) = sigmoid(logit), so no model can rank them better than the logit does. The logit is the
sum of three terms:
    effects        one number for each id of some categories
    interactions   between all pairs of these categories: dot products of latent vectors of their ids, as in a
                   factorization machine (Rendle, 2010)
    counts         weighted sum of log(1 + x)

Ids follow Zipf's law. The 255 most frequent ids of a category have their own effects and vectors, and all others share
one: more cannot be learned from a few hundred thousand rows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pa_csv

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.progress import SILENT, Progress
from rankline.workflows.data.auc import exact_auc
from rankline.workflows.data.criteo.reader import CATEGORIES, CRITEO_SCHEMA, NUMBERS
from rankline.workflows.data.planted_model import ID_FACTOR, check_size, clear_truth, write_truth

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

CATEGORY_COUNTS = (
    7_599_500, 33_521, 17_022, 7_339, 20_046, 3, 7_068, 1_377, 63, 5_345_303, 561_810, 242_827, 11, 2_209, 10_616, 100,
    4, 968, 14, 7_838_519, 2_580_502, 6_878_028, 298_771, 11_951, 97, 35,
)  # fmt: skip
"""Distinct ids of each category, from NVIDIA's "Training Tabular Deep Learning Models with Keras on GPU"."""
_MIN_COUNT, _MAX_SCALE = 3, 2**32 // max(CATEGORY_COUNTS)  # an id has 32 bits

_MAX_ROWS_PER_DAY = 1_000_000
_MIN_DAYS = 5  # so that the last day is a fifth of the rows
_ROWS_PER_BLOCK = 1 << 16
_MAX_AUC_ROWS = 1 << 22


class _Number(NamedTuple):
    """Distribution of a count column, estimated from 8,000 rows of Criteo."""

    missing: float  # share of rows without a value
    negative: float  # share of values that are -1
    zero: float  # share of values that are 0
    log_mean: float  # mean and standard deviation of the logarithm of positive values
    log_sd: float


_NUMBERS = (
    _Number(0.4515, 0.0, 0.479, 1.15, 1.07),
    _Number(0.0, 0.1, 0.181, 2.71, 2.19),
    _Number(0.2025, 0.0, 0.008, 2.04, 1.46),
    _Number(0.2034, 0.0, 0.072, 1.60, 1.07),
    _Number(0.0495, 0.0, 0.016, 7.36, 2.80),
    _Number(0.2517, 0.0, 0.061, 3.76, 1.70),
    _Number(0.0498, 0.0, 0.253, 1.79, 1.38),
    _Number(0.0011, 0.0, 0.120, 2.15, 1.14),
    _Number(0.0498, 0.0, 0.031, 3.65, 1.70),
    _Number(0.4515, 0.0, 0.506, 0.10, 0.27),
    _Number(0.0498, 0.0, 0.266, 0.68, 0.83),
    _Number(0.7768, 0.0, 0.744, 0.65, 0.89),
    _Number(0.2034, 0.0, 0.059, 1.76, 1.17),
)
# Share of rows in which each category is missing, from the same rows. Columns with equal shares are missing together.
_MISSING_CATEGORY = (
    0.0, 0.0, 0.0331, 0.0331, 0.0, 0.1309, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0331, 0.0, 0.0, 0.0, 0.0331, 0.0, 0.0, 0.4529,
    0.4529, 0.0331, 0.8173, 0.0, 0.0331, 0.4529, 0.4529,
)  # fmt: skip

# Categories with effects, with few or many ids, and rarely or often missing; and the subset that interacts.
_WITH_EFFECTS = tuple(map(CATEGORIES.index, ("C1", "C2", "C5", "C8", "C9", "C14", "C16", "C18", "C24", "C26")))
_INTERACTING = tuple(map(CATEGORIES.index, ("C9", "C14", "C16", "C18", "C26")))
_NUM_EFFECTS = 1 << 8
_NUM_LATENT = 4
# Standard deviation of each term over the rows; determines the best AUC.
_TERM_SD = np.float32(0.77)
_POSITIVE_RATE = 0.25

_COLUMN_FACTOR = 0x85EBCA77
"""Gives the same id different numbers in different columns."""

_PLAIN = pa_csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none", batch_size=8192)


@dataclass(frozen=True, kw_only=True)
class CriteoTruth:
    best_auc: float  # AUC of the true probabilities against the drawn labels, over the first 4,194,304 rows at most
    positive_rate: float  # share of rows with label 1


@dataclass(frozen=True, kw_only=True)
class _World:
    """Parameters of the label distribution."""

    counts: tuple[int, ...]  # number of ids in each category
    effects: Mapping[int, Floats]  # category → effects of its ids, then of rare and missing ones; (_NUM_EFFECTS + 1,)
    vectors: Mapping[int, Floats]  # category → latent vectors in this order; (_NUM_EFFECTS + 1, _NUM_LATENT)
    weights: Floats  # weights of the counts, shape (13,)


@dataclass(frozen=True, kw_only=True)
class _Block:
    numbers: list[Ints]
    no_number: list[Mask]
    ids: list[Ints]
    no_id: list[Mask]


def generate_criteo(
    directory: Path, *, num_rows: int, seed: int, cardinality_scale: float, progress: Progress = SILENT
) -> CriteoTruth:
    """Write day_0, day_1, … in the Terabyte layout, then truth.json.

    The same arguments give the same bytes. Days have equal sizes; there are five, or as many as keep each below a
    million rows. Memory: one block of 65,536 rows, plus 5 bytes per row, 20 MiB at most, to compute the AUC.
    """
    check_size(num_rows, seed)
    if not 0 < cardinality_scale <= _MAX_SCALE:
        raise ConfigError(
            f"cardinality_scale is {cardinality_scale}, expected a number above 0 and at most {_MAX_SCALE}."
        )
    clear_truth(directory)
    rng = np.random.default_rng(seed)
    world = _make_world(cardinality_scale, rng)
    calibration = _calibrate(_terms(world, _draw(world, _ROWS_PER_BLOCK, rng)))
    logits = np.empty(min(num_rows, _MAX_AUC_ROWS), dtype=np.float32)
    labels = np.empty(len(logits), dtype=np.bool_)
    num_positive = done = 0
    for day, rows_of_day in enumerate(_days(num_rows)):
        with pa.OSFile(str(directory / f"day_{day}"), "wb") as stream:
            for start in range(0, rows_of_day, _ROWS_PER_BLOCK):
                block = _draw(world, min(_ROWS_PER_BLOCK, rows_of_day - start), rng)
                logit = calibration.logits(_terms(world, block))
                label = rng.random(len(logit), dtype=np.float32) < _sigmoid(logit)
                pa_csv.write_csv(_table(block, label), stream, _PLAIN)
                room = len(logits[done:])
                logits[done : done + len(label)], labels[done : done + len(label)] = logit[:room], label[:room]
                num_positive += int(np.count_nonzero(label))
                done += len(label)
                progress.update(done, num_rows, "rows")
    truth = CriteoTruth(best_auc=exact_auc(labels, logits), positive_rate=num_positive / num_rows)
    write_truth(directory, truth)
    return truth


def _days(num_rows: int) -> list[int]:
    """Return the number of rows per day. Sizes differ by at most one, and the last day is among the largest."""
    num_days = max(_MIN_DAYS, -(-num_rows // _MAX_ROWS_PER_DAY))
    edges = [num_rows * day // num_days for day in range(num_days + 1)]
    return [end - start for start, end in pairwise(edges)]


def _make_world(cardinality_scale: float, rng: np.random.Generator) -> _World:
    num_effects = _NUM_EFFECTS + 1
    return _World(
        counts=tuple(max(_MIN_COUNT, round(count * cardinality_scale)) for count in CATEGORY_COUNTS),
        effects={column: rng.standard_normal(num_effects, dtype=np.float32) for column in _WITH_EFFECTS},
        vectors={column: rng.standard_normal((num_effects, _NUM_LATENT), dtype=np.float32) for column in _INTERACTING},
        weights=rng.standard_normal(len(NUMBERS), dtype=np.float32),
    )


def _draw(world: _World, num_rows: int, rng: np.random.Generator) -> _Block:
    return _Block(
        numbers=[_draw_number(number, num_rows, rng) for number in _NUMBERS],
        no_number=_draw_missing([number.missing for number in _NUMBERS], num_rows, rng),
        ids=[_draw_ids(count, num_rows, rng) for count in world.counts],
        no_id=_draw_missing(_MISSING_CATEGORY, num_rows, rng),
    )


def _draw_number(number: _Number, num_rows: int, rng: np.random.Generator) -> Ints:
    normal = rng.standard_normal(num_rows, dtype=np.float32)
    positive = np.rint(np.exp(normal * np.float32(number.log_sd) + np.float32(number.log_mean))).astype(np.int64)
    place = rng.random(num_rows, dtype=np.float32)
    values: Ints = np.maximum(positive, 1)
    values[place < number.negative + number.zero] = 0
    values[place < number.negative] = -1
    return values


def _draw_missing(shares: Sequence[float], num_rows: int, rng: np.random.Generator) -> list[Mask]:
    masks = {share: rng.random(num_rows, dtype=np.float32) < share for share in sorted(set(shares))}
    return [masks[share] for share in shares]


def _draw_ids(count: int, num_rows: int, rng: np.random.Generator) -> Ints:
    """Sample ids in [0, count), approximately Zipf-distributed: floor((count + 1)^u) is k with probability ~ 1/k."""
    places = np.exp(rng.random(num_rows) * math.log(count + 1)).astype(np.int64)
    ids: Ints = np.minimum(places, count) - 1  # rounding may reach count + 1
    return ids


def _terms(world: _World, block: _Block) -> Floats:
    """Return the effect, interaction and count terms as an array of shape (3, num_rows), not yet centered or scaled."""
    num_rows = len(block.ids[0])
    effects = np.zeros(num_rows, dtype=np.float32)
    for column, effects_of in world.effects.items():
        effects += effects_of[_places(block, column)]
    vectors, squares = np.zeros((num_rows, _NUM_LATENT), dtype=np.float32), np.zeros(num_rows, dtype=np.float32)
    for column, vectors_of in world.vectors.items():
        rows = vectors_of[_places(block, column)]
        vectors += rows
        squares += _norms(rows)
    # Sum over all pairs at once: the square of the sum minus the sum of squares is twice the sum of products.
    interactions = _norms(vectors) - squares
    counts = np.zeros(num_rows, dtype=np.float32)
    for values, missing, weight in zip(block.numbers, block.no_number, world.weights, strict=True):
        logs = np.log1p(np.maximum(values, 0).astype(np.float32))
        logs[missing] = 0
        counts += weight * logs
    return np.stack((effects, interactions, counts))


def _places(block: _Block, column: int) -> Ints:
    return np.where(block.no_id[column], _NUM_EFFECTS, np.minimum(block.ids[column], _NUM_EFFECTS - 1))


def _norms(vectors: Floats) -> Floats:
    norms: Floats = np.einsum("nk,nk->n", vectors, vectors)
    return norms


@dataclass(frozen=True, kw_only=True)
class _Calibration:
    """Parameters that convert terms to logits. The means and scales have shape (3, 1)."""

    means: Floats
    scales: Floats
    intercept: float

    def logits(self, terms: Floats) -> Floats:
        logits: Floats = ((terms - self.means) * self.scales).sum(axis=0) + np.float32(self.intercept)
        return logits


def _calibrate(terms: Floats) -> _Calibration:
    """Fit a calibration that gives all terms the same standard deviation and makes the mean probability equal the
    target positive rate.
    """
    means = terms.mean(axis=1, keepdims=True)
    scales = _TERM_SD / terms.std(axis=1, keepdims=True)
    centred: Floats = ((terms - means) * scales).sum(axis=0)
    low, high = -10.0, 10.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if _sigmoid(centred + np.float32(middle)).mean() < _POSITIVE_RATE else (low, middle)
    return _Calibration(means=means, scales=scales, intercept=low)


def _sigmoid(logits: Floats) -> Floats:
    probabilities: Floats = np.float32(1) / (np.float32(1) + np.exp(-logits))
    return probabilities


def _table(block: _Block, labels: Mask) -> pa.Table:
    numbers = [pa.array(values, mask=missing) for values, missing in zip(block.numbers, block.no_number, strict=True)]
    categories = [
        _hex_column(ids.astype(np.uint32) * np.uint32(ID_FACTOR) + np.uint32(column * _COLUMN_FACTOR % 2**32), ~missing)
        for column, (ids, missing) in enumerate(zip(block.ids, block.no_id, strict=True), start=1)
    ]
    return pa.table([labels.astype(np.int64), *numbers, *categories], names=CRITEO_SCHEMA.names)


def _hex_column(ids: npt.NDArray[np.uint32], present: Mask) -> pa.StringArray:
    """Format present ids as eight hexadecimal digits and missing ids as empty strings."""
    digits = ids[present].astype(">u4").tobytes().hex().encode()
    ends = np.cumsum(present, dtype=np.int32) * np.int32(8)
    offsets = np.concatenate((np.zeros(1, dtype=np.int32), ends))
    return pa.StringArray.from_buffers(len(ids), pa.py_buffer(offsets), pa.py_buffer(digits))
