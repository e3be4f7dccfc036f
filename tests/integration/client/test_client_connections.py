"""What the client makes of rows, whatever carries them, and of servers that are late, busy, gone or locked."""

import asyncio
import json
import os
import pickle
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2, service_pb2_grpc

import rankline.serving.client.grpc as client_over_grpc
from rankline.serving.client import AsyncClient, Client, ClientConfig, ClientTls
from rankline.serving.server.embedded import EmbeddedServer, ServerConfig
from rankline.serving.triton.config import EnsembleConfig, ModelConfig, Step, to_pbtxt
from rankline.workflows.core.errors import DeadlineError, ServerBusyError, ServerError
from rankline.workflows.schema.tensors import Tensor
from tests.factories.training.models import MAX_BATCH_SIZE, write_model
from tests.harness.network.blackhole import vanishing
from tests.harness.network.certificates import make_certificates
from tests.harness.network.tls_proxy import tls_in_front_of
from tests.harness.process.waiting import wait_until

BACKENDS = Path(__file__).parent / "backends"
PROJECT = Path(__file__).parents[3]
QUEUE_TIMEOUT_S = 0.05
TYPES = {"n": pa.int64(), "flag": pa.bool_(), "word": pa.string(), "price": pa.float32()}
SCHEMA = pa.schema({**TYPES, "tags": pa.list_(pa.int64()), "words": pa.list_(pa.string())})
TEXT = st.text(max_size=4)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "n": st.none() | st.integers(-(2**63), 2**63 - 1),
            "flag": st.none() | st.booleans(),
            "word": st.none() | TEXT,
            "price": st.none() | st.floats(width=32, allow_nan=False),
            "tags": st.none() | st.lists(st.integers(1, 9), max_size=5),
            "words": st.none() | st.lists(TEXT, max_size=3),
        }
    ),
    min_size=1,
    max_size=6,
)


def mirror_config() -> ModelConfig:
    def column(name: str, dtype: str) -> tuple[Tensor, ...]:
        mask = Tensor(name=f"{name}__valid", dtype="bool", optional=True)
        return (Tensor(name=name, dtype=dtype), *([] if dtype == "float32" else [mask]))

    def lists(name: str, dtype: str) -> tuple[Tensor, ...]:
        return Tensor(name=f"{name}__values", dtype=dtype, dims=(-1,)), Tensor(name=f"{name}__nnzs", dtype="int32")

    singles = {"n": "int64", "flag": "bool", "word": "object", "price": "float32"}
    return ModelConfig(
        name="mirror",
        backend="mirror",
        inputs=(
            *(tensor for name, dtype in singles.items() for tensor in column(name, dtype)),
            *lists("tags", "int64"),
            *lists("words", "object"),
        ),
        outputs=(Tensor(name="seen", dtype="object"),),
        max_batch_size=MAX_BATCH_SIZE,
    )


def wait_config(name: str, **limits: int) -> ModelConfig:
    """A model that runs one request at a time."""
    x, y = (Tensor(name=name, dtype="int64") for name in "xy")
    return ModelConfig(name=name, backend="wait", inputs=(x,), outputs=(y,), max_batch_size=1, **limits)


def write_ensemble(repository: Path, name: str, step: ModelConfig) -> None:
    config = EnsembleConfig(
        name=name,
        version=1,
        inputs=step.inputs,
        outputs=step.outputs,
        max_batch_size=step.max_batch_size,
        steps=(Step(model=step.name, inputs={"x": "x"}, outputs={"y": "y"}),),
    )
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(to_pbtxt(config), encoding="utf-8")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("repository")
    write_model(directory, mirror_config())
    write_model(directory, wait_config("echo"))
    for config in (
        wait_config("wait", max_queue_size=2),
        wait_config("late", queue_timeout_us=round(1e6 * QUEUE_TIMEOUT_S)),
    ):
        write_model(directory, config)
        write_ensemble(directory, f"{config.name}_ensemble", config)
    return directory


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(ServerConfig(repositories=(repository,), backends=(BACKENDS,), http_port=0)) as running:
        yield running


