"""Detection of label leakage by single columns, or by numeric columns that sum to the label."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rankline.workflows.data.auc import exact_auc
from rankline.workflows.data.tabular.config import ColumnConfig, LabelConfig

Floats = NDArray[np.float64]

_LEAKS_FROM = 0.985
"""Minimum AUC, share of explained variance, or accuracy of a leak."""
_FEW_ROWS = 100
_NUM_BINS = 64
_EXACT = 1e-9


def find_leaks(
    rows: pa.Table, columns: Mapping[str, ColumnConfig], target: pa.ChunkedArray, label: str, config: LabelConfig
) -> dict[str, str]:
    labels = target.to_numpy().astype(np.float64)
    kept = np.flatnonzero(~np.isnan(labels))
    if len(kept) < _FEW_ROWS:
        return {}
    known = labels[kept]
    codes, numbers = dict[str, Floats](), dict[str, Floats]()
    for name, column in columns.items():
        if column.is_list or not column.is_feature:
            continue
        values = rows[name].combine_chunks()
        if column.role in ("numeric", "timestamp") or (column.type in ("int", "float") and config.task == "regression"):
            numbers[name] = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)[kept]
        if column.role not in ("numeric", "timestamp"):
            found = values.dictionary_encode().indices.fill_null(-1).to_numpy()[kept]
            codes[name] = found.astype(np.float64)
    leaks = _sums(numbers, known, label) if config.task == "regression" else {}
    of_single = {name: _bins(values) for name, values in numbers.items() if name not in codes} | codes
    for name, groups in of_single.items():
        score = _score(groups, known, config)
        if name not in leaks and score >= _LEAKS_FROM:
            leaks[name] = f"predicts {label} alone ({_MEASURES[config.task]} {score:.3f})"
    return leaks


_MEASURES = {"binary": "AUC", "regression": "R²", "multiclass": "accuracy"}


def _bins(values: Floats) -> Floats:
    edges = np.unique(np.nanquantile(values, np.linspace(0, 1, _NUM_BINS + 1)))
    return np.where(np.isnan(values), -1, np.searchsorted(edges, values))


def _score(groups: Floats, target: Floats, config: LabelConfig) -> float:
    """Fit a predictor of the label from `groups` on a random half of the rows, and return its AUC, accuracy or R² on
    the other half.
    """
    _, places = np.unique(groups, return_inverse=True)
    fit = np.random.default_rng(0).random(len(target)) < 0.5
    held = ~fit
    if config.task == "multiclass":
        counts = np.zeros((places.max() + 1, len(config.classes)))
        np.add.at(counts, (places[fit], target[fit].astype(np.int64)), 1.0)
        right = counts.argmax(axis=1)[places[held]] == target[held]
        majority = np.bincount(target[held].astype(np.int64)).max() / held.sum()
        return float(right.mean()) if majority < 0.9 else 0.0
    sizes = np.bincount(places[fit], minlength=places.max() + 1)
    means = (np.bincount(places[fit], target[fit], places.max() + 1) + target[fit].mean()) / (sizes + 1)
    predicted = means[places[held]]
    if config.task == "binary":
        return exact_auc(target[held], predicted) if 0 < target[held].mean() < 1 else 0.0
    variance = target[held].var()
    return float(1 - np.mean((target[held] - predicted) ** 2) / variance) if variance > 0 else 0.0


def _sums(numbers: Mapping[str, Floats], target: Floats, label: str) -> dict[str, str]:
    names = [name for name, values in numbers.items() if np.isfinite(values).all() and np.ptp(values) > 0]
    if not names:
        return {}
    matrix = np.stack([*(numbers[name] for name in names), np.ones(len(target))], axis=1)
    scales = np.abs(matrix).max(axis=0)
    weights, *_ = np.linalg.lstsq(matrix / scales, target, rcond=None)
    if np.abs(matrix / scales @ weights - target).max() > _EXACT * max(np.abs(target).max(), 1.0) * 1e3:
        return {}
    weights = weights / scales
    parts = [
        name
        for name, weight in zip(names, weights, strict=False)
        if abs(weight) * np.abs(numbers[name]).max() > 1e-6 * np.abs(target).max()
    ]
    shown = " + ".join(
        name if abs(weight - 1) < 1e-6 else f"{weight:.3g}·{name}"
        for name, weight in zip(names, weights, strict=False)
        if name in parts
    )
    return dict.fromkeys(parts, f"{label} is {shown}, in every row")
