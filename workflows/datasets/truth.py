"""What all generators do around their own rows: refuse sizes, and leave what was planted beside whole files."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from workflows.errors import ConfigError

TRUTH = "truth.json"
_MIN_ROWS = 1000


def check_size(num_rows: int, seed: int) -> None:
    """Refuse what no generator takes.

    Raises:
        ConfigError: there are too few rows, or the seed is negative.
    """
    if num_rows < _MIN_ROWS:
        raise ConfigError(f"{num_rows} rows were asked for, expected at least {_MIN_ROWS}. Give a larger number.")
    if seed < 0:
        raise ConfigError(f"The seed is {seed}, expected a whole number of at least 0.")


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
