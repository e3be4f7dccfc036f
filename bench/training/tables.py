"""tables: the model that `rankline init` and `run` give any table, against other libraries' models with their defaults.

`--data DIRECTORY` contains the tables, which are not part of the project: each CSV file, where `NAME_train.csv` and
`NAME_test.csv` are one table. `init` guesses the label and the columns. `--repeats` is the number of random splits:
models are trained on four fifths of all rows, and of 200 and 2,000 rows where the table has more. The exported ensemble
scores the rows not trained on. The peers get the same rows from the files, times as numbers: LightGBM, CatBoost with
its own handling of categories, and for the first split of all rows RealMLP-TD (pytabkit, up to 5,000 rows) and
AutoGluon (medium quality, 60 s), if they can be installed. Errors are RMSE, logloss or 1 - AUC, as means over splits.

A table counts as won if the error is at most 0.5 % above CatBoost's, or the AUC at most 0.002 below. The chosen models
of the first split are served together with a model that returns its input, to measure the latency of one row.
"""

import json
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from shutil import rmtree

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from scipy.stats import rankdata

from bench.harness.report import Report, Turn, median_ratio, p50_ms, scratch_directory, take_turns
from bench.peers.processes import output_of, python_with
from rankline.recipes import Recipe
from rankline.recipes.first_recipe import first_recipe
from rankline.recipes.recipe_file import read_recipe
from rankline.serving.client import Client
from rankline.serving.export.config import ExportConfig
from rankline.serving.export.exporter import export_ensemble
from rankline.serving.loadtest.identity import NATIVE_NAME, write_native_identity
from rankline.serving.repository.ensemble import ExportedEnsemble
from rankline.serving.server.embedded import EmbeddedServer, ServerConfig
from rankline.serving.server.in_process import open_ensemble
from rankline.terminal.console import note
from rankline.training.models.auto.learner import error_of
from rankline.training.run.train import train
from rankline.training.tracking import TrackingConfig
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.preprocess import RowsConfig
from rankline.workflows.preprocess.prepare import prepare
from rankline.workflows.preprocess.raw import RawData
from rankline.workflows.preprocess.splits import random_split
from rankline.workflows.schema.targets import BINARY, Head

OURS, LIGHTGBM, CATBOOST, REALMLP, AUTOGLUON = "rankline", "lightgbm", "catboost", "realmlp", "autogluon"
_PACKAGES = {REALMLP: ("pytabkit==1.7.2",), AUTOGLUON: ("autogluon.tabular[lightgbm,catboost,xgboost]==1.6.3",)}
"""Mapping from peer to packages of its own environment. The others are installed with Rankline."""
SHARE = 0.2
SIZES = (0, 200, 2_000)  # 0 for all rows
_MAX_ROWS_OF_REALMLP = 5_000
_TOLERANCE, _AUC_TOLERANCE = 0.005, 0.002
_CALLS, _WARMUP_CALLS = 2_000, 200
_TIMED_SHAPE = (50_000, 20)
_SCRIPT = Path(__file__).parents[1] / "peers" / "tabular.py"
_PARTS = ("year", "month", "dayofyear", "dayofweek", "hour")
Errors = dict[str, dict[str, list[float]]]
"""Mapping from case, such as "glass@200", to side to the error of each split."""
Served = dict[str, tuple[Path, pa.Table, bool]]
"""Mapping from ensemble to its directory, a row, and whether it is a blend."""


@dataclass(frozen=True, kw_only=True)
class Table:
    recipe: Recipe
    raw: RawData
    rows: pa.Table

    @property
    def name(self) -> str:
        return self.recipe.name

    def labels(self, rows: pa.Table) -> NDArray[np.float64]:
        labels: NDArray[np.float64] = rows[self.recipe.dataset.labels[0]].to_numpy().astype(np.float64)
        return labels


@dataclass(kw_only=True)
class Findings:
    heads: dict[str, Head] = field(default_factory=dict)
    errors: Errors = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    seconds: Errors = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    served: Served = field(default_factory=dict)


def run(
    repeats: int,
    *,
    data: Path | None = None,
    sizes: Sequence[int] = SIZES,
    peers: Sequence[str] = (LIGHTGBM, CATBOOST, REALMLP, AUTOGLUON),
    timed_shape: tuple[int, int] = _TIMED_SHAPE,
) -> Report:
    if data is None or not any(data.glob("*.csv")):
        raise ConfigError(f"--data is {data}, expected a directory of CSV files. Each is a table.")
    found = Findings()
    with scratch_directory() as directory:
        tables = list(_tables(data, directory))
        for split, table, size in product(range(repeats), tables, sizes):
            if size < len(table.rows):
                _measure(table, size, split, peers, directory / f"{table.name}-{size}-{split}", found)
        timed = _timed(directory / "timed", timed_shape)
        latencies, of_latency = _latencies(found.served, directory, repeats)
    return Report(name="tables", results=_results(found, latencies), ratios=_ratios(found) | of_latency | timed)


