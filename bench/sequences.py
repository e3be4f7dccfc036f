"""sequences: SIM against DIEN and DIN on histories whose interests drift, and what its parts cost.

All on generated reviews, prepared once, one negative for each positive, items being id and category, histories of up
to 100 items of which the latest 10 are the short one, as SIM's paper has Amazon's. Each model is trained with several
seeds, all of them with the same choices, and without `recency`, with which DIN and DIEN know how long ago an item was
chosen: order and reach of a history are left to the architecture, as in the papers. "best attainable" is the AUC of who
knows how the reviews were made. Then each scores batches in process, compiled with XLA, in the shapes of NVIDIA's SIM
for TensorFlow 2: tables 16 wide, dense layers of 200 and 80 units, 96 in its recurrent layers, its blocks (`variant`
"reference"), every history full. The server is asked for one user's candidates in one request, and for the same scores
as rows of their own. At last a run that is interrupted and goes on is held against one that is not.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf

from bench.models import prepare_rows
from bench.report import Rates, Report, Turn, median_ratio, scratch_directory, take_turns
from rankline import pipeline
from rankline.display import Stages
from rankline.recipes import Recipe, recipe_named
from rankline.workspace import Workspace
from serving.client import Client
from serving.export_config import ExportConfig
from serving.server import EmbeddedServer
from serving.supervise import config_of
from training.config import SessionConfig, TrainConfig
from training.tracking import TrackingConfig
from training.train import train
from training.trainers.tensorflow import TensorFlowTrainer
from workflows.encodings import SequenceConfig
from workflows.errors import ConfigError, ParityError
from workflows.feature_spec import FeatureSpec
from workflows.prepared import PreparedData
from workflows.tensor_names import NNZS, VALUES
from workflows.trained import TrainedModel

SIM = "amazon-sim"
PEERS = {"dien": "amazon-dien", "din": "amazon-din"}
"""Name in the ratios → recipe."""
BATCH_SIZES = tuple(4_096 << power for power in range(6))  # of the document's table
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
"""In place of the recipes', which are for many short histories."""
_DOCUMENT: dict[str, Any] = {
    "variant": "reference",
    "embedding_dim": 16,
    "gru_units": 96,
    "hidden": (200, 80),
    "user_embeddings": True,
    "xla": True,
}
_SCORE_TOLERANCE = 1e-5
_WARMUP_CALLS = 3
_CHECKPOINTS = 5  # of the run that is interrupted, per epoch


def run(
    repeats: int,
    *,
    num_rows: int = 100_000,
    choices: Mapping[str, Any] | None = None,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    num_candidates: int = 1_000,
    turn_s: float = 2.0,
) -> Report:
    """Prepare the reviews, train each model with each seed, then measure.

    Args:
        repeats: seeds of each model, at least 2, and turns of each side.
        num_rows: generated reviews.
        choices: of `TrainConfig`, in place of the benchmark's own.
        batch_sizes: rows that are scored at once in process.
        num_candidates: items that one user is to rank.
        turn_s: how long a turn is.

    Raises:
        ConfigError: one seed, which has no spread.
    """
    if repeats < 2:
        raise ConfigError(f"sequences compares models by the spread of their seeds, got --repeats {repeats}. Give 2.")
    recipes = {name: _with_choices(recipe_named(name), dict(choices or {})) for name in (SIM, *PEERS.values())}
    with scratch_directory() as directory:
        workspaces = {
            recipe: Workspace(recipe=recipe, root=directory, repository=directory / "repository") for recipe in recipes
        }
        prepared = prepare_rows(workspaces[SIM], recipes[SIM], num_rows)
        aucs = {name: _aucs(recipe, prepared, workspaces[name], repeats) for name, recipe in recipes.items()}
        rates = _inference_rates(prepared, [recipe.train for recipe in recipes.values()], batch_sizes, repeats, turn_s)
        seconds = _ranking_seconds(recipes[SIM], prepared, workspaces[SIM], num_candidates, repeats)
        difference = _resume_difference(recipes[SIM].train, prepared, directory)
    results: dict[str, dict[str, float]] = {
        recipe: {
            "auc": statistics.fmean(values),
            "auc_std": statistics.stdev(values),
            "auc_range": max(values) - min(values),
            **{f"samples_per_s@{size}": statistics.median(rates[f"{recipe}@{size}"]) for size in batch_sizes},
        }
        for recipe, values in aucs.items()
    }
    assert prepared.spec.metadata.best_auc is not None  # its rows are generated
    results[BEST] = {"auc": prepared.spec.metadata.best_auc}
    results |= {side: {"ms": statistics.median(values) * 1e3} for side, values in seconds.items()}
    ratios = {
        **{f"sim_minus_{name}_over_spread": _lead(aucs[SIM], aucs[recipe]) for name, recipe in PEERS.items()},
        "candidates_vs_rows": median_ratio(seconds, ROWS, CANDIDATES),
        "resume_difference": difference,
    }
    return Report(name="sequences", results=results, ratios=ratios)


