"""serving: Rankline's ensemble against merlin-systems' export of the same workflow and SavedModel.

One server loads all models, and one client calls them over one connection, in turns; metrics are medians over the
repeats. Requests are built in advance, each with different rows. Then a process of the load generator keeps 32 one-row
requests in flight. The floor is the overhead of the server and of TensorFlow: a native model that returns its input,
with and without Triton's batcher (which costs latency and gains throughput), and a call of the SavedModel's signature
in this process. Memory is measured on a server with only the ensemble, after one request of each batch size, with
native backends and with Python backends.

Criteo's raw rows have missing numbers and categories. Rankline gets them unchanged, as hexadecimal strings and masks
for missing values; merlin-systems gets 0 and the empty string instead (`bench.harness.fixtures.merlin_rows`). Amazon's
rows have one candidate each and a full history. All scores must agree.

If a recipe's model is not a neural network, an MLP on the same rows is an additional side, with different scores. A
model that is not a SavedModel has no side of merlin-systems, and none in process.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import tensorflow as tf

from bench.harness.closed_loop import keep_in_flight
from bench.harness.fixtures import (
    export_with_merlin,
    has_histories,
    make_model,
    merlin_rows,
    request_rows,
    usual_rows,
)
from bench.harness.interleaved import Call, LaidOut, asks, check_same_scores, laid_out, laid_out_for_merlin, latencies
from bench.harness.report import Report, scratch_directory
from rankline.api import pipeline
from rankline.recipes import recipe_named
from rankline.recipes.workspace import Workspace, workspace_of
from rankline.serving.export.config import PYTHON, ExportConfig
from rankline.serving.export.exporter import export_ensemble
from rankline.serving.export.parity import plan_inputs, rows_of
from rankline.serving.loadtest.generator.worker_pool import Workers, connect
from rankline.serving.loadtest.identity import (
    BACKENDS,
    NAME,
    NATIVE_NAME,
    UNBATCHED_NAME,
    write_identity,
    write_native_identity,
)
from rankline.serving.loadtest.runs import Load
from rankline.serving.repository.ensemble import ExportedEnsemble
from rankline.serving.server.embedded import EmbeddedServer, ServerConfig
from rankline.serving.server.supervisor import config_of
from rankline.serving.triton.step import PLAN
from rankline.terminal.console import Stages
from rankline.training.config.train import TrainConfig
from rankline.training.models.config import NetworkConfig
from rankline.training.models.tabular import MLPConfig
from rankline.workflows.core.errors import ExportError
from rankline.workflows.plan import TransformPlan
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.schema.model_artifact import SAVED_MODEL, TrainedModel
from rankline.workflows.schema.ragged import padded_tensors
from rankline.workflows.schema.tensor_names import PADDED_SIGNATURE, SCORE

BATCH_SIZES = (1, 1_024, 16_384)
LONG_ROWS_BATCH_SIZES = (1, 64, 1_024)
"""For rows with histories."""
OURS, MERLIN, IN_PROCESS = "rankline", "merlin-systems", "in process"
IN_PYTHON = "python"
PLAIN = "plain"
"""An `mlp` on the same rows."""
IDENTITY, NATIVE_IDENTITY, UNBATCHED_IDENTITY = "identity", "native identity", "native identity, no batcher"
VARIANTS = {
    IN_PYTHON: ExportConfig(backend=PYTHON),
    "onnx": ExportConfig(engine="onnx"),
    "one step": ExportConfig(fused=True),
    "two steps": ExportConfig(fused=False),
}
"""Other export configs, each exported as a separate ensemble."""
CONCURRENCY = 32


def run(
    repeats: int,
    *,
    recipe: str = "movielens",
    num_rows: int | None = None,
    small_layers: bool = False,
    batch_sizes: Sequence[int] = (),
    turn_s: float = 1.0,
    concurrent_turn_s: float = 3.0,
) -> Report:
    """Train a small model, export it with Rankline and with merlin-systems, and measure all sides in turns.

    Rows with histories have their own defaults: a tenth of the rows, and other batch sizes. A turn with many requests
    in flight follows a warm-up of a third of its length.
    """
    is_long = has_histories(recipe)
    num_rows = num_rows or usual_rows(recipe)
    batch_sizes = batch_sizes or (LONG_ROWS_BATCH_SIZES if is_long else BATCH_SIZES)
    with scratch_directory() as directory:
        workspace = workspace_of(recipe, directory, directory / "ours")
        name = workspace.recipe
        prepared, trained = make_model(workspace, num_rows, recipe=recipe_named(recipe), small_layers=small_layers)
        models = {OURS: name} | {
            side: side_name
            for side, config in VARIANTS.items()
            if _export(prepared, trained, directory / side, config, side_name := f"{name}_{side.replace(' ', '_')}")
        }
        is_keras = trained.format == SAVED_MODEL
        if not is_long and not isinstance(recipe_named(recipe).train.model, NetworkConfig):
            models[PLAIN] = _export_plain(recipe, prepared, directory / PLAIN)
        if is_keras:
            export_with_merlin(prepared, trained, directory / "merlin")
        write_identity(directory / "identity")
        write_native_identity(directory / "identity", directory / "backends")
        folders = [*(side for side in models if side != OURS), *(["merlin"] if is_keras else []), "identity"]
        others = (directory / folder for folder in folders)
        backends = (BACKENDS, directory / "backends")
        served = ServerConfig(repositories=(workspace.ensemble, *others), backends=backends)
        rows = request_rows(prepared)
        with EmbeddedServer(served) as server:
            url = server.endpoints.grpc
            numbers = pa.table({"x": np.arange(len(rows))})
            requests = {side: laid_out(url, model, rows, batch_sizes) for side, model in models.items()}
            if is_keras:
                requests[MERLIN] = laid_out_for_merlin(merlin_rows(rows), requests[OURS])
            requests[IDENTITY] = laid_out(url, NAME, numbers, batch_sizes)
            requests[NATIVE_IDENTITY] = laid_out(url, NATIVE_NAME, numbers, batch_sizes)
            requests[UNBATCHED_IDENTITY] = laid_out(url, UNBATCHED_NAME, numbers, batch_sizes)
            with closing(connect("http2", url)) as connection:
                sides = {side: asks(connection, laid_out_rows) for side, laid_out_rows in requests.items()}
                different = (PLAIN, IDENTITY, NATIVE_IDENTITY, UNBATCHED_IDENTITY)
                same = {side: ask for side, ask in sides.items() if side not in different}
                check_same_scores(same, max(batch_sizes))
                if is_keras:
                    sides[IN_PROCESS] = _calls_in_process(workspace, rows)
                results = latencies(sides, batch_sizes, repeats, turn_s)
            single = {side: sent[batch_sizes[0]].messages for side, sent in requests.items()}
            for side, rate in _measure_concurrent(url, single, repeats, concurrent_turn_s).items():
                results[side][f"requests_per_s@{batch_sizes[0]}x{CONCURRENCY}"] = rate
        for side, repository in ((OURS, workspace.ensemble), (IN_PYTHON, directory / IN_PYTHON)):
            results[side] |= _start(ExportedEnsemble.load(repository), requests[side])
    ratios = _ratios(results, batch_sizes)
    if small_layers:  # plain names are reserved for the unchanged recipe
        ratios = {f"{name}_small_layers": value for name, value in ratios.items()}
    return Report(name="serving", results=results, ratios=ratios)


def _export(prepared: PreparedData, trained: TrainedModel, target: Path, config: ExportConfig, name: str) -> bool:
    """Export a model, and return whether that is possible: not every network can be converted to ONNX."""
    try:
        export_ensemble(prepared, trained, target, config, name=name)
    except ExportError:
        if config.engine != "onnx":
            raise
        return False
    return True


def _export_plain(recipe: str, prepared: PreparedData, directory: Path) -> str:
    plain = replace(recipe_named(recipe), train=TrainConfig(model=MLPConfig(), epochs=1))
    workspace = workspace_of(recipe, directory.with_name(f"{PLAIN}-work"), directory)
    with Stages(["train"]) as stages:
        pipeline.train(plain, prepared, workspace, stages)
    name = f"{workspace.recipe}_{PLAIN}"
    export_ensemble(prepared, TrainedModel.load(workspace.model), directory, ExportConfig(), name=name)
    return name


def _start(ensemble: ExportedEnsemble, requests: LaidOut) -> dict[str, float]:
    """Return the seconds until a server of the ensemble is ready, and its memory after a request of each batch size."""
    begin = time.perf_counter()
    with EmbeddedServer(config_of(ensemble)) as server:
        ready_s = time.perf_counter() - begin
        with closing(connect("http2", server.endpoints.grpc)) as connection:
            ask = asks(connection, requests)
            for batch_size in requests:
                ask(batch_size)
        held = sum(psutil.Process(pid).memory_full_info().pss for pid in server.process_ids())
    return {"ready_s": ready_s, "memory_mb": held / 1e6}


def _measure_concurrent(
    url: str, messages: Mapping[str, Sequence[bytes]], repeats: int, turn_s: float
) -> dict[str, float]:
    """Return the responses per second to one-row requests, with `CONCURRENCY` in flight, measured in turns."""
    rates: dict[str, list[float]] = {side: [] for side in messages}
    load = Load(batch_size=1, concurrency=CONCURRENCY)
    with Workers(1) as workers:
        for _ in range(repeats):
            for side, sent in messages.items():
                run, _ = keep_in_flight(
                    side, workers, partial(connect, "http2", url), sent, load, turn_s=turn_s, warmup_s=turn_s / 3
                )
                rates[side].append(run.whole.latency.total / run.duration_s)
    return {side: statistics.median(values) for side, values in rates.items()}


def _calls_in_process(workspace: Workspace, rows: pa.Table) -> Call:
    """Return a function that calls the served signature on encoded rows, without a server."""
    first = ExportedEnsemble.load(workspace.ensemble).steps[0]
    plan = TransformPlan.load(workspace.ensemble / first / "1" / PLAN)
    model = tf.saved_model.load(str(TrainedModel.load(workspace.model).saved_model))
    signature = model.signatures[PADDED_SIGNATURE]
    encoded: dict[int, dict[str, Any]] = {}

    def call(batch_size: int, _keep: Any = model) -> Any:
        if batch_size not in encoded:
            drawn = rows.take(pa.array(np.arange(batch_size) % len(rows)))
            inputs = padded_tensors(plan.run(*plan_inputs(plan, rows_of(plan.inputs, drawn, batch_size))))
            encoded[batch_size] = {name: tf.constant(values) for name, values in inputs.items()}
        return signature(**encoded[batch_size])[SCORE].numpy()

    return call


def _ratios(results: Mapping[str, Mapping[str, float]], batch_sizes: Sequence[int]) -> dict[str, float]:
    ours, floor = results[OURS], results[NATIVE_IDENTITY]
    first, *between, largest = batch_sizes
    p50, concurrent, rate = f"p50_ms@{first}", f"requests_per_s@{first}x{CONCURRENCY}", f"rows_per_s@{largest}"
    ratios = {
        ratio: results[side][p50] / results[UNBATCHED_IDENTITY][p50]
        for ratio, side in (("p50_over_native_identity", OURS), ("onnx_p50_over_native_identity", "onnx"))
        if side in results
    }
    ratios["concurrent_over_native_identity"] = ours[concurrent] / floor[concurrent]
    ratios["memory_vs_python"] = ours["memory_mb"] / results[IN_PYTHON]["memory_mb"]
    if PLAIN in results:
        ratios["p50_over_plain"] = ours[p50] / results[PLAIN][p50]
    if (theirs := results.get(MERLIN)) is not None:
        ratios |= {
            "p50_vs_merlin": theirs[p50] / ours[p50],
            **{f"p50_vs_merlin_{size}": theirs[f"p50_ms@{size}"] / ours[f"p50_ms@{size}"] for size in between},
            "throughput_vs_merlin": ours[rate] / theirs[rate],
            "concurrent_vs_merlin": ours[concurrent] / theirs[concurrent],
        }
    if (in_process := results.get(IN_PROCESS)) is not None:
        ratios["p50_over_floor"] = ours[p50] / (floor[p50] + in_process[p50])
        ratios["throughput_over_in_process"] = ours[rate] / in_process[rate]
    return ratios