def _tables(data: Path, directory: Path) -> Iterator[Table]:
    files = defaultdict(list)
    for path in sorted(data.glob("*.csv")):
        files[path.stem.removesuffix("_train").removesuffix("_test")].append(str(path))
    for name, paths in files.items():
        yield _table(name, paths, directory)


def _table(name: str, paths: Sequence[str], directory: Path) -> Table:
    path = directory / f"{name}.yaml"
    path.write_text(first_recipe(paths, [], directory, name=name).text, encoding="utf-8")
    recipe = read_recipe(path)
    raw = recipe.dataset.read(directory)
    assert not isinstance(raw.rows, pa.Table)
    return Table(recipe=recipe, raw=raw, rows=pa.Table.from_batches(raw.rows.batches()))


def _measure(table: Table, size: int, split: int, peers: Sequence[str], directory: Path, found: Findings) -> None:
    """Train all sides on one split, and score the rows that they were not trained on."""
    case = f"{table.name}@{size or 'all'}"
    rows = table.rows.take(pa.array(np.random.default_rng(split).permutation(len(table.rows))))
    cut = replace(table, rows=rows.slice(0, size or len(rows)))
    learned, _ = random_split(len(cut.rows), SHARE, split)
    asked = rows.take(pa.array(np.setdiff1d(np.arange(len(rows)), learned)))
    begin_s = time.perf_counter()
    ensemble, head, is_blend = _ours(cut, split, directory)
    found.seconds[case][OURS].append(time.perf_counter() - begin_s)
    found.heads[case], labels = head, table.labels(asked)
    inputs = asked.select(list(table.recipe.dataset.inputs))
    scores = np.asarray(open_ensemble(ensemble).predict(inputs), np.float64)
    found.errors[case][OURS].append(error_of(head, labels, scores.reshape(len(asked), -1)))
    if not size and not split:
        found.served[ensemble.name] = (ensemble.path, inputs.slice(0, 1), is_blend)
    folder = directory / "peers"
    _write_task(folder, table, rows.take(pa.array(learned)), asked, head)
    for peer in peers:
        fits = peer != REALMLP or len(learned) <= _MAX_ROWS_OF_REALMLP
        if fits and (peer not in _PACKAGES or not (split or size)):
            begin_s = time.perf_counter()
            try:
                made = _peer(peer, folder)
            except ConfigError as error:
                note(f"{peer} was left out for {case}: {error}")
                continue
            found.seconds[case][peer].append(time.perf_counter() - begin_s)
            found.errors[case][peer].append(error_of(head, labels, made))
    for name in ("peers", "prepared"):
        rmtree(directory / name)
    sides = {side: f"{np.mean(errors):.4f}" for side, errors in found.errors[case].items()}
    note(f"{case}, split {split + 1}: {', '.join(f'{side} {error}' for side, error in sides.items())}")


def _ours(table: Table, split: int, directory: Path) -> tuple[ExportedEnsemble, Head, bool]:
    recipe, raw = table.recipe, replace(table.raw, rows=table.rows)
    encoding = RowsConfig(valid_share=SHARE, split_seed=split)
    prepared = prepare(recipe.dataset, raw, directory / "prepared", recipe.prepare, encoding, source=table.name)
    tracking = TrackingConfig(directory=directory, experiment="tables")
    trained = train(prepared, directory / "model", replace(recipe.train, seed=split), tracking=tracking)
    name = re.sub(r"[^a-z0-9]+", "_", table.name.lower())
    ensemble = export_ensemble(prepared, trained, directory / "served", ExportConfig(), name=name)
    candidates = trained.manifest.details.get("compared", {"candidates": ()})["candidates"]
    return ensemble, prepared.spec.heads[0], sum(one["weight"] > 0 for one in candidates) > 1


# --- Peers


def _write_task(folder: Path, table: Table, learned: pa.Table, asked: pa.Table, head: Head) -> None:
    folder.mkdir()
    (folder / "task.json").write_text(json.dumps({"task": head.task, "width": head.width}), encoding="utf-8")
    np.save(folder / "labels.npy", table.labels(learned))
    for name, rows in (("train", learned), ("rows", asked)):
        _frame(rows.select(list(table.recipe.dataset.inputs))).to_parquet(folder / f"{name}.parquet", index=False)


def _frame(rows: pa.Table) -> pd.DataFrame:
    """Return the columns as the peers take them: numbers, strings, and the parts of times as numbers."""
    frame = rows.to_pandas()
    for name in list(frame):
        column = frame[name]
        if pd.api.types.is_datetime64_any_dtype(column):
            parts = {f"{name} {part}": getattr(column.dt, part) for part in _PARTS}
            frame = frame.drop(columns=name).assign(**parts)
        elif not pd.api.types.is_numeric_dtype(column):
            frame[name] = column.astype(str)
    return frame


def _peer(peer: str, folder: Path) -> NDArray[np.float64]:
    """Run a peer on a folder's rows in a separate process, and return its scores."""
    packages = _PACKAGES.get(peer)
    python = python_with(*packages) if packages else [sys.executable]
    output_of([*python, _SCRIPT, peer, folder], cwd=folder, variables={"PYTHONPATH": ""})
    scores: NDArray[np.float64] = np.load(folder / "scores.npy")
    return scores


