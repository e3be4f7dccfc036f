"""tables: arbitrary tables with a recipe file, from files to scores.

`prepare`: the same generated Criteo rows, from the same files, with the generic table reader (13 numbers, 26 string
columns) and with Criteo's own reader, which first converts categories to numbers; in turns, in rows per second of CPU
time. Memory of the generic reader is the peak of a separate process above its imports, for data of two sizes.

`click log`: a generated log (string ids, nulls, a timestamp, 20 columns), with the two commands that a user types.
`bench.serving.forest`: `model: lightgbm`, served.

With `--data DIRECTORY`, which has the files of `TABLES` (they are not part of the project): quality of the recipes that
`rankline init` writes for real tables, against LightGBM with its defaults. The network and `model: lightgbm` are
trained as in the recipe. The peer gets the recipe's columns directly from the files, with strings as categories and
dates as days of the year.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pyarrow as pa

from bench.data.prepare import generated, rate
from bench.harness.memory import peak_above_imports
from bench.harness.report import Report, Turn, median_ratio, medians, scratch_directory, take_turns
from bench.harness.synthetic_rows import write_click_log
from bench.serving import forest
from rankline.recipes import Recipe
from rankline.recipes.first_recipe import first_recipe
from rankline.recipes.recipe_file import read_recipe
from rankline.training.config.train import TrainConfig
from rankline.training.evaluation import objective_of, quality
from rankline.training.models.lightgbm import LightGBMConfig
from rankline.training.models.lightgbm.network import OBJECTIVES
from rankline.training.run.train import train
from rankline.training.tracking import TrackingConfig
from rankline.workflows.data.criteo.dataset import CRITEO
from rankline.workflows.data.criteo.reader import CATEGORIES, LABEL, NUMBERS
from rankline.workflows.data.tabular.config import ColumnConfig, FilesConfig, LabelConfig, TableConfig
from rankline.workflows.data.tabular.dataset import table_dataset
from rankline.workflows.preprocess import RowsConfig
from rankline.workflows.preprocess.config import PrepareConfig
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


def measure_quality(
    data: Path, directory: Path, num_seeds: int
) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Return metrics by "TABLE, side", and ratios: AUC below the peer's, or error as a multiple of the peer's."""
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
            if objective_of([head]).higher_is_better:
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
        raise AssertionError(f"{name}: the peer's validation rows differ from ours")
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


ROWS = 1_000_000
SIZES = (1_000_000, 4_000_000)  # numbers of rows, for memory
LOG_ROWS = 1_000_000
CONFIG, ENCODING = PrepareConfig(frequency_threshold=5), RowsConfig()
TABLE, OWN_READER, LOG = "table", "criteo's reader", "click log"


def run(
    repeats: int,
    *,
    data: Path | None = None,
    num_rows: int = ROWS,
    sizes: tuple[int, int] = SIZES,
    log_rows: int = LOG_ROWS,
    forest_rows: int = forest.ROWS,
) -> Report:
    ratios: dict[str, float] = {}
    with scratch_directory() as directory:
        raw = {size: generated(directory / f"raw-{size}", size) for size in sorted({num_rows, *sizes})}
        sides: dict[str, Turn] = {
            TABLE: partial(rate, num_rows, lambda: prepare_table(raw[num_rows], directory / "table")),
            OWN_READER: partial(rate, num_rows, lambda: _prepare_criteo(raw[num_rows], directory / "criteo")),
        }
        rates = take_turns(sides, repeats)
        peaks = {size: peak_above_imports(prepare_table, raw[size], directory / "table") for size in sizes}
        results = medians(rates, "rows_per_cpu_s")
        results[TABLE] |= {f"peak_memory_bytes@{size}": float(peak) for size, peak in peaks.items()}
        results[LOG] = _click_log(directory / "log", log_rows)
        (directory / "forest").mkdir()
        served, ratios = forest.measure(directory / "forest", repeats, forest_rows)
        results |= served
        if data is not None:
            qualities, of_quality = measure_quality(data, directory / "quality", repeats)
            results |= qualities
            ratios |= of_quality
    ratios |= {
        "prepare_vs_criteo_reader": median_ratio(rates, TABLE, OWN_READER),
        "prepare_memory_growth": peaks[sizes[1]] / peaks[sizes[0]],
    }
    return Report(name="tables", results=results, ratios=ratios)


def criteo_table() -> TableConfig:
    """Describe Criteo's files as a recipe file would: label, numbers and categories, without a header."""
    names = {column: f"column_{place}" for place, column in enumerate((LABEL, *NUMBERS, *CATEGORIES), 1)}
    number, category = ColumnConfig(type="int", role="numeric", scale="log"), ColumnConfig(role="id")
    return TableConfig(
        data=FilesConfig(files=("day_*",), format="csv", delimiter="\t", header=False),
        columns={names[name]: number for name in NUMBERS} | {names[name]: category for name in CATEGORIES},
        labels={names[LABEL]: LabelConfig()},
    )


def prepare_table(raw: Path, output: Path) -> None:
    dataset = table_dataset("table", criteo_table(), raw)
    prepare(dataset, dataset.read(raw), output, CONFIG, ENCODING, source="generated")


def _prepare_criteo(raw: Path, output: Path) -> None:
    prepare(CRITEO, CRITEO.read(raw), output, CONFIG, ENCODING, source="generated")


def _click_log(directory: Path, num_rows: int) -> dict[str, float]:
    directory.mkdir()
    write_click_log(directory / "clicks.csv", num_rows)
    seconds = {}
    for verb, *words in (("init", "clicks.csv"), ("run", "rankline.yaml", "--json", "result.json")):
        begin = time.perf_counter()
        command = [str(Path(sys.executable).with_name("rankline")), verb, *words]
        subprocess.run(command, cwd=directory, check=True, capture_output=True)
        seconds[f"{verb}_s"] = time.perf_counter() - begin
    return seconds | {"total_s": sum(seconds.values()), "num_rows": float(num_rows)}
