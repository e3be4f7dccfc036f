"""What a model's quality depends on: columns, parts of the rows, and a simple baseline to compare with."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.dataset import dataset as open_files

from rankline.report.ranking import RankedItems, rank_items
from rankline.training.distributed.communicator import Array
from rankline.training.evaluation import objective_of, score_heads
from rankline.training.evaluation.confidence import LEVEL, MEASURABLE, standard_error
from rankline.training.evaluation.scored_rows import MAX_ROWS
from rankline.training.evaluation.validation_scores import ValidationScores
from rankline.workflows.data.tabular.reader import safe_names
from rankline.workflows.schema.feature_spec import FIRST_UNSEEN_ID, NULL_ID, PARQUET
from rankline.workflows.schema.targets import BINARY, MULTICLASS, REGRESSION, Head

if TYPE_CHECKING:
    from rankline.workflows.preprocess.prepared_data import PreparedData

Predict = Callable[[pa.Table], Array]
"""Scores raw rows: (N, columns) → (N,), or (N, values of all heads)."""
_MAX_COLUMNS = 50
_MAX_SHUFFLED_ROWS = 5_000
_MAX_TRAINING_ROWS = 500_000  # for the baseline
_MAX_CLASSES = 50
_NUM_BINS = 20
_PRIOR_ROWS = 10.0  # rows of the overall mean that are added to each value of the baseline
_ACTIVITY = (0, 1, 10, 100)  # lowest number of training rows of each range
_MAX_CATEGORIES = 12
_MIN_ROWS = 20  # fewer say nothing about a part


@dataclass(frozen=True, kw_only=True)
class Column:
    """A raw input column.

    Attributes:
        num_distinct: number of distinct values among the validation rows; None for lists.
        share_missing: fraction of validation rows without a value.
        loss: by how much the objective gets worse if the column's values are shuffled; None if not measured.
    """

    name: str
    role: str
    num_distinct: int | None
    share_missing: float
    loss: float | None


@dataclass(frozen=True, kw_only=True)
class Part:
    """The objective on a part of the validation rows; NaN if undefined there, or if there are too few rows.

    `most` is the highest possible value.
    """

    name: str
    num_rows: int
    figure: float
    error: float
    most: float = math.inf

    @property
    def bounds(self) -> tuple[float, float]:
        low, high = self.figure - LEVEL * self.error, self.figure + LEVEL * self.error
        return max(low, 0.0), min(high, self.most)


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The best model of a single column: the mean label of each of its values among the training rows.

    `error` is the standard error of the difference between the model and the baseline, which score the same rows.
    """

    column: str
    figure: float
    error: float


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """What a model's scores of the validation rows say about it.

    Attributes:
        columns: the first input columns, the most important first.
        num_columns: number of all input columns.
        parts: mapping from the title of a division of the rows to its parts.
        whole: the objective on all rows, with its standard error; None with several heads.
        ranked: how well the model ranks the items that users chose after training; None if `rank_items` does not
            apply to the data.
    """

    scores: ValidationScores
    columns: tuple[Column, ...]
    num_columns: int
    parts: Mapping[str, Sequence[Part]]
    whole: Part | None
    baseline: Baseline | None
    ranked: RankedItems | None


def analyze(prepared: "PreparedData", rows: pa.Table, labels: Array, scores: Array, predict: Predict) -> Analysis:
    """Analyze a model from its scores for the held-out rows. `predict` scores rows with shuffled columns."""
    heads = prepared.spec.heads
    kept = ValidationScores(
        heads=heads,
        labels=labels[:MAX_ROWS],
        scores=scores[:MAX_ROWS],
        groups=prepared.heldout_groups(min(len(labels), MAX_ROWS)),
    )
    inputs = [name for name in prepared.inputs if name in rows.column_names]
    losses = _losses(heads, rows.select(inputs), inputs[:_MAX_COLUMNS], labels, predict)
    features = safe_names(prepared.inputs)
    columns = [
        _column(name, _role(prepared, name, features[name]), rows[name], losses.get(name))
        for name in inputs[:_MAX_COLUMNS]
    ]
    columns.sort(key=lambda column: -(column.loss if column.loss is not None else -math.inf))
    single = heads[0] if len(heads) == 1 else None
    encoded = prepared.encoded(MAX_ROWS) if single else None
    known = _training_rows(prepared) if encoded is not None and encoded.num_rows == len(kept.labels) else None
    parts: dict[str, Sequence[Part]] = {}
    baseline = None
    if single and encoded is not None and known is not None:
        baseline = _baseline(prepared, single, known, encoded, kept)
        parts = dict(_parts(prepared, single, encoded, rows, columns, kept))
    return Analysis(
        scores=kept,
        columns=tuple(columns),
        num_columns=len(inputs),
        parts=parts,
        whole=_part("all rows", single, kept) if single else None,
        baseline=baseline,
        ranked=rank_items(prepared, rows, labels, predict),
    )


