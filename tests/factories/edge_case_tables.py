"""Tables of odd shapes, as files."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

ROWS = 1_200


def odd_names(path: Path) -> None:
    """Names with spaces, signs, dots and letters of other languages; a label of words."""
    rng = np.random.default_rng(0)
    size, kind = rng.normal(size=ROWS), rng.integers(0, 3, ROWS)
    clicked = size + (kind == 1) + rng.normal(size=ROWS) > 0
    columns = {
        "Is member?": rng.random(ROWS) < 0.5,
        "Größe (cm)": size,
        "a.b": np.array(list("xyz"))[kind],
        "日本": rng.choice(["p", "q"], ROWS),
        "a b": rng.integers(0, 100, ROWS),
        "a?b": rng.integers(0, 100, ROWS),
        "50% off": rng.choice(["r", "s"], ROWS),
        "Did click?": np.where(clicked, "yes", "no"),
    }
    pa_csv.write_csv(pa.table(columns), path)


def all_strings(path: Path) -> None:
    """No number anywhere."""
    rng = np.random.default_rng(1)
    columns = {f"s{n}": rng.choice([f"v{k}" for k in range(5 + 3 * n)], ROWS) for n in range(6)}
    pa_csv.write_csv(pa.table(columns | {"outcome": rng.choice(["bad", "good"], ROWS)}), path)


def all_numbers(path: Path) -> None:
    """Numbers only, without a header, and a number to predict."""
    rng = np.random.default_rng(2)
    numbers = rng.normal(size=(ROWS, 6))
    label = numbers @ np.arange(6) + rng.normal(size=ROWS)
    np.savetxt(path, np.column_stack([numbers, label]), delimiter=";", fmt="%.4f")


def many_classes(path: Path) -> None:
    """Forty classes."""
    rng = np.random.default_rng(3)
    kind = rng.integers(0, 40, ROWS)
    columns = {
        "u": kind + rng.normal(size=ROWS),
        "v": rng.choice(["p", "q"], ROWS),
        "class": [f"class {k}" for k in kind],
    }
    pq.write_table(pa.table(columns), path)


def nulls_everywhere(path: Path) -> None:
    """Every column lacks a third of its values, the label too; one has none."""
    rng = np.random.default_rng(4)

    def some(values: list[Any]) -> list[Any]:
        return [None if rng.random() < 0.33 else value for value in values]

    columns: Mapping[str, list[Any]] = {
        "i": some(rng.integers(0, 1_000, ROWS).tolist()),
        "f": some(rng.normal(size=ROWS).tolist()),
        "s": some(rng.choice(list("abcdef"), ROWS).tolist()),
        "t": some([f"2024-{1 + n // 28 % 12:02}-{1 + n % 28:02}T{n % 24:02}:00:00Z" for n in range(ROWS)]),
        "b": some((rng.random(ROWS) < 0.5).tolist()),
        "tags": some([rng.choice(["m", "n", "o"], n % 3).tolist() for n in range(ROWS)]),
        "empty": [None] * ROWS,
        "label": some(rng.integers(0, 2, ROWS).tolist()),
    }
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")


ODD_TABLES: Mapping[str, Callable[[Path], None]] = {
    "odd names.csv": odd_names,
    "strings.csv": all_strings,
    "numbers.csv": all_numbers,
    "classes.parquet": many_classes,
    "nulls.jsonl": nulls_everywhere,
}
"""File → what writes it."""
