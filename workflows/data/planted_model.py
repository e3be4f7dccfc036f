"""What generators share: sizes that are refused, long tails, and the truth, which is left beside whole files."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rankline.workflows.core.errors import ConfigError

TRUTH = "truth.json"
ID_FACTOR = 0x9E3779B1
"""Makes numbers that do not look alike of ids of 32 bits: an odd factor has an inverse modulo 2³², so no two meet."""
_MIN_ROWS = 1000


def check_size(num_rows: int, seed: int) -> None:
    """Refuse what no generator takes."""
    if num_rows < _MIN_ROWS:
        raise ConfigError(f"{num_rows} rows were asked for, expected at least {_MIN_ROWS}. Give a larger number.")
    if seed < 0:
        raise ConfigError(f"The seed is {seed}, expected a whole number of at least 0.")


def long_tailed_counts(
    num_rows: int, num_users: int, rng: np.random.Generator, *, least: int, sd: float, most_over_mean: float
) -> npt.NDArray[np.int64]:
    """Rows of each user, `num_rows` in all.

    Args:
        num_rows: at least `least` for each user.
        num_users: how many counts to draw.
        rng: draws.
        least: rows that each user has.
        sd: standard deviation of the logarithms of what each has beside them.
        most_over_mean: where the tail is cut, so that nobody has most of the catalogue.
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
    """Make the directory, without the truth of files that are about to be replaced."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / TRUTH).unlink(missing_ok=True)


def write_truth(directory: Path, truth: Any) -> None:
    """Write a dataclass of what was planted, once all files are whole."""
    (directory / TRUTH).write_text(json.dumps(asdict(truth), indent=2) + "\n", encoding="utf-8")


def best_auc(directory: Path) -> float:
    """The AUC that no model of generated rows can beat, but by luck."""
    return float(json.loads((directory / TRUTH).read_text(encoding="utf-8"))["best_auc"])
