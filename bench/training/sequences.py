"""sequences: SIM against DIEN and DIN on histories of drifting interests, and the cost of ranking a user's candidates.

All models use the same generated reviews, prepared once: one negative per positive, items with id and category, and
histories of up to 100 items, with the latest 10 as the short history, as in SIM's paper for Amazon. Each model is
trained with several seeds and the same settings. `recency` is off, because it would tell DIN and DIEN the age of each
item; as in the papers, the architecture alone handles order and length of a history. "best attainable" is the AUC of
the model that generated the reviews. The server then scores one user's candidates in one request, and as separate rows.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from bench.harness.fixtures import prepare_rows
from bench.harness.report import Rates, Report, median_ratio, medians, p50_ms, scratch_directory, take_turns
from rankline.api import pipeline
from rankline.recipes import Recipe, recipe_named
from rankline.recipes.workspace import Workspace
from rankline.serving.client import Client
from rankline.serving.export.config import ExportConfig
from rankline.serving.server.embedded import EmbeddedServer
from rankline.serving.server.supervisor import config_of
from rankline.terminal.console import Stages
from rankline.workflows.core.errors import ConfigError, ParityError
from rankline.workflows.preprocess import SequenceConfig
from rankline.workflows.preprocess.prepared_data import PreparedData

SIM = "amazon-sim"
PEERS = {"dien": "amazon-dien", "din": "amazon-din"}
"""Mapping from name in the ratios to recipe."""
BEST = "best attainable"
CANDIDATES, ROWS = "candidates, one request", "rows, one batch"
_COMPARED: dict[str, Any] = {
    "recency": False,
    "weight_averaging": False,
    "embedding_dim": 16,
    "gru_units": 32,
    "dropout": 0.1,
    "embedding_dropout": 0.1,
    "learning_rate": 2e-3,
    "batch_size": 256,
    "epochs": 2,
}
"""Settings that replace the recipes' own, which suit many short histories."""
_SCORE_TOLERANCE = 1e-5
_WARMUP_CALLS = 3


def run(
    repeats: int,
    *,
    num_rows: int = 100_000,
    choices: Mapping[str, Any] | None = None,
    num_candidates: int = 1_000,
) -> Report:
    """Train each model with `repeats` seeds (at least 2), then rank as many times."""
    if repeats < 2:
        raise ConfigError(
            f"sequences compares models by the spread over their seeds, got --repeats {repeats}. Pass 2 or more."
        )
    recipes = {name: _with_choices(recipe_named(name), dict(choices or {})) for name in (SIM, *PEERS.values())}
    with scratch_directory() as directory:
        workspaces = {
            recipe: Workspace(recipe=recipe, root=directory, repository=directory / "repository") for recipe in recipes
        }
        prepared = prepare_rows(workspaces[SIM], recipes[SIM], num_rows)
        aucs = {name: _aucs(recipe, prepared, workspaces[name], repeats) for name, recipe in recipes.items()}
        latencies_ms = _ranking_ms(recipes[SIM], prepared, workspaces[SIM], num_candidates, repeats)
    results: dict[str, dict[str, float]] = {
        recipe: {
            "auc": statistics.fmean(values),
            "auc_std": statistics.stdev(values),
            "auc_range": max(values) - min(values),
        }
        for recipe, values in aucs.items()
    }
    assert prepared.spec.metadata.best_auc is not None  # the rows are generated
    results[BEST] = {"auc": prepared.spec.metadata.best_auc}
    results |= medians(latencies_ms, "ms")
    ratios = {
        **{f"sim_minus_{name}_over_spread": _lead(aucs[SIM], aucs[recipe]) for name, recipe in PEERS.items()},
        "candidates_vs_rows": median_ratio(latencies_ms, ROWS, CANDIDATES),
    }
    return Report(name="sequences", results=results, ratios=ratios)


def _with_choices(recipe: Recipe, choices: dict[str, Any]) -> Recipe:
    known = recipe.train.to_dict()
    chosen = {name: value for name, value in (_COMPARED | choices).items() if name in known}
    return replace(recipe, encoding=SequenceConfig(), train=recipe.train.with_choices(**chosen))


def _lead(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the difference of the means, in units of the larger range over the seeds of one model."""
    spread = max(max(values) - min(values) for values in (ours, theirs))
    return (statistics.fmean(ours) - statistics.fmean(theirs)) / spread


def _aucs(recipe: Recipe, prepared: PreparedData, workspace: Workspace, num_seeds: int) -> list[float]:
    """Return the AUC of the validation rows for each seed; the first seed's model stays in the workspace."""
    with Stages(["train"]) as stages:
        _, metrics = pipeline.train(recipe, prepared, workspace, stages, num_seeds)
    return [of_seed["valid_auc"] for of_seed in metrics.values()]


def _ranking_ms(
    recipe: Recipe, prepared: PreparedData, workspace: Workspace, num_candidates: int, repeats: int
) -> Rates:
    with Stages(["export"]) as stages:
        ensemble = pipeline.export(recipe, ExportConfig(), prepared, workspace, stages)
    row, items = _longest_row(prepared), _items(prepared, num_candidates)
    (item,) = prepared.candidates
    rows = pa.table({**{name: pa.array([value] * len(items)) for name, value in row.items()}, item: items})
    with EmbeddedServer(config_of(ensemble)) as server, Client(server.endpoints.grpc, ensemble.name) as client:

        def candidates() -> Any:
            return client.rank(row, {item: items})

        def separately() -> Any:
            return client.predict(rows)

        if not np.allclose(candidates(), separately(), rtol=0, atol=_SCORE_TOLERANCE):
            raise ParityError(
                "the candidates of one request score differently from the same rows sent separately, so they cannot "
                "be compared."
            )
        sides = {CANDIDATES: candidates, ROWS: separately}
        return take_turns({side: partial(p50_ms, ask, 1, _WARMUP_CALLS) for side, ask in sides.items()}, repeats)


def _longest_row(prepared: PreparedData) -> dict[str, Any]:
    """Return the raw inputs of the user with the longest history, without the item."""
    rows = prepared.heldout().select([name for name in prepared.inputs if name not in prepared.candidates])
    history = prepared.spec.metadata.history
    lengths = [len(items) for items in rows[history].to_pylist()]
    (row,) = rows.slice(int(np.argmax(lengths)), 1).to_pylist()
    return dict(row)


def _items(prepared: PreparedData, count: int) -> pa.Array:
    catalog = prepared.catalog()
    assert catalog is not None
    column = catalog[prepared.candidates[0]].combine_chunks()
    return column.take(pa.array(np.arange(count) % len(column)))