# --- Columns


def _losses(
    heads: Sequence[Head], rows: pa.Table, names: Sequence[str], labels: Array, predict: Predict
) -> dict[str, float]:
    """Shuffle one column at a time, and return by how much the objective gets worse."""
    objective = objective_of(heads)
    rng = np.random.default_rng(0)
    shown = np.unique(np.linspace(0, len(labels) - 1, min(len(labels), _MAX_SHUFFLED_ROWS)).astype(np.int64))
    some, own = rows.take(pa.array(shown)), labels[shown]

    def measured(changed: pa.Table) -> float:
        return score_heads(heads, own, predict(changed))[objective.name]

    try:
        before = measured(some)
        found = {}
        for name in names:
            shuffled = some[name].take(pa.array(rng.permutation(len(own))))
            after = measured(some.set_column(some.schema.get_field_index(name), name, shuffled))
            found[name] = before - after if objective.higher_is_better else after - before
        return found
    except (KeyError, ValueError):  # the rows have only one class
        return {}


def _column(name: str, role: str, values: pa.ChunkedArray, loss: float | None) -> Column:
    missing = values.null_count
    if pa.types.is_floating(values.type):
        missing += pc.sum(pc.is_nan(values)).as_py() or 0
    is_list = pa.types.is_list(values.type) or pa.types.is_large_list(values.type)
    distinct = None if is_list else pc.count_distinct(values, "only_valid").as_py()
    return Column(name=name, role=role, num_distinct=distinct, share_missing=missing / max(len(values), 1), loss=loss)


def _role(prepared: "PreparedData", name: str, own: str) -> str:
    """Describe a raw column; `own` is the name of its feature if it becomes a single one."""
    metadata = prepared.spec.metadata
    roles = {metadata.history: "history", metadata.item: "item id", metadata.group_by: "user or group id"}
    if name in roles:
        return roles[name]
    for feature in prepared.spec.features:
        if feature.name in (name, own):
            kind = "number" if feature.cardinality is None else "category"
            return f"list of {kind}s".replace("ys", "ies") if feature.is_list else kind
    has_parts = any(feature.name.startswith(f"{own}_") for feature in prepared.spec.features)
    return "several features" if has_parts else "transformed"


# --- Parts of the rows


