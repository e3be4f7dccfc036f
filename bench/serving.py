"""serving: our ensemble against merlin-systems' own export of the same workflow and SavedModel.

All are loaded by one server and asked by one client over one connection, in turns, several times; figures are medians
over the repeats. Then one-row requests, 32 in flight, from a process of the load generator. The floor is what the
server and TensorFlow cost with nothing to do: a model that returns its input, and the SavedModel's signature called in
this process.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2
from tritonclient.utils import np_to_triton_dtype

from bench.models import export_with_merlin, make_model
from bench.report import Report
from rankline.workspace import Workspace
from serving.benchmark.engine import Job
from serving.benchmark.identity import BACKENDS, write_identity
from serving.benchmark.records import SLICE_S
from serving.benchmark.workers import Workers
from serving.export import export_ensemble
from serving.export_config import ExportConfig
from serving.plan import TransformPlan, padded_inputs
from serving.server import EmbeddedServer, ServerConfig
from workflows.errors import ParityError, ServingError
from workflows.tensor_names import PADDED_SIGNATURE, SCORE
from workflows.trained import TrainedModel

BATCH_SIZES = (1, 1_024, 16_384)
OURS, MERLIN, IDENTITY, IN_PROCESS = "rankline", "merlin-systems", "identity", "in process"
VARIANTS = {
    "onnx": ExportConfig(engine="onnx"),
    "fused": ExportConfig(fused=True),
    "onnx fused": ExportConfig(engine="onnx", fused=True),
}
"""What else an export can choose, each an ensemble of its own."""
CONCURRENCY = 32
_SECONDS_PER_TURN = 1.0
_WARMUP_CALLS = 10
_CONCURRENT_SECONDS = 3.0
_NUM_MESSAGES = 4_096
_TIMEOUT_S = 60.0
_SCORE_TOLERANCE = 1e-5

Call = Callable[[int], Any]  # batch size → answer


def run(repeats: int) -> Report:
    """Train a small model, export it both ways, measure each side `repeats` times in turns."""
    with TemporaryDirectory(prefix="rankline-bench-") as directory:
        workspace = Workspace(recipe="movielens", root=Path(directory), repository=Path(directory) / "ours")
        prepared, trained = make_model(workspace)
        names = {side: f"{workspace.recipe}_{side.replace(' ', '_')}" for side in VARIANTS}
        for side, config in VARIANTS.items():
            export_ensemble(prepared, trained, Path(directory) / side, config, name=names[side])
        export_with_merlin(prepared, trained, Path(directory) / "merlin")
        write_identity(Path(directory) / "identity")
        others = (Path(directory) / name for name in (*VARIANTS, "merlin", "identity"))
        served = ServerConfig(repositories=(workspace.ensemble, *others), backends=(BACKENDS,))
        with EmbeddedServer(served) as server:
            client = triton.InferenceServerClient(server.endpoints.grpc)
            rows = prepared.heldout().select(list(prepared.inputs))
            numbers = rows.select([0]).rename_columns(["x"])
            sides: dict[str, Call] = {
                OURS: _asks(client, workspace.recipe, rows, SCORE),
                **{side: _asks(client, name, rows, SCORE) for side, name in names.items()},
                MERLIN: _asks(client, "executor_model", rows, SCORE, row_shape=()),
                IDENTITY: _asks(client, "identity", numbers, "y"),
                IN_PROCESS: _calls_in_process(workspace, rows),
            }
            _check_same_scores(sides)
            results = _measure(sides, repeats)
            messages = {
                OURS: _messages(workspace.recipe, rows),
                **{side: _messages(name, rows) for side, name in names.items()},
                MERLIN: _messages("executor_model", rows, row_shape=()),
                IDENTITY: _messages("identity", numbers),
            }
            concurrent = _measure_concurrent(server.endpoints.grpc, messages, repeats)
            for side, rate in concurrent.items():
                results[side][f"requests_per_s@1x{CONCURRENCY}"] = rate
    return Report(name="serving", results=results, ratios=_ratios(results))


def _asks(client: Any, model: str, rows: pa.Table, output: str, row_shape: tuple[int, ...] = (1,)) -> Call:
    """A call that sends fresh rows to a model on the server."""
    columns = {name: rows[name].to_numpy() for name in rows.column_names}
    rng = np.random.default_rng(0)

    def call(batch_size: int) -> Any:
        begin = int(rng.integers(0, max(len(rows) - batch_size, 1)))
        inputs = []
        for name, column in columns.items():
            values = np.resize(column[begin : begin + batch_size], (batch_size, *row_shape))
            tensor = triton.InferInput(name, values.shape, np_to_triton_dtype(values.dtype))
            tensor.set_data_from_numpy(values)
            inputs.append(tensor)
        return client.infer(model, inputs).as_numpy(output)

    return call


def _messages(model: str, rows: pa.Table, row_shape: tuple[int, ...] = (1,)) -> list[bytes]:
    """Requests of one row, as bytes for the wire."""
    columns = {name: rows[name].to_numpy() for name in rows.column_names}
    drawn = np.random.default_rng(1).integers(0, len(rows), _NUM_MESSAGES)
    messages = []
    for row in drawn:
        message = service_pb2.ModelInferRequest(model_name=model)
        for name, column in columns.items():
            message.inputs.add(name=name, datatype=np_to_triton_dtype(column.dtype), shape=(1, *row_shape))
            message.raw_input_contents.append(column[row : row + 1].tobytes())
        messages.append(message.SerializeToString())
    return messages


def _measure_concurrent(url: str, messages: Mapping[str, Sequence[bytes]], repeats: int) -> dict[str, float]:
    """Answers per second to one-row requests, `CONCURRENCY` in flight, the sides in turns."""
    rates: dict[str, list[float]] = {side: [] for side in messages}
    with Workers(1) as workers:
        for _ in range(repeats):
            for side, sent in messages.items():
                job = Job(
                    process=0,
                    url=url,
                    transport="http2",
                    messages=sent,
                    warmup_s=1.0,
                    time_limit_s=_CONCURRENT_SECONDS,
                    timeout_s=_TIMEOUT_S,
                    sample_every=len(sent),
                    concurrency=CONCURRENCY,
                )
                slices = workers.run([job]).slices
                if errors := [record.errors for record in slices if record.errors]:
                    raise ServingError(f"{side} failed under {CONCURRENCY} requests in flight: {errors[0]}")
                rates[side].append(sum(record.latency.total for record in slices) / (len(slices) * SLICE_S))
    return {side: statistics.median(values) for side, values in rates.items()}


def _calls_in_process(workspace: Workspace, rows: pa.Table) -> Call:
    """A call of the served signature with encoded rows, without a server."""
    plan = TransformPlan.load(workspace.ensemble / f"{workspace.recipe}_transform_v1" / "1" / "plan")
    model = tf.saved_model.load(str(TrainedModel.load(workspace.model).saved_model))
    signature = model.signatures[PADDED_SIGNATURE]
    columns = {name: rows[name].to_numpy() for name in rows.column_names}
    encoded: dict[int, dict[str, Any]] = {}

    def call(batch_size: int, _keep: Any = model) -> Any:
        if batch_size not in encoded:
            inputs = padded_inputs(plan.run({name: np.resize(c, batch_size) for name, c in columns.items()}))
            encoded[batch_size] = {name: tf.constant(values) for name, values in inputs.items()}
        return signature(**encoded[batch_size])[SCORE].numpy()

    return call


def _check_same_scores(sides: Mapping[str, Call]) -> None:
    """All sides draw the same rows from the same seed, so their first answers must agree."""
    ours = sides[OURS](512)
    for side in (*VARIANTS, MERLIN):
        if not np.allclose(ours, sides[side](512).reshape(ours.shape), atol=_SCORE_TOLERANCE):
            raise ParityError(f"{OURS} and {side} score the same rows differently: nothing to compare.")


def _measure(sides: Mapping[str, Call], repeats: int) -> dict[str, dict[str, float]]:
    turns: dict[str, dict[str, list[float]]] = {side: {} for side in sides}
    for batch_size in BATCH_SIZES:
        for call in sides.values():
            for _ in range(_WARMUP_CALLS):
                call(batch_size)
        for _ in range(repeats):
            for side, call in sides.items():
                latencies_ms = _turn(call, batch_size)
                figures = turns[side]
                figures.setdefault(f"p50_ms@{batch_size}", []).append(float(np.percentile(latencies_ms, 50)))
                figures.setdefault(f"p99_ms@{batch_size}", []).append(float(np.percentile(latencies_ms, 99)))
                rate = batch_size * len(latencies_ms) / (sum(latencies_ms) / 1e3)
                figures.setdefault(f"rows_per_s@{batch_size}", []).append(rate)
    return {
        side: {name: statistics.median(values) for name, values in figures.items()} for side, figures in turns.items()
    }


def _turn(call: Call, batch_size: int) -> list[float]:
    latencies_ms = []
    end = time.perf_counter() + _SECONDS_PER_TURN
    while (begin := time.perf_counter()) < end:
        call(batch_size)
        latencies_ms.append((time.perf_counter() - begin) * 1e3)
    return latencies_ms


def _ratios(results: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    ours, theirs = results[OURS], results[MERLIN]
    concurrent = f"requests_per_s@1x{CONCURRENCY}"
    floor = results[IDENTITY]["p50_ms@1"] + results[IN_PROCESS]["p50_ms@1"]
    largest = BATCH_SIZES[-1]
    in_process = results[IN_PROCESS][f"rows_per_s@{largest}"]
    return {
        "p50_vs_merlin": theirs["p50_ms@1"] / ours["p50_ms@1"],
        "p50_vs_merlin_1024": theirs["p50_ms@1024"] / ours["p50_ms@1024"],
        "throughput_vs_merlin": ours[f"rows_per_s@{largest}"] / theirs[f"rows_per_s@{largest}"],
        "concurrent_vs_merlin": ours[concurrent] / theirs[concurrent],
        "concurrent_vs_merlin_fused": results["fused"][concurrent] / theirs[concurrent],
        "onnx_p50_over_identity": results["onnx fused"]["p50_ms@1"] / results[IDENTITY]["p50_ms@1"],
        "onnx_two_steps_p50_over_identity": results["onnx"]["p50_ms@1"] / results[IDENTITY]["p50_ms@1"],
        "p50_over_floor": ours["p50_ms@1"] / floor,
        "throughput_over_in_process": ours[f"rows_per_s@{largest}"] / in_process,
    }