def _with_choices(recipe: Recipe, choices: dict[str, Any]) -> Recipe:
    return replace(recipe, encoding=SequenceConfig(), train=_with(recipe.train, _COMPARED | choices))


def _with(config: TrainConfig, choices: Mapping[str, Any]) -> TrainConfig:
    """The run with the choices that its model has."""
    return config.with_choices(**{name: value for name, value in choices.items() if name in config.to_dict()})


def _lead(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """How far apart the means are, in units of the larger difference between two seeds of one model."""
    spread = max(max(values) - min(values) for values in (ours, theirs))
    return (statistics.fmean(ours) - statistics.fmean(theirs)) / spread


def _aucs(recipe: Recipe, prepared: PreparedData, workspace: Workspace, num_seeds: int) -> list[float]:
    """Of the validation rows, for each seed; the first seed's model stays in the workspace."""
    with Stages(["train"]) as stages:
        _, metrics = pipeline.train(recipe, prepared, workspace, stages, num_seeds)
    return [of_seed["valid_auc"] for of_seed in metrics.values()]


def _inference_rates(
    prepared: PreparedData, configs: Sequence[TrainConfig], batch_sizes: Sequence[int], repeats: int, turn_s: float
) -> Rates:
    """Rows scored per second, model by model and size by size, so that one large batch is in memory at a time."""
    spec = prepared.spec.for_scoring
    rates: dict[str, Sequence[float]] = {}
    for config in configs:
        trainer = TensorFlowTrainer(spec, _with(config, _DOCUMENT), num_steps=1)
        for size in batch_sizes:
            side = f"amazon-{config.model.name}@{size}"
            rates |= take_turns({side: _scoring(trainer, _full_rows(spec, size), size, turn_s)}, repeats)
    return rates


def _full_rows(spec: FeatureSpec, batch_size: int) -> dict[str, Any]:
    """Random ids, with as long a history as there can be."""
    rng = np.random.default_rng(0)
    inputs: dict[str, Any] = {}
    for feature in spec.categorical:
        length = feature.max_length or 1
        ids = tf.constant(rng.integers(1, feature.embedding_shape[0], (batch_size * length, 1)))
        inputs[feature.name + VALUES if feature.is_list else feature.name] = ids
        if feature.is_list:
            inputs[feature.name + NNZS] = tf.fill((batch_size, 1), length)
    return inputs


def _scoring(trainer: TensorFlowTrainer, inputs: Mapping[str, Any], batch_size: int, turn_s: float) -> Turn:
    def turn() -> float:
        done, begin = 0, time.perf_counter()
        while not done or time.perf_counter() - begin < turn_s:
            trainer.score(inputs)
            done += batch_size
        return done / (time.perf_counter() - begin)

    return turn


def _ranking_seconds(
    recipe: Recipe, prepared: PreparedData, workspace: Workspace, num_candidates: int, repeats: int
) -> Rates:
    """Seconds until the scores of one user's candidates are there, asked for in both ways."""
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
            raise ParityError("candidates of one request and rows of their own score differently: nothing to compare.")
        return take_turns({CANDIDATES: _seconds(candidates), ROWS: _seconds(separately)}, repeats)


def _seconds(call: Callable[[], Any]) -> Turn:
    """Of one call, after some that do not count."""

    def turn() -> float:
        for _ in range(_WARMUP_CALLS):
            call()
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin

    return turn


def _longest_row(prepared: PreparedData) -> dict[str, Any]:
    """Raw inputs of the user with the longest history, without the item."""
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


class _InterruptedError(Exception):
    """Ends a run half-way."""


class _Half:
    """A progress that ends a run when half of it is done."""

    def update(self, done: float, total: float, note: str = "") -> None:  # noqa: ARG002
        """Let the first half pass."""
        if done >= total / 2:
            raise _InterruptedError


def _resume_difference(config: TrainConfig, prepared: PreparedData, directory: Path) -> float:
    """Largest difference between a weight of a run that was interrupted and the same of one that was not."""
    config = replace(config, epochs=2)
    num_steps = -(-prepared.spec.source("train").num_rows // config.batch_size)
    session = SessionConfig(checkpoint_every=max(num_steps // _CHECKPOINTS, 1))
    tracking = TrackingConfig(directory=directory, experiment="resume")
    whole = train(prepared.path, directory / "whole", config, tracking=tracking)
    with suppress(_InterruptedError):
        train(prepared.path, directory / "half", config, session=session, tracking=tracking, progress=_Half())
    resumed = train(prepared.path, directory / "half", config, session=replace(session, resume=True), tracking=tracking)
    ours, theirs = _weights(whole), _weights(resumed)
    return max(float(np.max(np.abs(ours[name] - theirs[name]))) for name in ours.keys() | theirs.keys())


def _weights(model: TrainedModel) -> dict[str, np.ndarray[Any, Any]]:
    reader = tf.train.load_checkpoint(str(model.saved_model / "variables" / "variables"))
    tensors = {name: np.asarray(reader.get_tensor(name)) for name in reader.get_variable_to_shape_map()}
    return {name: values for name, values in tensors.items() if values.dtype.kind == "f"}