# --- Time and latency


def _timed(directory: Path, shape: tuple[int, int]) -> dict[str, float]:
    """Measure how long `auto` trains on a generated table. A quarter of the columns are categories."""
    rng, (num_rows, num_columns) = np.random.default_rng(0), shape
    numbers = rng.normal(size=(num_rows, num_columns))
    categories = rng.integers(0, 20, (num_rows, num_columns // 4))
    logits = numbers[:, 0] * numbers[:, 1] + np.sin(2 * numbers[:, 2]) + rng.normal(size=20)[categories[:, 0]]
    columns = {f"number_{place}": numbers[:, place] for place in range(num_columns - num_columns // 4)}
    columns |= {f"category_{place}": np.char.add("c", column.astype(str)) for place, column in enumerate(categories.T)}
    directory.mkdir()
    is_positive = logits + rng.logistic(size=num_rows) > 0
    pd.DataFrame({**columns, "label": is_positive.astype(int)}).to_csv(directory / "timed.csv", index=False)
    table = _table("timed", [str(directory / "timed.csv")], directory)
    recipe, raw = table.recipe, replace(table.raw, rows=table.rows)
    prepared = prepare(recipe.dataset, raw, directory / "prepared", recipe.prepare, RowsConfig(), source="generated")
    begin_s = time.perf_counter()
    train(
        prepared, directory / "model", recipe.train, tracking=TrackingConfig(directory=directory, experiment="tables")
    )
    return {f"fit_{num_rows}x{num_columns}_s": time.perf_counter() - begin_s}


def _latencies(served: Served, directory: Path, repeats: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return the p50 of one row per model in ms, and the largest ratios to a native model that returns its input."""
    write_native_identity(directory / "identity", directory / "backends")
    repositories = (*(path for path, _, _ in served.values()), directory / "identity")
    asked = {name: row for name, (_, row, _) in served.items()}
    asked[NATIVE_NAME] = pa.table({"x": np.zeros(1, np.int64)})
    config = ServerConfig(repositories=repositories, backends=(directory / "backends",))
    with EmbeddedServer(config) as server, ExitStack() as stack:
        sides: dict[str, Turn] = {}
        for name, row in asked.items():
            client = stack.enter_context(Client(server.endpoints.grpc, name))
            sides[name] = partial(p50_ms, partial(client.infer, client.prepare(row)), _CALLS, _WARMUP_CALLS)
        turns = take_turns(sides, repeats)
    ratios: dict[str, float] = {}
    for name, (_, _, is_blend) in served.items():
        key = f"{'blend' if is_blend else 'auto'}_p50_over_native_identity"
        ratios[key] = max(ratios.get(key, 0.0), median_ratio(turns, name, NATIVE_NAME))
    return {name: float(np.median(values)) for name, values in turns.items()}, ratios


# --- What was found


def _results(found: Findings, latencies: Mapping[str, float]) -> dict[str, dict[str, float]]:
    results: dict[str, dict[str, float]] = {}
    for case, sides in found.errors.items():
        results[case] = {f"{side}_error": float(np.mean(errors)) for side, errors in sides.items()}
        results[case] |= {f"{side}_s": float(np.median(found.seconds[case][side])) for side in sides}
    return results | {f"{name}, served": {"p50_ms@1": latency} for name, latency in latencies.items()}


def _ratios(found: Findings) -> dict[str, float]:
    """Return the number of tables won, the number of tables, the worst ratio to CatBoost, and the mean ranks."""
    ratios: dict[str, float] = {}
    for prefix, ending in (("", "@all"), ("small_", "@200"), ("medium_", "@2000")):
        means = {
            case: {side: float(np.mean(errors)) for side, errors in sides.items()}
            for case, sides in found.errors.items()
            if case.endswith(ending) and CATBOOST in sides
        }
        if means:
            won = [_is_won(found.heads[case], of_case[OURS], of_case[CATBOOST]) for case, of_case in means.items()]
            ratios |= {f"{prefix}tables_at_catboost": sum(won), f"{prefix}tables": len(won)}
            ratios[f"{prefix}worst_vs_catboost"] = max(one[OURS] / one[CATBOOST] for one in means.values())
    first = {
        case: {side: errors[0] for side, errors in sides.items()}
        for case, sides in found.errors.items()
        if case.endswith("@all")
    }
    ranks = defaultdict(list)
    for errors in first.values():
        for side, rank in zip(errors, rankdata(list(errors.values())), strict=True):
            ranks[side].append(float(rank))
    names = {side: "mean_rank" if side == OURS else f"mean_rank_{side}" for side in ranks}
    return ratios | {names[side]: float(np.mean(of_side)) for side, of_side in ranks.items()}


def _is_won(head: Head, error: float, peer: float) -> bool:
    return error <= peer + _AUC_TOLERANCE if head.task == BINARY else error <= peer * (1 + _TOLERANCE)