def _training_rows(prepared: "PreparedData") -> pa.Table | None:
    source = prepared.spec.sources.get("train")
    if source is None or source.type != PARQUET:
        return None
    fragments = open_files([prepared.path / name for name in source.files]).get_fragments()
    groups = [group for fragment in fragments for group in fragment.split_by_row_group()]
    every = min(-(-source.num_rows // _MAX_TRAINING_ROWS), len(groups))  # row groups may be in the order of time
    return pa.concat_tables([group.to_table() for group in groups[every - 1 :: every]])


def _part(name: str, head: Head, kept: ValidationScores, where: Array | slice = slice(None)) -> Part:
    objective = objective_of([head])
    figure = error = math.nan
    labels, scores = kept.labels[where], kept.scores[where]
    groups = None if kept.groups is None else kept.groups[where]
    if len(labels) >= _MIN_ROWS:
        with suppress(KeyError, ValueError):  # a single class
            figure = score_heads([head], labels, scores)[objective.name]
            error = standard_error(MEASURABLE[objective.name](labels, scores), groups)
    most = 1.0 if objective.higher_is_better else math.inf
    return Part(name=name, num_rows=len(labels), figure=figure, error=error, most=most)


def _parts(
    prepared: "PreparedData",
    head: Head,
    encoded: pa.Table,
    rows: pa.Table,
    columns: Sequence[Column],
    kept: ValidationScores,
) -> Iterator[tuple[str, Sequence[Part]]]:
    def divided(places: Array, names: Sequence[str]) -> list[Part]:
        found = [_part(name, head, kept, places == place) for place, name in enumerate(names)]
        return [part for part in found if part.num_rows]

    first_ids = {
        f.name: first
        for f in prepared.spec.categorical
        if not f.is_list and f.name in encoded.column_names and (first := prepared.first_own_id(f.name))
    }
    if (group := prepared.group_by) in first_ids:
        counts, ids = prepared.training_rows_of_ids(group), encoded[group].to_numpy()
        num_known = np.concatenate([np.zeros(first_ids[group], np.int64), counts])[ids]
        places = np.where(ids == NULL_ID, len(_ACTIVITY), np.searchsorted(_ACTIVITY, num_known, side="right") - 1)
        names = [
            "no training rows" if counts.min(initial=2) == 1 else "new or rare",
            *(f"{low} to {low * 10 - 1} training rows" for low in _ACTIVITY[1:-1]),
            f"{_ACTIVITY[-1]} or more training rows",
            f"{group} is missing",
        ]
        yield f"By {group}", divided(places, names)
    is_new = np.zeros(encoded.num_rows, bool)
    for name, first in first_ids.items():
        ids = encoded[name].to_numpy()
        is_new |= (ids >= FIRST_UNSEEN_ID) & (ids < first)
    if is_new.any() and not is_new.all():
        yield "By values known to the model", divided(is_new.astype(np.int64), ["all known", "a new or rare value"])
    for column in columns:
        if column.num_distinct and 1 < column.num_distinct <= _MAX_CATEGORIES and column.name not in (group,):
            values = rows[column.name].combine_chunks().slice(0, len(kept.labels))
            known_values = pc.unique(values.filter(pc.equal(values, values))).sort()  # neither null nor NaN
            places = pc.fill_null(pc.index_in(values, known_values), len(known_values)).to_numpy()
            names = [f"{column.name} is {value}" for value in (*known_values.to_pylist(), "missing")]
            yield f"By {column.name}", divided(places, names)
            return


# --- Baseline


def _baseline(
    prepared: "PreparedData", head: Head, known: pa.Table, encoded: pa.Table, kept: ValidationScores
) -> Baseline | None:
    """Return the best single column, or None if no column can be a model on its own."""
    if head.width > _MAX_CLASSES:
        return None
    objective = objective_of([head])
    own = known[head.column].to_numpy()
    has_label = np.isfinite(own)
    best: tuple[str, float, Array] | None = None
    for feature in (*prepared.spec.categorical, *prepared.spec.continuous)[:_MAX_COLUMNS]:
        if feature.is_list:
            continue
        before, after = (table[feature.name].to_numpy() for table in (known, encoded))
        if feature.cardinality is None:
            edges = np.unique(np.nanquantile(before, np.linspace(0, 1, _NUM_BINS + 1)[1:-1]))
            before, after = (np.searchsorted(edges, values) for values in (before, after))
        scores = _means(head, before[has_label], own[has_label], after)
        try:
            figure = score_heads([head], kept.labels, scores)[objective.name]
        except (KeyError, ValueError):
            return None
        if best is None or objective.is_better(figure, best[1]):
            best = feature.name, figure, scores
    if best is None:
        return None
    column, figure, scores = best
    models, simple = (MEASURABLE[objective.name](kept.labels, made) for made in (kept.scores, scores))
    raw_names = {feature: name for name, feature in safe_names(prepared.inputs).items()}
    error = standard_error(models - simple, kept.groups)
    return Baseline(column=raw_names.get(column, column), figure=figure, error=error)


def _means(head: Head, values: Array, labels: Array, asked: Array) -> Array:
    """Return the mean label of each asked value, or the share of each class, smoothed towards that of all rows."""
    size = int(max(values.max(initial=0), asked.max(initial=0))) + 1
    counts = np.bincount(values, minlength=size) + _PRIOR_ROWS

    def mean(own: Array) -> Array:
        sums = np.bincount(values, weights=own, minlength=size) + _PRIOR_ROWS * own.mean()
        found: Array = (sums / counts)[asked]
        return found

    if head.task == MULTICLASS:
        return np.stack([mean((labels == number).astype(np.float64)) for number in range(head.width)], axis=1)
    assert head.task in (BINARY, REGRESSION)
    return mean(labels.astype(np.float64))