class AsyncMirror:
    """`AsyncClient` with the face of `Client`."""

    def __init__(self, url: str, config: ClientConfig) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = AsyncClient(url, "mirror", config)
        self._loop.run_until_complete(self._client.__aenter__())

    def predict(self, columns: Any) -> Any:
        return self._loop.run_until_complete(self._client.predict(columns))

    def close(self) -> None:
        self._loop.run_until_complete(self._client.close())
        self._loop.close()


@pytest.fixture(scope="module", params=["grpc", "http", "grpc aio", "http aio"])
def mirror(request: pytest.FixtureRequest, server: EmbeddedServer) -> Iterator[Any]:
    """A client of `mirror` over each of the transports."""
    transport, is_aio = request.param.removesuffix(" aio"), request.param.endswith(" aio")
    config = ClientConfig(transport=transport)
    url = server.endpoints.http if transport == "http" else server.endpoints.grpc
    client = AsyncMirror(url, config) if is_aio else Client(url, "mirror", config)
    yield client
    client.close()


def seen_by(client: Any, columns: Any) -> list[dict[str, Any]]:
    """The rows as the model got them, put together again."""
    answers = [json.loads(answer) for answer in client.predict(columns)]
    return [_row(answer) for answer in answers]


def _row(answer: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name in TYPES:
        (value,), (valid,) = answer[name], answer.get(f"{name}__valid", [True])
        row[name] = value if valid and value == value else None
    for name in ("tags", "words"):
        (length,), values = answer[f"{name}__nnzs"], answer[f"{name}__values"]
        row[name] = None if length < 0 else values[:length]
        assert not any(values[max(length, 0) :])
    return row


@given(ROWS)
def test_model_gets_the_rows_that_were_given(mirror: Any, rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows, SCHEMA)
    frame = pd.DataFrame({name: pd.Series([row[name] for row in rows], dtype=object) for name in SCHEMA.names})
    for columns in (table, frame, table.to_pydict()):
        assert seen_by(mirror, columns) == rows


def test_rows_beyond_the_batch_size_come_back_in_order(mirror: Any) -> None:
    num_rows = 3 * MAX_BATCH_SIZE + 1
    rows = pa.table(
        {
            "n": pa.array([None if i % 7 == 0 else i for i in range(num_rows)], pa.int64()),
            "flag": [i % 2 == 0 for i in range(num_rows)],
            "word": [f"word {i}" for i in range(num_rows)],
            "price": np.arange(num_rows, dtype=np.float32),
            "tags": [list(range(1, i % 9)) for i in range(num_rows)],
            "words": [["é"] * (i % 3) for i in range(num_rows)],
        }
    )
    assert seen_by(mirror, rows) == rows.to_pylist()
    assert len(mirror.predict(rows.slice(0, 0))) == 0


def test_client_is_shared_by_threads(server: EmbeddedServer) -> None:
    def ask(i: int) -> Any:
        return client.predict({"x": [i]}).tolist()

    for url in (server.endpoints.grpc, server.endpoints.http):
        with Client(url, "echo") as client, ThreadPoolExecutor(8) as pool:
            assert list(pool.map(ask, range(24))) == [[i] for i in range(24)]


def metric(server: EmbeddedServer, name: str, model: str) -> float:
    """One figure of Triton's metrics."""
    with urllib.request.urlopen(server.endpoints.metrics) as answer:
        lines = answer.read().decode().splitlines()
    (line,) = (line for line in lines if line.startswith(name) and f'model="{model}"' in line)
    return float(line.rpartition(" ")[2])


def executions(server: EmbeddedServer, model: str) -> int:
    with grpc.insecure_channel(server.endpoints.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        (stats,) = stub.ModelStatistics(service_pb2.ModelStatisticsRequest(name=model)).model_stats
        return int(stats.execution_count)


def has_executed(server: EmbeddedServer, count: int) -> bool:
    return executions(server, "wait") >= count


HELD = {"x": [-1]}
"""A request that `Gate` holds."""


class Gate:
    """Holds a model of the backend `wait` from the block's begin to its end, or until it is opened."""

    def __init__(self, server: EmbeddedServer, repository: Path, model: str) -> None:
        self._server, self._model = server, model
        self._hold, self._held = repository / model / "hold", repository / model / "held"

    def __enter__(self) -> "Gate":
        self._held.unlink(missing_ok=True)
        self._hold.touch()
        return self

    def __exit__(self, *_: object) -> None:
        self.open()

    def open(self) -> None:
        self._hold.unlink(missing_ok=True)

    def wait_for(self, count: int) -> None:
        """Wait until it holds one request, and all others of `count` are in the queue."""
        wait_until(self._held.exists)
        wait_until(lambda: self.num_waiting >= count - 1)

    @property
    def num_waiting(self) -> float:
        return metric(self._server, "nv_inference_pending_request_count", self._model)


@contextmanager
def full_queue(server: EmbeddedServer, repository: Path) -> Iterator[Gate]:
    """`wait` is at work and as many requests wait for it as may."""
    with (
        Client(server.endpoints.grpc, "wait") as client,
        ThreadPoolExecutor(3) as pool,
        Gate(server, repository, "wait") as gate,
    ):
        answers: list[Future[Any]] = []
        for count in (1, 2, 3):
            answers.append(pool.submit(client.predict, HELD))
            gate.wait_for(count)
        yield gate
        gate.open()
        assert [answer.result().tolist() for answer in answers] == [HELD["x"]] * 3


@pytest.mark.parametrize(("model", "transport"), [("wait", "http"), ("wait_ensemble", "grpc")])
def test_full_queue_raises_server_busy(server: EmbeddedServer, repository: Path, model: str, transport: str) -> None:
    url = server.endpoints.http if transport == "http" else server.endpoints.grpc
    with (
        Client(url, model, ClientConfig(transport=transport)) as client,
        full_queue(server, repository),
        pytest.raises(ServerBusyError, match=f"the queue of model '{model}' is full .*Send fewer requests at a time"),
    ):
        client.predict({"x": [1]})


def test_waiting_longer_than_the_queue_allows_raises_server_busy(server: EmbeddedServer, repository: Path) -> None:
    model = "late_ensemble"

    def ask_until_held() -> Any:
        while True:
            with suppress(ServerBusyError):  # on a busy machine, it may wait too long before an idle model
                return client.predict(HELD)

    with Client(server.endpoints.grpc, model) as client, ThreadPoolExecutor(3) as pool:
        with Gate(server, repository, "late") as gate:
            held = pool.submit(ask_until_held)
            gate.wait_for(1)
            late = [pool.submit(client.predict, HELD) for _ in range(2)]
            wait_until(lambda: gate.num_waiting + sum(answer.done() for answer in late) >= 2)
            time.sleep(2 * QUEUE_TIMEOUT_S)
        assert held.result().tolist() == HELD["x"]
        errors = [error for answer in late if (error := answer.exception()) is not None]
        assert len(errors) == 2
        for error in errors:
            with pytest.raises(ServerBusyError, match=f"exceeded the queue timeout of model '{model}'"):
                raise error


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_late_answer_raises_deadline_error_without_a_retry(
    server: EmbeddedServer, repository: Path, transport: str
) -> None:
    url = server.endpoints.http if transport == "http" else server.endpoints.grpc
    before, begin = executions(server, "wait"), time.monotonic()
    with (
        Client(url, "wait", ClientConfig(timeout_s=1.0, connect_timeout_s=60.0, transport=transport)) as client,
        Gate(server, repository, "wait"),
        pytest.raises(DeadlineError, match=r"did not respond within 1 s"),
    ):
        client.predict(HELD)
    assert time.monotonic() - begin >= 1.0
    with Client(server.endpoints.grpc, "wait") as client:
        client.predict({"x": [0]})  # after what was begun
    wait_until(partial(has_executed, server, before + 1))
    assert executions(server, "wait") <= before + 2


def test_server_killed_and_restarted_costs_no_request(repository: Path) -> None:
    """Neither one that it had begun, nor one that waited, nor one that is sent while it is away."""
    config = ServerConfig(repositories=(repository,), backends=(BACKENDS,), http_port=0)
    with EmbeddedServer(config) as server, ExitStack() as stack, ThreadPoolExecutor(4) as pool:
        over_http = ClientConfig(transport="http")
        clients = [
            stack.enter_context(Client(server.endpoints.grpc, "wait")),
            stack.enter_context(Client(server.endpoints.http, "wait", over_http)),
        ]

        async def ask(url: str, config: ClientConfig) -> Any:
            async with AsyncClient(url, "echo", config) as client:
                os.kill(server.pid, signal.SIGKILL)
                return await client.predict({"x": [1]})

        with Gate(server, repository, "wait") as gate:
            answers = [pool.submit(client.predict, HELD) for client in clients]
            gate.wait_for(len(clients))
            in_time = pool.submit(asyncio.run, ask(server.endpoints.http, over_http))
            wait_until(lambda: server.exit_reason() is not None)
        server.restart(server.config.models)
        assert [answer.result().tolist() for answer in answers] == [HELD["x"]] * len(clients)
        assert in_time.result().tolist() == [1]


def test_vanished_machine_costs_no_request(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_over_grpc, "_SILENCE", 1 / 600)
    config = ClientConfig(timeout_s=600.0)
    with vanishing(server.endpoints.grpc) as (url, vanish), Client(url, "echo", config) as client:
        assert client.predict({"x": [1]}).tolist() == [1]
        vanish()
        assert client.predict({"x": [2]}).tolist() == [2]


def test_several_servers_take_turns_and_a_lost_one_costs_no_request(server: EmbeddedServer, repository: Path) -> None:
    config = ServerConfig(repositories=(repository,), backends=(BACKENDS,))
    with (
        EmbeddedServer(config) as other,
        Client(f"ipv4:{server.endpoints.grpc},{other.endpoints.grpc}", "echo") as client,
    ):
        earlier = executions(server, "echo")

        def has_asked_both() -> bool:
            assert client.predict({"x": [1]}).tolist() == [1]
            return executions(server, "echo") > earlier and executions(other, "echo") > 0

        wait_until(has_asked_both)
        os.kill(other.pid, signal.SIGKILL)
        assert [client.predict({"x": [number]}).tolist() for number in range(20)] == [[number] for number in range(20)]


def test_stopped_server_and_closed_client_are_named(repository: Path) -> None:
    with EmbeddedServer(ServerConfig(repositories=(repository,), backends=(BACKENDS,), http_port=0)) as server:
        over_grpc = Client(server.endpoints.grpc, "wait", ClientConfig(retry_lost=False))
        over_http = Client(server.endpoints.http, "wait", ClientConfig(transport="http", retry_lost=False))
        for client in (over_grpc, over_http):
            assert client.predict({"x": [1]}).tolist() == [1]
    for client in (over_grpc, over_http):
        with pytest.raises(ServerError, match="no Triton server answers"):
            client.predict({"x": [1]})
        client.close()
    with pytest.raises(ServerError, match="the client of .* is closed"):
        over_grpc.predict({"x": [1]})


def test_cancelled_task_cancels_its_request(server: EmbeddedServer, repository: Path) -> None:
    async def scenario() -> None:
        with Gate(server, repository, "wait") as gate:
            async with AsyncClient(server.endpoints.grpc, "wait") as client:
                tasks = []
                for count in (1, 2, 3):
                    tasks.append(asyncio.create_task(client.predict(HELD)))
                    await asyncio.to_thread(gate.wait_for, count)
                tasks[1].cancel()
                await asyncio.wait([tasks[1]])
                gate.open()
                await asyncio.wait(tasks)
                assert [task.cancelled() for task in tasks] == [False, True, False]

    def is_left_out() -> bool:
        before = executions(server, "wait")
        asyncio.run(scenario())
        with Client(server.endpoints.grpc, "wait") as client:
            client.predict({"x": [0]})  # after what was begun
        wait_until(partial(has_executed, server, before + 3))
        return executions(server, "wait") == before + 3

    assert any(is_left_out() for _ in range(5))  # a busy server may hear of it too late


FORKS = """
import os, sys, threading
from rankline.serving.client import Client, ClientConfig
import rankline.serving.client.grpc as over_grpc

def in_child(act):
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        try:
            print(act())
        except Exception as error:
            print(error)
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(pid, 0)

for url in sys.argv[1:3]:
    client = Client(url, "echo")
    client.predict({"x": [0]})
    in_child(lambda: client.predict({"x": [1]}))
    in_child(lambda: Client(url.replace("127.0.0.1", "localhost"), "echo").predict({"x": [2]}))
    print(client.predict({"x": [3]}))
waiting = Client(sys.argv[1], "wait")
threading.Thread(target=waiting.predict, args=[{"x": [-1]}], daemon=True).start()
while not over_grpc._waiting:
    pass
in_child(lambda: waiting.predict({"x": [4]}))
in_child(lambda: Client(sys.argv[1], "echo"))
in_child(lambda: client.predict({"x": [5]}))
sys.stdout.flush()
os._exit(0)
"""


def test_forked_process_connects_anew_or_is_refused(server: EmbeddedServer, repository: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKS, server.endpoints.grpc, str(server.endpoints.http)]
    with Gate(server, repository, "wait"):
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    answered, refused = done.stdout.splitlines()[:6], done.stdout.splitlines()[6:8]
    assert answered == ["[1]", "[2]", "[3]"] * 2
    assert ["was forked while its parent was waiting for a response" in line for line in refused] == [True] * 2
    assert done.stdout.endswith("[5]\n")  # over HTTP


def test_client_survives_pickling(server: EmbeddedServer) -> None:
    with Client(server.endpoints.grpc, "echo", timeout_s=12.5) as client:
        copy = pickle.loads(pickle.dumps(client))
    with copy:
        assert copy.predict({"x": [3]}).tolist() == [3]
        assert copy._config == ClientConfig(timeout_s=12.5)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def test_tls_authenticates_both_sides(server: EmbeddedServer, certificates: Path) -> None:
    root, other = certificates / "root.pem", certificates / "other.pem"
    own = {"certificate": certificates / "client.pem", "key": certificates / "client.key"}
    with tls_in_front_of(server.endpoints.grpc, certificates, client_root=root) as url:
        with Client(url, "wait", ClientConfig(tls=ClientTls(root=root, **own))) as client:
            assert client.predict({"x": [1]}).tolist() == [1]

        async def scenario() -> Any:
            async with AsyncClient(url, "wait", ClientConfig(tls=ClientTls(root=root, **own))) as client:
                return await client.predict({"x": [2]})

        assert asyncio.run(scenario()).tolist() == [2]
        for wrong in (None, ClientTls(root=other, **own), ClientTls(root=root)):
            with pytest.raises(ServerError, match="no Triton server answers"):
                Client(url, "wait", ClientConfig(tls=wrong, timeout_s=10))


def test_proxy_is_not_asked_for_addresses_on_this_machine(server: EmbeddedServer) -> None:
    code = (
        "import sys; from rankline.serving.client import Client\n"
        "with Client(sys.argv[1], 'echo') as client: print(*client.predict({'x': [7]}))"
    )
    nobody = "http://127.0.0.1:9"
    environment = {**os.environ, "http_proxy": nobody, "grpc_proxy": nobody, "no_proxy": "", "no_grpc_proxy": ""}
    for host in ("127.0.0.1", "localhost"):
        url = f"{host}:{server.endpoints.grpc.rpartition(':')[2]}"
        command = [sys.executable, "-c", code, url]
        result = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
        assert (result.stdout, result.returncode) == ("7\n", 0), result.stderr
