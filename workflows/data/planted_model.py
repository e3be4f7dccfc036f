"""Utilities shared by the data generators: size checks, long-tailed distributions, and the truth file."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rankline.workflows.core.errors import ConfigError

TRUTH = "truth.json"
ID_FACTOR = 0x9E3779B1
"""Scrambles 32-bit ids: an odd factor has an inverse modulo 2³², so distinct ids stay distinct."""
_MIN_ROWS = 1000


def check_size(num_rows: int, seed: int) -> None:
    if num_rows < _MIN_ROWS:
        raise ConfigError(f"the number of rows is {num_rows}, expected at least {_MIN_ROWS}.")
    if seed < 0:
        raise ConfigError(f"seed is {seed}, expected a nonnegative integer.")


def long_tailed_counts(
    num_rows: int, num_users: int, rng: np.random.Generator, *, least: int, sd: float, most_over_mean: float
) -> npt.NDArray[np.int64]:
    """Sample a row count for each user. Every count is at least `least`, and the counts sum to `num_rows`.

    `sd` is the standard deviation of the logarithm of the rows beyond the minimum. The tail ends at a multiple of the
    mean, so that no user has most of the catalog.
    """
    weights = rng.lognormal(sigma=sd, size=num_users)
    weights = np.minimum(weights, most_over_mean * weights.mean())
    edges = np.rint(np.cumsum(weights) / weights.sum() * (num_rows - least * num_users)).astype(np.int64)
    num_rows_each: npt.NDArray[np.int64] = least + np.diff(edges, prepend=0)
    return num_rows_each


def lognormal_shares(size: int, sd: float, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    weights = rng.lognormal(sigma=sd, size=size)
    shares: npt.NDArray[np.float64] = weights / weights.sum()
    return shares


def clear_truth(directory: Path) -> None:
    """Create the directory, and delete any truth file before the data that it describes is replaced."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / TRUTH).unlink(missing_ok=True)


def write_truth(directory: Path, truth: Any) -> None:
    """Write a dataclass of known properties to the truth file. Call this after writing all other files."""
    (directory / TRUTH).write_text(json.dumps(asdict(truth), indent=2) + "\n", encoding="utf-8")


def best_auc(directory: Path) -> float:
    """Return the highest AUC that a model can be expected to reach on generated rows, recorded in the truth file."""
    return float(json.loads((directory / TRUTH).read_text(encoding="utf-8"))["best_auc"])
