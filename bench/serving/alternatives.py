"""alternatives: one model and its raw rows, served by Rankline and by what teams use instead.

All sides serve the same network, on ONNX Runtime except where a peer's documentation says otherwise:

maintained    FastAPI with orjson and uvicorn, the same without a framework, `grpc.aio`, LitServe, BentoML, Ray Serve
              and MLflow's server; all call `bench.peers.servers.scorer`, which encodes with dictionaries
plain Triton  the network without its workflow, encoded rows sent by the client
unmaintained  merlin-systems' export of the workflow and the SavedModel, and NVTabular and TensorFlow in a FastAPI app

A peer runs with one worker per core in an environment with pinned versions of its own, and only while it takes turns
with Rankline. One process of the load generator sends prebuilt requests: tensors over gRPC on one connection, or JSON
over HTTP/1.1 with one connection per request in flight. All scores must agree with Rankline's. Metrics are medians over
the turns; ratios are medians of the turns' ratios, above 1 where Rankline is better.

With another recipe, the fastest of the maintained peers serve that recipe's model, and only the latency of one row is
measured. The peers' dictionaries have the values that occur in the requests.

`in process` calls the scorer without a server, on one thread and on all. For plain Triton, the latency of one row is
also measured with a client in Python that encodes each row, beside one that sends raw rows to Rankline. The client and
the servers share the cores of one machine.
"""

import json
import statistics
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from os import cpu_count
from pathlib import Path
from shutil import copy
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bench.harness.closed_loop import keep_in_flight
from bench.harness.fixtures import (
    MERLIN_MODEL,
    export_with_merlin,
    infer_request,
    make_model,
    request_rows,
    serving_workflow,
    usual_rows,
)
from bench.harness.interleaved import ask, first_output
from bench.harness.report import Report, median_ratio, p50_ms, scratch_directory, take_turns
from bench.peers.processes import Server, running
from bench.peers.servers.scorer import DIRECTORY, ENCODINGS, MODEL, SAVED_MODEL, TABLES, WORKFLOW, Scorer
from bench.serving.http1 import Http1Connection
from rankline.recipes.workspace import Workspace
from rankline.serving.client import Client
from rankline.serving.export.config import ExportConfig
from rankline.serving.export.exporter import export_ensemble
from rankline.serving.export.parity import plan_inputs, rows_of
from rankline.serving.loadtest.generator.transport import Connect
from rankline.serving.loadtest.generator.worker_pool import Workers, connect
from rankline.serving.loadtest.runs import Load, bottleneck
from rankline.serving.loadtest.server_breakdown import Statistics
from rankline.serving.loadtest.stats.counters import LatencyHistogram
from rankline.serving.loadtest.stats.percentiles import percentile
from rankline.serving.repository.ensemble import ExportedEnsemble
from rankline.serving.server.embedded import EmbeddedServer, ServerConfig
from rankline.serving.triton.step import PLAN
from rankline.terminal.console import note
from rankline.workflows.core.errors import ParityError, ServerError, ServingError
from rankline.workflows.nvt.compat import ops, quiet_nvtabular
from rankline.workflows.nvt.io.workflow import save_workflow
from rankline.workflows.plan import TransformPlan
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.schema.model_artifact import TrainedModel
from rankline.workflows.schema.ragged import padded_tensors
from rankline.workflows.schema.tensor_names import VALUES

from merlin.dag import Graph  # isort: skip

