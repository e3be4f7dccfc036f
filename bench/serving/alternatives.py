"""alternatives: one SavedModel and one NVTabular workflow, served in several common ways.

The sides are Rankline's ensemble, merlin-systems' export on the same Triton, TensorFlow and NVTabular in a FastAPI app,
and MLflow's model server. Each receives the same rows from one process of the load generator, in turns, and must return
the same scores as Rankline. Metrics are medians over the turns; ratios are medians of the turns' ratios, above 1 where
Rankline is better.

For a fair comparison, all sides are measured in the same way, and the client's part of the latency is small. All
servers run at the same time, and those not being measured are idle. FastAPI and MLflow have one worker per core, as
their documentation recommends; Rankline and merlin-systems have one instance of each step, as exported. Each side uses
its own protocol, which is part of the comparison: tensors over gRPC on one connection, or JSON over HTTP/1.1 with one
connection per request in flight. FastAPI's endpoint is a coroutine, because scoring is CPU-bound and threads would
share one interpreter.

Some unfairness remains. The client and all servers share the cores of one machine, the HTTP workers are unevenly loaded
when the kernel gives them different numbers of connections, and uvicorn runs without its HTTP parser in C.
"""

import ctypes
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from tritonclient.grpc import service_pb2

from bench.harness.closed_loop import keep_in_flight
from bench.harness.fixtures import MERLIN_MODEL, ROWS, export_with_merlin, infer_request, make_model, serving_workflow
from bench.harness.report import Report, median_ratio, scratch_directory
from bench.peers import fastapi_app
from bench.serving.http1 import Http1Connection
from rankline.recipes.workspace import Workspace
from rankline.serving.client import Client
from rankline.serving.loadtest.generator.transport import Connect
from rankline.serving.loadtest.generator.worker_pool import Workers, connect
from rankline.serving.loadtest.runs import Load, bottleneck
from rankline.serving.loadtest.stats.counters import LatencyHistogram
from rankline.serving.loadtest.stats.percentiles import percentile
from rankline.serving.server.embedded import EmbeddedServer, ServerConfig
from rankline.serving.server.ports import free_port
from rankline.workflows.core.errors import ParityError, ServerError, ServingError
from rankline.workflows.nvt.compat import quiet_nvtabular
from rankline.workflows.nvt.io.workflow import save_workflow
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.schema.model_artifact import TrainedModel

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message=".*Any type hint is inferred as AnyType")  # raised by MLflow's own models
    import mlflow.pyfunc
    from mlflow.models import infer_signature

LOADS = (
    Load(batch_size=1, concurrency=1),
    Load(batch_size=1, concurrency=32),
    Load(batch_size=1_024, concurrency=1),
)
OURS, MERLIN, FASTAPI, MLFLOW = "rankline", "merlin-systems", "fastapi", "mlflow"
_WARMUP_SHARE = 1 / 6  # warm-up before a turn, as a share of the turn
_POLL_INTERVAL_S = 0.1
_NUM_ROWS_SENT = 65_536  # total rows in the prebuilt requests of a load
_SAMPLE_EVERY = 8
_SCORE_TOLERANCE = 1e-5
_PRCTL = ctypes.CDLL(None).prctl
_PR_SET_PDEATHSIG = 1
_PROJECT = Path(__file__).parents[2]
_READY = re.compile(rb"Application startup complete")  # logged by uvicorn once per worker

Array = npt.NDArray[Any]
Columns = Mapping[str, Array]


@dataclass(frozen=True, kw_only=True)
class Stack:
    connect: Connect  # see `Job`
    encode: Callable[[Columns], bytes]  # converts columns to a request
    decode: Callable[[bytes], Array]  # converts a response to scores [num_rows]


