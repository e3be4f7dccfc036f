"""Quality of the recipes that `rankline init` writes for real tables, against LightGBM with its defaults.

The tables are not part of the project: `--data` names a directory with the files of `TABLES`. The network and `model:
lightgbm` are trained as in the recipe. The peer gets the recipe's columns directly from the files, with strings as
categories and dates as days of the year.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pyarrow as pa

from rankline.recipes import Recipe
from rankline.recipes.first_recipe import first_recipe
from rankline.recipes.recipe_file import read_recipe
from rankline.training.config.train import TrainConfig
from rankline.training.evaluation import objective_of, quality
from rankline.training.models.lightgbm import LightGBMConfig
from rankline.training.models.lightgbm.network import OBJECTIVES
from rankline.training.run.train import train
from rankline.training.tracking import TrackingConfig
from rankline.workflows.preprocess.prepare import prepare
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.schema.model_artifact import TrainedModel
from rankline.workflows.schema.targets import MULTICLASS, Head

NETWORK, FOREST, PEER = "recipe", "model: lightgbm", "lightgbm"


@dataclass(frozen=True, kw_only=True)
class Table:
    files: str
    label: str


TABLES = {
    "adult": Table(files="adult_train.csv", label="target"),
    "bike": Table(files="bike_sharing_demand.csv", label="count"),
    "students": Table(files="students_*.csv", label="Target"),
}


def measure(data: Path, directory: Path, num_seeds: int) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Train all sides on all tables.

    Args:
        data: directory with the files of the tables.
        directory: output directory.
        num_seeds: number of seeds for the network.

    Returns:
        The metrics by "TABLE, side", and ratios: AUC below the peer's, or error as a multiple of the peer's.
    """
    results: dict[str, dict[str, float]] = {}
    ratios: dict[str, float] = {}
    for name, table in TABLES.items():
        prepared, recipe = _prepared(name, table, data, directory / name)
        (head,) = prepared.spec.heads
        key = objective_of([head]).name
        seeds = [_figures(prepared, recipe.train, directory / name, seed) for seed in range(num_seeds)]
        network = {metric: statistics.fmean(of_seed[metric] for of_seed in seeds) for metric in seeds[0]}
        network[f"{key}_std"] = statistics.pstdev(of_seed[key] for of_seed in seeds)
        forest = _figures(prepared, TrainConfig(model=LightGBMConfig()), directory / name, 0)
        peer = peer_figures(name, table, data, recipe, prepared)
        results |= {f"{name}, {NETWORK}": network, f"{name}, {FOREST}": forest, f"{name}, {PEER}": peer}
        for side, prefix in ((network, ""), (forest, "forest_")):
            if objective_of([head]).is_rising:
                ratios[f"{prefix}{name}_{key}_below_lightgbm"] = peer[key] - side[key]
            else:
                ratios[f"{prefix}{name}_{key}_over_lightgbm"] = side[key] / peer[key]
    return results, ratios


def _prepared(name: str, table: Table, data: Path, directory: Path) -> tuple[PreparedData, Recipe]:
    directory.mkdir(parents=True)
    path, paths = directory / "rankline.yaml", [str(file) for file in sorted(data.glob(table.files))]
    path.write_text(first_recipe(paths, [table.label], directory).text, encoding="utf-8")
    recipe = read_recipe(path)
    raw = recipe.dataset.read(directory)
    # Use a single table: its random split is a permutation that the peer can reproduce, unlike a stream's.
    assert not isinstance(raw.rows, pa.Table)
    raw = replace(raw, rows=pa.Table.from_batches(raw.rows.batches()))
    return prepare(recipe.dataset, raw, directory / "prepared", recipe.prepare, recipe.encoding, source=name), recipe


def _figures(prepared: PreparedData, config: TrainConfig, directory: Path, seed: int) -> dict[str, float]:
    tracking = TrackingConfig(directory=directory, experiment="tables")
    trained: TrainedModel = train(prepared, directory / "model", replace(config, seed=seed), tracking=tracking)
    return {name.removeprefix("valid_"): figure for name, figure in trained.metrics.items() if name != "epoch"}


def peer_figures(name: str, table: Table, data: Path, recipe: Recipe, prepared: PreparedData) -> dict[str, float]:
    """Train LightGBM with all defaults on the raw columns of the same rows."""
    (head,) = prepared.spec.heads
    frame = pd.concat([pd.read_csv(path) for path in sorted(data.glob(table.files))], ignore_index=True)
    frame = frame.iloc[np.random.default_rng(42).permutation(len(frame))].reset_index(drop=True)
    labels = _labels(head, frame[table.label])
    inputs = frame[[column for column in frame if column in recipe.dataset.inputs]]
    inputs = inputs.apply(lambda column: column if pd.api.types.is_numeric_dtype(column) else _plain(column))
    split = len(frame) - prepared.spec.source("valid").num_rows
    held_out = prepared.heldout()[table.label].to_numpy()
    if not np.allclose(np.sort(labels[split:]), np.sort(held_out)):
        raise AssertionError(f"{name}: the peer's validation rows are others than ours")
    parameters: dict[str, Any] = {"objective": OBJECTIVES[head.task], "verbosity": -1}
    if head.task == MULTICLASS:
        parameters["num_class"] = head.width
    booster = lightgbm.train(parameters, lightgbm.Dataset(inputs[:split], labels[:split]))
    return quality(labels[split:], np.asarray(booster.predict(inputs[split:])), task=head.task)


def _labels(head: Head, column: "pd.Series[Any]") -> Any:
    if head.classes:
        numbers: Mapping[str, int] = {name: number for number, name in enumerate(head.classes)}
        return column.astype(str).map(numbers).to_numpy().astype(np.float64)
    if pd.api.types.is_numeric_dtype(column):
        return column.to_numpy().astype(np.float64)
    return (column == column.max()).to_numpy().astype(np.float64)


def _plain(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """Convert dates to days of the year, and other strings to categories."""
    days = pd.to_datetime(column, format="%m/%d/%Y", errors="coerce")
    return column.astype("category") if days.isna().any() else days.dt.dayofyear