LOADS = tuple(
    Load(batch_size=rows, concurrency=in_flight) for rows, in_flight in ((1, 1), (1, 32), (1_024, 1), (16_384, 1))
)
_MEASURES = {"p50": LOADS[:1], "concurrent": LOADS[1:2], "throughput": LOADS[2:]}
"""Mapping from the name of a ratio to its loads; of several, the worst counts."""
OURS, PLAIN_TRITON, IN_PROCESS = "rankline", "plain triton", "in process"
FASTAPI, MLFLOW, NVTABULAR, MERLIN = "fastapi", "mlflow", "nvtabular in fastapi", "merlin-systems"
_UVICORN = "uvicorn==0.54.0"
_FASTER = ("httptools==0.9.0", "uvloop==0.23.0")  # uvicorn uses them if they are installed
_UVICORN_OPTIONS = "--host 127.0.0.1 --port {port} --workers {workers} --no-access-log"
MAINTAINED = {
    FASTAPI: Server(
        command=f"uvicorn bench.peers.servers.fastapi_app:app {_UVICORN_OPTIONS}",
        packages=("fastapi==0.165.0", _UVICORN, *_FASTER),
    ),
    "asgi": Server(
        command=f"uvicorn bench.peers.servers.asgi_app:app {_UVICORN_OPTIONS}", packages=(_UVICORN, *_FASTER)
    ),
    "grpc.aio": Server(
        command="bench.peers.servers.grpc_server --port {port}", packages=("tritonclient[grpc]==2.73.0",), path=""
    ),
    "litserve": Server(
        command="bench.peers.servers.litserve_server --port {port} --workers {workers}", packages=("litserve==0.2.19",)
    ),
    "bentoml": Server(
        command="bentoml serve bench.peers.servers.bentoml_service:Scoring --host 127.0.0.1 --port {port}",
        packages=("bentoml==1.4.40",),
    ),
    "ray serve": Server(
        command="bench.peers.servers.ray_server --port {port} --workers {workers}",
        packages=("ray[serve]==2.60.0",),
        path="/",
        # Else it copies the working directory to its workers, and gives up if that takes 30 s.
        variables={"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "RAY_raylet_start_wait_time_s": "120"},
    ),
    MLFLOW: Server(
        command="mlflow models serve --env-manager local --model-uri model --host 127.0.0.1 --port {port} "
        "--workers {workers}",
        path="/invocations",
    ),
}
_NVTABULAR_SERVER = Server(command=f"uvicorn bench.peers.servers.nvtabular_app:app {_UVICORN_OPTIONS}")
_RECIPE = "movielens"
_FASTEST = (FASTAPI, "asgi")
_WARMUP_SHARE = 1 / 6  # warm-up before a turn, as a share of the turn
_NUM_ROWS_SENT, _MAX_REQUESTS = 65_536, 4_096  # in the prebuilt requests of a load
_SAMPLE_EVERY = 8
_SCORE_TOLERANCE = 1e-5
_CLIENT_CALLS = 2_000
_PROJECT = Path(__file__).parents[2]

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Side:
    connect: Connect  # see `Job`
    encode: Callable[[pa.Table], bytes]  # converts rows to a request
    decode: Callable[[bytes], Array]  # converts a response to scores [num_rows]


@dataclass(frozen=True, kw_only=True)
class Turn:
    latency: LatencyHistogram
    requests_per_s: float

    @property
    def p50_ms(self) -> float:
        return self.latency.at_rank((self.latency.total + 1) // 2) / 1e6


Turns = dict[str, list[Turn]]
"""Mapping from side to its turns."""
Pairs = dict[str, dict[Load, Turns]]
"""Mapping from peer to load to the turns of Rankline and the peer."""


def run(
    repeats: int,
    *,
    recipe: str = _RECIPE,
    num_rows: int | None = None,
    turn_s: float = 3.0,
    workers: int = cpu_count() or 1,
    loads: Sequence[Load] = (),
    peers: Sequence[str] = (),
) -> Report:
    num_rows = num_rows or usual_rows(recipe)
    loads = loads or (LOADS if recipe == _RECIPE else LOADS[:1])
    peers = peers or ((*MAINTAINED, PLAIN_TRITON, MERLIN, NVTABULAR) if recipe == _RECIPE else _FASTEST)
    pairs: Pairs = {}
    left_out: dict[str, str] = {}
    with scratch_directory() as directory, ExitStack() as stack:
        subject = _Subject.make(directory, recipe, num_rows)
        url = stack.enter_context(EmbeddedServer(ServerConfig(repositories=(subject.ensemble.path,)))).endpoints.grpc
        client = stack.enter_context(Client(url, subject.ensemble.name))
        ours = Side(connect=partial(connect, "http2", url), encode=partial(_message, client), decode=first_output)
        rows = _Rows(table=subject.rows, expected=client.predict(subject.rows))
        generator = stack.enter_context(Workers(1))
        client_ratio: dict[str, float] = {}
        for peer in peers:
            try:
                with _served(peer, subject, rows, workers) as (side, address):
                    sides = {OURS: ours, peer: side}
                    pairs[peer] = {load: _measure(sides, load, rows, generator, repeats, turn_s) for load in loads}
                    if peer == PLAIN_TRITON:
                        client_ratio = _with_encoding(subject, rows, url, address, repeats)
            except ServerError as error:
                left_out[peer] = str(error)
                note(f"{peer} was left out: {error}")
        in_process = _in_process(subject, rows, loads, repeats)
        run_ratio = {}
        if one_row_ms := in_process[IN_PROCESS].get("p50_ms@1"):
            run_ratio = {"run_over_in_process": _run_over_in_process(subject, rows, url, ours.encode, one_row_ms)}
    results = _results(pairs) | {peer: {} for peer in left_out} | in_process
    return Report(
        name="alternatives", results=results, ratios=_ratios(pairs) | client_ratio | run_ratio, left_out=left_out
    )


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """The model in all forms that the sides serve."""

    directory: Path
    files: Path  # of the scorer
    prepared: PreparedData
    trained: TrainedModel
    rows: pa.Table  # raw, in one chunk
    ensemble: ExportedEnsemble
    two_steps: ExportedEnsemble  # the last step is the network alone
    scorer: Scorer

    @classmethod
    def make(cls, directory: Path, recipe: str, num_rows: int) -> "_Subject":
        workspace = Workspace(recipe=recipe, root=directory, repository=directory / "unused")
        prepared, trained = make_model(workspace, num_rows)
        rows = request_rows(prepared)
        fused, two_steps = (
            export_ensemble(
                prepared, trained, directory / name, ExportConfig(engine="onnx", fused=name == "fused"), name=name
            )
            for name in ("fused", "two_steps")
        )
        first, last = two_steps.steps
        files = directory / "scorer"
        files.mkdir()
        _write_encodings(TransformPlan.load(two_steps.path / first / "1" / PLAN), prepared, rows, files)
        copy(two_steps.path / last / "1" / MODEL, files / MODEL)
        return cls(
            directory=directory,
            files=files,
            prepared=prepared,
            trained=trained,
            rows=rows,
            ensemble=fused,
            two_steps=two_steps,
            scorer=Scorer(files),
        )


def _write_encodings(plan: TransformPlan, prepared: PreparedData, rows: pa.Table, directory: Path) -> None:
    """Write what the scorer needs to encode rows: constants of numbers, and the plan's results for all other values."""
    encodings: dict[str, Any] = {}
    tables: dict[str, Array] = {}
    scales = _scales(prepared)
    for name in rows.column_names:
        if name in scales:
            encodings[name] = scales[name]
            continue
        column = rows[name].combine_chunks()
        is_list = pa.types.is_list(column.type)
        known = pc.unique(pc.drop_null(column.flatten() if is_list else column))
        unknown = "none" if pa.types.is_string(known.type) else int(pc.max(known).as_py()) + 1
        tried = pa.concat_arrays([pa.array([unknown, None], known.type), known])
        if is_list:
            tried = pa.ListArray.from_arrays(np.arange(len(tried) + 1, dtype=np.int32), tried)
        one = rows.take(pa.array(np.zeros(len(tried), int))).set_column(rows.column_names.index(name), name, tried)
        tensors = padded_tensors(plan.run(*plan_inputs(plan, rows_of(plan.inputs, one, len(one)))))
        encodings[name] = {"keys": known.to_pylist(), "list": is_list}
        for made in plan.columns:
            if _roots(plan, made.source) != {name}:
                continue
            if is_list:
                tables[f"{name}/{made.name}"] = tensors[made.name + VALUES]
            else:
                tables |= {f"{name}/{tensor.name}": tensors[tensor.name] for tensor in made.spec.tensors}
    (directory / ENCODINGS).write_text(json.dumps(encodings))
    np.savez(directory / TABLES, allow_pickle=False, **tables)


def _scales(prepared: PreparedData) -> dict[str, dict[str, float]]:
    """Return the mean and the standard deviation of log(1 + x) for each of Criteo's numbers."""
    with quiet_nvtabular():
        found = [node.op for node in Graph.get_nodes_by_op_type([prepared.workflow().output_node], ops.Normalize)]
    return {name: {"mean": float(op.means[name]), "std": float(op.stds[name])} for op in found for name in op.means}


def _roots(plan: TransformPlan, source: str | int) -> set[str]:
    """Return the raw columns that a result depends on."""
    if isinstance(source, str):
        return {source}
    return set().union(*(_roots(plan, one) for one in plan.calls[source].inputs))


@dataclass(frozen=True, kw_only=True)
class _Rows:
    table: pa.Table
    expected: Array  # score of each row

    def draws(self, batch_size: int) -> Array:
        shape = (min(max(_NUM_ROWS_SENT // batch_size, 1), _MAX_REQUESTS), batch_size)
        return np.random.default_rng(0).integers(0, len(self.expected), shape)

    def take(self, rows: Array) -> pa.Table:
        return self.table.take(pa.array(rows))


def _arrays(rows: pa.Table) -> dict[str, Array]:
    return {name: rows[name].to_numpy() for name in rows.column_names}


# --- The sides


def _triton_side(url: str, model: str, row_shape: tuple[int, ...] = (1,), scorer: Scorer | None = None) -> Side:
    """Return a side that is sent tensors over gRPC, encoded by the scorer if there is one."""

    def encode(rows: pa.Table) -> bytes:
        return infer_request(model, scorer.encode(rows.to_pydict()) if scorer else _arrays(rows), row_shape)

    return Side(connect=partial(connect, "http2", url), encode=encode, decode=first_output)


def _message(client: Client, rows: pa.Table) -> bytes:
    (request,) = client.prepare(rows).messages
    message: bytes = request.SerializeToString()
    return message


def _http_side(url: str, key: str, answer: str) -> Side:
    return Side(
        connect=partial(Http1Connection, url),
        encode=lambda rows: json.dumps({key: rows.to_pydict()}).encode(),
        decode=lambda body: np.asarray(json.loads(body)[answer], np.float32),
    )


def _side_of(peer: str, address: str) -> Side:
    server = MAINTAINED.get(peer, _NVTABULAR_SERVER)
    if not server.path:
        return _triton_side(address, "scorer")
    if peer == MLFLOW:
        return _http_side(f"{address}{server.path}", "inputs", "predictions")
    return _http_side(f"{address}{server.path}", "columns", "scores")


@contextmanager
def _served(peer: str, subject: _Subject, rows: _Rows, workers: int) -> Iterator[tuple[Side, str]]:
    """Serve a peer, and yield its side and its address."""
    directory = subject.directory
    if peer == PLAIN_TRITON:
        with EmbeddedServer(ServerConfig(repositories=(subject.two_steps.path,))) as triton:
            url = triton.endpoints.grpc
            yield _triton_side(url, subject.two_steps.steps[-1], (), subject.scorer), url
        return
    if peer == MERLIN:
        export_with_merlin(subject.prepared, subject.trained, directory / MERLIN)
        with EmbeddedServer(ServerConfig(repositories=(directory / MERLIN,))) as triton:
            yield _triton_side(triton.endpoints.grpc, MERLIN_MODEL, ()), triton.endpoints.grpc
        return
    if peer == MLFLOW:
        _save_with_mlflow(subject)
    if peer == NVTABULAR:
        with quiet_nvtabular():
            save_workflow(serving_workflow(subject.prepared), subject.files / WORKFLOW)
        (subject.files / SAVED_MODEL).symlink_to(subject.trained.saved_model)
    first = rows.take(np.zeros(1, int))
    server = MAINTAINED.get(peer, _NVTABULAR_SERVER)
    log = directory / f"{peer.replace(' ', '_')}.log"
    variables = {DIRECTORY: str(subject.files)}
    with running(
        peer, server, workers, log, variables, lambda address: _answers(_side_of(peer, address), first)
    ) as address:
        yield _side_of(peer, address), address


def _answers(side: Side, rows: pa.Table) -> bool:
    try:
        with closing(side.connect()) as connection:
            ask(connection, side.encode(rows))
    except (OSError, ServerError, ServingError):
        return False
    return True


def _save_with_mlflow(subject: _Subject) -> None:
    rows = subject.rows.slice(0, 2).to_pandas()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about type hints, and integers, which ids are
        import mlflow.pyfunc
        from mlflow.models import infer_signature

        mlflow.pyfunc.save_model(
            path=str(subject.directory / "model"),
            python_model=str(_PROJECT / "bench" / "peers" / "servers" / "mlflow_model.py"),
            artifacts={"scorer": str(subject.files)},
            signature=infer_signature(rows, np.zeros(len(rows), np.float32)),
            pip_requirements=[],  # it runs in this environment
        )


# --- Measuring


def _measure(
    sides: Mapping[str, Side], load: Load, rows: _Rows, generator: Workers, repeats: int, turn_s: float
) -> Turns:
    """Measure one load on all sides in turns.

    The first turn of each side warms up and compares all scores. Later turns compare a sample of the scores.
    """
    draws = rows.draws(load.batch_size)
    turns: Turns = {side: [] for side in sides}
    messages = {name: [side.encode(rows.take(drawn)) for drawn in draws] for name, side in sides.items()}
    for number in range(-1, repeats):
        for name, side in sides.items():
            run, outcome = keep_in_flight(
                name,
                generator,
                side.connect,
                messages[name],
                load,
                turn_s=turn_s,
                warmup_s=_WARMUP_SHARE * turn_s,
                sample_every=1 if number < 0 else _SAMPLE_EVERY,
            )
            if problem := bottleneck(run.client_cost, run.whole.latency.mean_ns / 1e6, num_processes=1):
                raise ServingError(f"{name}: {problem}")
            _compare(name, ((side.decode(body), rows.expected[draws[n]]) for _, n, body in outcome.samples))
            if number >= 0:
                rate = run.whole.num_answered / run.duration_s
                turns[name].append(Turn(latency=run.whole.latency, requests_per_s=rate))
    return turns


def _compare(side: str, scores: Iterable[tuple[Array, Array]]) -> None:
    for theirs, ours in scores:
        if theirs.shape != ours.shape or not np.allclose(theirs, ours, rtol=0, atol=_SCORE_TOLERANCE):
            raise ParityError(f"{OURS} and {side} score the same rows differently, so they cannot be compared.")


def _with_encoding(subject: _Subject, rows: _Rows, ours: str, theirs: str, repeats: int) -> dict[str, float]:
    """Measure one row with clients that build each request themselves. That of plain Triton also encodes the row."""
    taken = [rows.take(drawn) for drawn in rows.draws(1)[:_CLIENT_CALLS]]
    lists = [one.to_pydict() for one in taken]
    step, encode = subject.two_steps.steps[-1], subject.scorer.encode
    with closing(connect("http2", ours)) as first, closing(connect("http2", theirs)) as second:
        raw, encoded = cycle([_arrays(one) for one in taken]), cycle(lists)
        sides: dict[str, Callable[[], object]] = {
            OURS: lambda: ask(first, infer_request(subject.ensemble.name, next(raw), (1,))),
            PLAIN_TRITON: lambda: ask(second, infer_request(step, encode(next(encoded)), ())),
        }
        turns = take_turns({name: partial(p50_ms, call, _CLIENT_CALLS) for name, call in sides.items()}, repeats)
    return {"p50_vs_plain_triton": median_ratio(turns, PLAIN_TRITON, OURS)}


def _in_process(subject: _Subject, rows: _Rows, loads: Sequence[Load], repeats: int) -> dict[str, dict[str, float]]:
    """Measure the scorer, called in this process without a server."""
    scorers = {IN_PROCESS: subject.scorer, f"{IN_PROCESS}, all cores": Scorer(subject.files, cpu_count() or 1)}
    results: dict[str, dict[str, float]] = {name: {} for name in scorers}
    for size in (load.batch_size for load in loads if load.concurrency == 1):
        requests = [rows.take(drawn).to_pydict() for drawn in rows.draws(size)]
        calls = {name: partial(_score_next, scorer, cycle(requests)) for name, scorer in scorers.items()}
        num_calls = max(_CLIENT_CALLS // size, 20)
        turns = take_turns({name: partial(p50_ms, call, num_calls) for name, call in calls.items()}, repeats)
        for name, of_side in turns.items():
            results[name] |= {f"p50_ms@{size}": statistics.median(of_side)}
            results[name] |= {f"rows_per_s@{size}": 1e3 * size / statistics.median(of_side)}
    return results


def _run_over_in_process(
    subject: _Subject, rows: _Rows, url: str, encode: Callable[[pa.Table], bytes], in_process_ms: float
) -> float:
    """Return the backend's mean time for the plan and the model of one row, over that of the scorer."""
    messages = [encode(rows.take(drawn)) for drawn in rows.draws(1)[:_CLIENT_CALLS]]
    with closing(connect("http2", url)) as connection, closing(Statistics(url, subject.ensemble.name)) as statistics_of:
        for message in messages:
            ask(connection, message)
        before = statistics_of.read()
        for message in messages:
            ask(connection, message)
        after = statistics_of.read()
    (step,) = subject.ensemble.steps
    return (after[step]["compute_infer"] - before[step]["compute_infer"]) / len(messages) / 1e6 / in_process_ms


def _score_next(scorer: Scorer, requests: Iterator[dict[str, list[Any]]]) -> None:
    scorer.score(next(requests))


# --- Results


def _results(pairs: Pairs) -> dict[str, dict[str, float]]:
    results: dict[str, dict[str, float]] = {OURS: {}, **{peer: {} for peer in pairs}}
    loads = list(dict.fromkeys(load for of_peer in pairs.values() for load in of_peer))
    for load in loads:
        of_ours = [turn for of_peer in pairs.values() for turn in of_peer[load][OURS]]
        for side, turns in ((OURS, of_ours), *((peer, of_peer[load][peer]) for peer, of_peer in pairs.items())):
            figures, name = results[side], _name(load)
            figures[f"p50_ms@{name}"] = statistics.median(turn.p50_ms for turn in turns)
            p99 = percentile([turn.latency for turn in turns], 0.99)
            if p99.value is not None:  # else too few samples
                figures[f"p99_ms@{name}"] = p99.value / 1e6
            figures[f"rows_per_s@{name}"] = load.batch_size * statistics.median(t.requests_per_s for t in turns)
    return results


def _name(load: Load) -> str:
    return str(load.batch_size) if load.concurrency == 1 else f"{load.batch_size}x{load.concurrency}"


def _ratios(pairs: Pairs) -> dict[str, float]:
    """Return the ratio of Rankline to each peer, and to the best maintained one; above 1, Rankline is better."""
    ratios = {}
    for measure, loads in _MEASURES.items():
        found = {
            peer: min(_vs(peer, load, of_peer[load]) for load in measured)
            for peer, of_peer in pairs.items()
            if (measured := [load for load in loads if load in of_peer])
        }
        if best := [value for peer, value in found.items() if peer in MAINTAINED]:
            ratios[f"{measure}_vs_best_peer"] = min(best)
        for peer, value in found.items():
            name = {FASTAPI: "fastapi_onnx", MERLIN: "merlin", PLAIN_TRITON: "plain_triton_server"}.get(peer, peer)
            ratios[f"{measure}_vs_{name.replace(' ', '_').replace('.', '_')}"] = value
    return ratios


def _vs(peer: str, load: Load, turns: Turns) -> float:
    if load in _MEASURES["p50"]:
        return median_ratio({side: [turn.p50_ms for turn in of_side] for side, of_side in turns.items()}, peer, OURS)
    return median_ratio(
        {side: [turn.requests_per_s for turn in of_side] for side, of_side in turns.items()}, OURS, peer
    )