@dataclass(frozen=True, kw_only=True)
class Turn:
    latency: LatencyHistogram
    requests_per_s: float

    @property
    def p50_ms(self) -> float:
        return self.latency.at_rank((self.latency.total + 1) // 2) / 1e6


Turns = Mapping[str, Sequence[Turn]]  # side → its turns


def run(
    repeats: int,
    *,
    num_rows: int = ROWS,
    turn_s: float = 3.0,
    workers: int = os.cpu_count() or 1,
    loads: Sequence[Load] = LOADS,
) -> Report:
    with scratch_directory() as directory, ExitStack() as running:
        workspace = Workspace(recipe="movielens", root=directory, repository=directory / "ours")
        prepared, trained = make_model(workspace, num_rows)
        url = running.enter_context(_triton(workspace, prepared, trained))
        stacks = {
            OURS: _triton_stack(url, workspace.recipe),
            MERLIN: _triton_stack(url, MERLIN_MODEL, row_shape=()),
            **running.enter_context(_over_http(prepared, trained, directory / "peers", workers)),
        }
        pool = prepared.heldout().select(list(prepared.inputs))
        with Client(url, workspace.recipe) as client:
            expected = client.predict(pool)
        generator = running.enter_context(Workers(1))
        measured = {load: _measure(stacks, load, pool, expected, generator, repeats, turn_s) for load in loads}
    return Report(name="alternatives", results=_results(measured), ratios=_ratios(measured))


@contextmanager
def _triton(workspace: Workspace, prepared: PreparedData, trained: TrainedModel) -> Iterator[str]:
    merlin = workspace.root / "merlin"
    export_with_merlin(prepared, trained, merlin)
    config = ServerConfig(repositories=(workspace.ensemble, merlin))
    with EmbeddedServer(config) as server:
        yield server.endpoints.grpc


def _triton_stack(url: str, model: str, row_shape: tuple[int, ...] = (1,)) -> Stack:
    def encode(columns: Columns) -> bytes:
        return infer_request(model, columns, row_shape)

    def decode(body: bytes) -> Array:
        return np.frombuffer(service_pb2.ModelInferResponse.FromString(body).raw_output_contents[0], np.float32)

    return Stack(connect=partial(connect, "http2", url), encode=encode, decode=decode)


@contextmanager
def _over_http(
    prepared: PreparedData, trained: TrainedModel, directory: Path, workers: int
) -> Iterator[dict[str, Stack]]:
    workflow = directory / "workflow"
    with quiet_nvtabular():
        save_workflow(serving_workflow(prepared), workflow)
    model = _save_with_mlflow(prepared, workflow, trained.saved_model, directory)
    app = ("uvicorn", "bench.peers.fastapi_app:app", "--no-access-log")
    serve = ("mlflow", "models", "serve", "--env-manager", "local", "--model-uri", str(model))
    paths = {fastapi_app.WORKFLOW: str(workflow), fastapi_app.SAVED_MODEL: str(trained.saved_model)}
    with (
        _running(app, directory / "fastapi.log", workers, paths) as fastapi,
        _running(serve, directory / "mlflow.log", workers) as mlflow_server,
    ):
        for server in (fastapi, mlflow_server):
            _wait_until_ready(server, workers)
        yield {
            FASTAPI: Stack(
                connect=partial(Http1Connection, f"{fastapi.url}/predict"),
                encode=lambda columns: _json({"columns": {name: values.tolist() for name, values in columns.items()}}),
                decode=lambda body: np.asarray(json.loads(body)["scores"], np.float32),
            ),
            MLFLOW: Stack(
                connect=partial(Http1Connection, f"{mlflow_server.url}/invocations"),
                encode=lambda columns: _json({"dataframe_split": pd.DataFrame(columns).to_dict("split")}),
                decode=lambda body: np.asarray(json.loads(body)["predictions"], np.float32),
            ),
        }


def _json(document: Any) -> bytes:
    return json.dumps(document).encode()


def _save_with_mlflow(prepared: PreparedData, workflow: Path, saved_model: Path, directory: Path) -> Path:
    path = directory / "model"
    rows = prepared.heldout().select(list(prepared.inputs)).slice(0, 2).to_pandas()
    with warnings.catch_warnings():
        # MLflow warns about integers, which ids are, and about type hints.
        warnings.simplefilter("ignore", UserWarning)
        mlflow.pyfunc.save_model(
            path=str(path),
            python_model=str(_PROJECT / "bench" / "peers" / "mlflow_model.py"),
            artifacts={"workflow": str(workflow), "saved_model": str(saved_model)},
            signature=infer_signature(rows, np.zeros(len(rows), np.float32)),
            pip_requirements=[],  # it runs in this environment
        )
    return path


class _HttpServer(NamedTuple):
    process: subprocess.Popen[bytes]
    log: Path
    url: str


@contextmanager
def _running(
    module: Sequence[str], log: Path, workers: int, variables: Mapping[str, str] | None = None
) -> Iterator[_HttpServer]:
    port = free_port()
    search_path = os.pathsep.join(filter(None, (str(_PROJECT), os.environ.get("PYTHONPATH"))))
    programs = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))  # MLflow calls uvicorn by name
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *module, "--host", "127.0.0.1", "--port", str(port), "--workers", str(workers)],
            env={**os.environ, **(variables or {}), "PYTHONPATH": search_path, "PATH": programs},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # to end it together with all its workers
            preexec_fn=partial(_PRCTL, _PR_SET_PDEATHSIG, signal.SIGTERM),  # also ends when this process is killed
        )
    try:
        yield _HttpServer(process, log, f"127.0.0.1:{port}")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_until_ready(server: _HttpServer, workers: int) -> None:
    deadline = time.monotonic() + ServerConfig.ready_timeout_s
    while len(_READY.findall(server.log.read_bytes())) < workers:
        if server.process.poll() is not None or time.monotonic() > deadline:
            end = server.log.read_text(errors="replace").strip().rpartition("\n")[2]
            raise ServerError(f"{server.log.stem} did not start all {workers} workers. End of its log: {end}")
        time.sleep(_POLL_INTERVAL_S)


