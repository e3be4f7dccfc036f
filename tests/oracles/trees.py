"""Forests as they are served, beside what their framework says of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from rankline.serving.importers import ForeignModel
from rankline.serving.importers.input_binding import Encoded, match
from rankline.workflows.schema.targets import MULTICLASS, REGRESSION, Head

NAMES = ("a", "b", "c", "d")


def random_rows(rng: np.random.Generator, count: int) -> NDArray[np.float32]:
    """Numbers of four kinds: plain, large ones, ids, and those of which most are zero; a tenth is missing."""
    rows = np.stack(
        [
            rng.normal(size=count),
            1e6 + rng.integers(0, 50, count),
            rng.integers(0, 9, count),
            rng.normal(size=count) * (rng.random(count) < 0.3),
        ],
        axis=1,
    ).astype(np.float32)
    rows[:, :3][rng.random((count, 3)) < 0.1] = np.nan  # the last one lacks none
    return rows


def signal_of(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """What can be learned of the rows, above 0."""
    known = np.nan_to_num(rows.astype(np.float64))
    return np.exp(known[:, 0] / 2) + (known[:, 2] > 4) + (known[:, 3] > 0) + 0.1


def tried_rows(rng: np.random.Generator, rows: NDArray[np.float32], thresholds: Sequence[tuple[int, float]]) -> Any:
    """Rows with values at and beside thresholds (column, value), and with those that are none or awkward."""
    awkward = [np.nan, 0.0, -0.0, np.inf, -np.inf, 1e-40, -1e-40, 1e-35, -1e-35, 3e38, -3e38]
    values = [(column, value) for column in range(rows.shape[1]) for value in awkward]
    for column, threshold in thresholds:
        with np.errstate(over="ignore"):  # a threshold above all float32
            near = np.float32(threshold)
        values += [(column, near + np.float32(0))]
        values += [(column, np.nextafter(near, np.float32(side))) for side in (-np.inf, np.inf)]
    tried = rows[rng.integers(0, len(rows), len(values))]
    for row, (column, value) in zip(tried, values, strict=True):
        row[column] = value
    return tried


def head_of(width: int) -> Head:
    """One that has so many scores."""
    return Head("score", MULTICLASS, tuple(map(str, range(width)))) if width > 1 else Head("score", REGRESSION)


def both_scores(
    model: ForeignModel, rows: NDArray[np.float32], directory: Path, columns: Sequence[str] = NAMES
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Scores of the framework, and of the ONNX model that is written.

    Args:
        model: takes one matrix.
        rows: their columns in the order of `columns`.
        directory: for the file.
        columns: those of a workflow.
    """
    (feed,) = feeds = match(model.inputs, [Encoded(name=name, dtype="float32") for name in columns], {})
    matrix = rows[:, [list(columns).index(name) for name in feed.columns]]
    expected = model.run({feed.input.name: matrix})["score"]
    assert expected.dtype == np.float32
    head = head_of(expected.shape[1] if expected.ndim == 2 else 1)
    model.write(feeds, (head,), directory / "model.onnx")
    session = onnxruntime.InferenceSession(directory / "model.onnx")
    (output,) = session.get_outputs()
    assert (output.name, output.shape) == ("score", ["rows", head.width])
    (made,) = session.run(None, {name: rows[:, [number]] for number, name in enumerate(columns)})
    return expected.reshape(made.shape), made