def _measure(
    stacks: Mapping[str, Stack],
    load: Load,
    pool: pa.Table,
    expected: Array,
    generator: Workers,
    repeats: int,
    turn_s: float,
) -> Turns:
    """Measure one load on all sides in turns.

    The first turn of each side warms up and compares all scores. Later turns compare a sample of the scores.
    """
    draws = np.random.default_rng(0).integers(0, len(pool), (_NUM_ROWS_SENT // load.batch_size, load.batch_size))
    columns = {name: pool[name].to_numpy() for name in pool.column_names}
    turns: dict[str, list[Turn]] = {side: [] for side in stacks}
    messages = {
        side: [stack.encode({name: column[rows] for name, column in columns.items()}) for rows in draws]
        for side, stack in stacks.items()
    }
    for number in range(-1, repeats):
        for side, stack in stacks.items():
            run, outcome = keep_in_flight(
                side,
                generator,
                stack.connect,
                messages[side],
                load,
                turn_s=turn_s,
                warmup_s=_WARMUP_SHARE * turn_s,
                sample_every=1 if number < 0 else _SAMPLE_EVERY,
            )
            if problem := bottleneck(run.client_cost, run.whole.latency.mean_ns / 1e6, num_processes=1):
                raise ServingError(f"{side}: {problem}")
            _compare(side, ((stack.decode(body), expected[draws[message]]) for _, message, body in outcome.samples))
            if number >= 0:
                rate = run.whole.num_answered / run.duration_s
                turns[side].append(Turn(latency=run.whole.latency, requests_per_s=rate))
    return turns


def _compare(side: str, scores: Iterable[tuple[Array, Array]]) -> None:
    for theirs, ours in scores:
        if theirs.shape != ours.shape or not np.allclose(theirs, ours, rtol=0, atol=_SCORE_TOLERANCE):
            raise ParityError(f"{OURS} and {side} score the same rows differently, so they cannot be compared.")


def _results(measured: Mapping[Load, Turns]) -> dict[str, dict[str, float]]:
    results: dict[str, dict[str, float]] = {}
    for load, turns in measured.items():
        for side, of_side in turns.items():
            figures = results.setdefault(side, {})
            name = _name(load)
            figures[f"p50_ms@{name}"] = statistics.median(turn.p50_ms for turn in of_side)
            p99 = percentile([turn.latency for turn in of_side], 0.99)
            if p99.value is not None:  # else too few samples
                figures[f"p99_ms@{name}"] = p99.value / 1e6
            figures[f"rows_per_s@{name}"] = load.batch_size * statistics.median(t.requests_per_s for t in of_side)
    return results


def _name(load: Load) -> str:
    return str(load.batch_size) if load.concurrency == 1 else f"{load.batch_size}x{load.concurrency}"


def _ratios(measured: Mapping[Load, Turns]) -> dict[str, float]:
    """Return the ratio of Rankline to each peer; above 1, Rankline is better."""
    ratios = {}
    for load, turns in measured.items():
        p50 = {side: [turn.p50_ms for turn in of_side] for side, of_side in turns.items()}
        rate = {side: [turn.requests_per_s for turn in of_side] for side, of_side in turns.items()}
        suffix = "" if load.batch_size == 1 else f"_{load.batch_size}"
        for peer in (FASTAPI, MLFLOW, MERLIN):
            name = peer.partition("-")[0]
            if load.concurrency == 1:
                ratios[f"p50_vs_{name}{suffix}"] = median_ratio(p50, peer, OURS)
            else:
                ratios[f"concurrent_vs_{name}{suffix}"] = median_ratio(rate, OURS, peer)
    return ratios
