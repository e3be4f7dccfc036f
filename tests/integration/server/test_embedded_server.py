"""Starting, failing and stopping of real servers."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Event

import psutil
import pytest

from rankline.serving.client import Client
from rankline.serving.loadtest.identity import BACKENDS
from rankline.serving.server import embedded as server_module
from rankline.serving.server.embedded import EmbeddedServer, ServerConfig
from rankline.serving.server.ports import choose_ports, free_port
from rankline.workflows.core.errors import ServerError
from rankline.workflows.core.progress import background_thread
from tests.factories.training.models import identity_config, write_model
from tests.harness.process.waiting import wait_until

PROJECT = Path(__file__).parents[3]


@pytest.fixture
def identity(tmp_path: Path) -> ServerConfig:
    repository = tmp_path / "repository"
    write_model(repository, identity_config())
    return ServerConfig(repositories=(repository,), backends=(BACKENDS,))


def write_backend(directory: Path, *body: str) -> Path:
    """A directory of backends with an `identity` of these methods, and what it may import."""
    folder = directory / "backends" / "identity"
    folder.mkdir(parents=True)
    lines = [
        "import os, pathlib, signal, subprocess, time",
        "class TritonPythonModel:",
        *(f"    {line}" for line in body),
    ]
    (folder / "model.py").write_text("\n".join(lines) + "\n")
    return folder.parent


def alive(process_ids: tuple[int, ...]) -> list[int]:
    return [pid for pid in process_ids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]


def pid_of(server: EmbeddedServer) -> int:
    """0 while it is not launched."""
    try:
        return server.pid
    except ServerError:
        return 0


def leftovers() -> set[Path]:
    """Shared memory and temporary directories of this process's servers."""
    name = f"rankline-server-{os.getpid()}-*"
    return {*Path("/dev/shm").glob(name), *Path(tempfile.gettempdir()).glob(name)}


def test_stop_leaves_nothing_behind(identity: ServerConfig, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "server.log"
    before = leftovers()
    with EmbeddedServer(replace(identity, log_path=log)) as server:
        process_ids = server.process_ids()
        assert len(process_ids) == 2  # the server and the one model instance
        assert server.pid == process_ids[0]
        assert leftovers() > before
        with Client(server.endpoints.grpc, "identity") as client:
            assert client.predict({"x": [7]}).tolist() == [7]
    assert alive(process_ids) == []
    assert leftovers() == before
    assert "successfully unloaded 'identity'" in log.read_text()  # not killed
    assert server.process_ids() == ()
    with pytest.raises(ServerError, match="not running"):
        _ = server.endpoints


def test_stop_cleans_up_after_a_killed_server(identity: ServerConfig) -> None:
    before = leftovers()
    server = EmbeddedServer(identity)
    server.start()
    process_ids = server.process_ids()
    assert server.exit_reason() is None
    os.kill(server.pid, signal.SIGKILL)  # the server dies and leaves its model process and shared memory
    wait_until(lambda: "tritonserver was killed by SIGKILL" in (server.exit_reason() or ""))
    assert leftovers() == before
    server.stop()
    assert alive(process_ids) == []
    assert leftovers() == before
    server.stop()  # twice is once


def test_stop_answers_requests_and_lets_models_finish(tmp_path: Path) -> None:
    asked, go, finished = (tmp_path / name for name in ("asked", "go", "finished"))
    backends = write_backend(
        tmp_path,
        "def execute(self, requests):",
        "    import triton_python_backend_utils as pb_utils",
        f"    pathlib.Path({str(asked)!r}).touch()",
        f"    while not pathlib.Path({str(go)!r}).exists():",
        "        time.sleep(0.02)",
        "    x = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()",
        "    return [pb_utils.InferenceResponse([pb_utils.Tensor('y', x)])]",
        "def finalize(self):",
        "    time.sleep(0.5)",
        f"    pathlib.Path({str(finished)!r}).touch()",
    )
    write_model(tmp_path / "repository", identity_config())
    log = tmp_path / "log.txt"
    config = ServerConfig(repositories=(tmp_path / "repository",), backends=(backends,), log_path=log)
    with (
        ThreadPoolExecutor() as pool,
        EmbeddedServer(config) as server,
        Client(server.endpoints.grpc, "identity") as client,
    ):
        answer = pool.submit(client.predict, {"x": [7]})
        wait_until(asked.exists)
        stopped = pool.submit(server.stop)
        wait_until(lambda: "Waiting for in-flight requests" in log.read_text())
        go.touch()
        assert answer.result().tolist() == [7]
        stopped.result()
    assert finished.exists()


PARENT = """
import sys, time
from pathlib import Path
from rankline.serving.server.embedded import *
paths = [Path(path) for path in sys.argv[1:]]
print("starts", flush=True)
with EmbeddedServer(ServerConfig(repositories=(paths[0],), backends=(paths[1],))) as server:
    print(*server.process_ids(), flush=True)
    time.sleep(600)
"""


def start_parent(repository: Path, backends: Path, home: Path) -> "subprocess.Popen[str]":
    """A process that runs a server, with temporary files below `home`."""
    command = [sys.executable, "-c", PARENT, str(repository), str(backends)]
    environment = {**os.environ, "TMPDIR": str(home)}
    return subprocess.Popen(command, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, text=True)


def remains(home: Path, parent_pid: int) -> list[object]:
    """Processes, shared memory and temporary files of servers that `start_parent` started."""
    processes = [process.pid for process in psutil.process_iter(["cmdline"]) if str(home) in str(process.info)]
    return [*processes, *Path("/dev/shm").glob(f"rankline-server-{parent_pid}-*"), *home.glob("rankline-server-*")]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_server_dies_with_its_parent(identity: ServerConfig, how: signal.Signals, tmp_path: Path) -> None:
    with start_parent(identity.repositories[0], BACKENDS, tmp_path) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "starts\n"
        process_ids = tuple(map(int, parent.stdout.readline().split()))
        assert len(alive(process_ids)) == 2
        assert len(remains(tmp_path, parent.pid)) > 3
        parent.send_signal(how)
    wait_until(lambda: remains(tmp_path, parent.pid) == [])
    assert alive(process_ids) == []


def test_server_leaves_nothing_when_its_parent_is_killed_during_loading(identity: ServerConfig, tmp_path: Path) -> None:
    backends = write_backend(  # never done with loading, and deaf to anything but SIGKILL
        tmp_path,
        "def initialize(self, args):",
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "    time.sleep(600)",
    )
    parents = {}
    everything = 5  # launcher, server, model process, shared memory, home
    for delay_s in (0, 0.1, 0.4, None):
        home = tmp_path / str(delay_s)
        home.mkdir()
        with start_parent(identity.repositories[0], backends, home) as parent:
            assert parent.stdout is not None
            assert parent.stdout.readline() == "starts\n"
            if delay_s is None:
                wait_until(lambda: len(remains(home, parent.pid)) >= everything)  # noqa: B023  (used at once)
            else:
                time.sleep(delay_s)  # what is tested are moments
            parent.kill()
        parents[home] = parent.pid
    wait_until(lambda: [remains(home, pid) for home, pid in parents.items() if remains(home, pid)] == [])


def test_processes_started_by_a_model_end_with_the_server(identity: ServerConfig, tmp_path: Path) -> None:
    marker = f"import time; time.sleep(600)  # {tmp_path}"
    backends = write_backend(
        tmp_path,
        "def initialize(self, args):",
        f"    subprocess.Popen(['{sys.executable}', '-c', '{marker}'], start_new_session=True)",
    )

    def daemons() -> list[int]:
        return [
            process.pid for process in psutil.process_iter(["cmdline"]) if marker in (process.info["cmdline"] or ())
        ]

    with EmbeddedServer(replace(identity, backends=(backends,))):
        assert len(daemons()) == 1
    assert daemons() == []


def test_modules_in_the_working_directory_are_not_imported(
    identity: ServerConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    (here / "workflows").mkdir(parents=True)
    for name in ("enum.py", "numpy.py", "workflows/__init__.py", "triton_python_backend_utils.py"):
        (here / name).write_text(f"raise ImportError('took {name} of the working directory')")
    monkeypatch.chdir(here)
    config = ServerConfig(repositories=identity.repositories, backends=(BACKENDS,), log_path=Path("log.txt"))
    with EmbeddedServer(config) as server, Client(server.endpoints.grpc, "identity") as client:
        assert client.predict({"x": [7]}).tolist() == [7]
    assert "successfully unloaded 'identity'" in (here / "log.txt").read_text()


class AlwaysReady(BaseHTTPRequestHandler):
    """Says that it is a Triton that is ready."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"name": "triton"}')

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The second port of the first start, which another server takes as soon as it was found free."""
    ports: list[int] = []
    with ThreadPoolExecutor() as pool, ExitStack() as at_end:

        def choose_and_lose(**wanted: int) -> dict[str, int]:
            chosen = choose_ports(**wanted)
            if not ports:
                ports.append(list(chosen.values())[1])
                other = at_end.enter_context(HTTPServer(("127.0.0.1", ports[0]), AlwaysReady))
                pool.submit(other.serve_forever, poll_interval=0.05)
                at_end.callback(other.shutdown)
            return chosen

        monkeypatch.setattr(server_module, "choose_ports", choose_and_lose)
        yield ports


def test_given_port_taken_during_the_start_is_reported(identity: ServerConfig, taken: list[int]) -> None:
    http_port = free_port()
    server = EmbeddedServer(replace(identity, http_port=http_port))
    with pytest.raises(ServerError, match=rf"exited while starting.*{http_port}.*in use"):
        server.start()
    assert server.process_ids() == ()
    assert taken == [http_port]


def test_chosen_port_taken_during_the_start_is_replaced(
    identity: ServerConfig, taken: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    with EmbeddedServer(identity) as server, Client(server.endpoints.grpc, "identity") as client:
        assert client.predict({"x": [7]}).tolist() == [7]
        assert f":{taken[0]}/" not in server.endpoints.metrics
    assert f":{taken[0]}' already in use" in caplog.text


def test_refused_model_is_named(identity: ServerConfig) -> None:
    server = EmbeddedServer(ServerConfig(repositories=identity.repositories))  # without the identity backend
    with pytest.raises(ServerError, match=r"exited while starting\. Model 'identity': .*backend") as failure:
        server.start()
    assert len(str(failure.value).splitlines()) == 1
    assert server.process_ids() == ()


@pytest.mark.parametrize("num_crashes", [1, 3])
def test_server_that_crashes_during_the_start_is_restarted_twice(
    identity: ServerConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture, num_crashes: int
) -> None:
    may_load = tmp_path / "may_load"
    backends = write_backend(
        tmp_path,
        "def initialize(self, args):",
        f"    while not os.path.exists({str(may_load)!r}):",
        "        time.sleep(0.02)",
    )
    server = EmbeddedServer(replace(identity, backends=(backends,)))
    before, crashed = leftovers(), {0}
    with ThreadPoolExecutor(1) as background:
        started = background.submit(server.start)
        for _ in range(num_crashes):
            wait_until(lambda: pid_of(server) not in crashed)
            os.kill(pid := server.pid, signal.SIGABRT)
            crashed.add(pid)
        may_load.touch()
        if num_crashes > 2:
            with pytest.raises(ServerError, match=r"crashed while starting \(SIGABRT\)"):
                started.result()
        else:
            started.result()
            assert server.pid not in crashed
            server.stop()
    assert caplog.text.count("Restarting it") == min(num_crashes, 2)
    assert leftovers() == before


@pytest.mark.slow
def test_model_whose_process_crashes_during_loading_is_reloaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    has_crashed = tmp_path / "has_crashed"
    backends = write_backend(
        tmp_path,
        "def initialize(self, args):",
        f"    has_crashed = pathlib.Path({str(has_crashed)!r})",
        "    if not has_crashed.exists():",
        "        has_crashed.touch()",
        "        os.kill(os.getpid(), signal.SIGKILL)",
    )
    write_model(tmp_path / "repository", identity_config())
    before = leftovers()
    config = ServerConfig(repositories=(tmp_path / "repository",), backends=(backends,), models=("identity",))
    with EmbeddedServer(config) as server:
        assert "Restarting it." in caplog.text
        server.unload("identity")
        has_crashed.unlink()
        server.load("identity")
        assert "Reloading it." in caplog.text
        assert server.dead_models() == set()
        assert len(server.process_ids()) == 2
    assert caplog.text.count("Stub process 'identity_0_0' is not healthy") == 2
    assert leftovers() == before


def test_server_that_hangs_during_the_start_is_restarted(
    identity: ServerConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "_IDLE_S", 1.0)
    go_on = tmp_path / "go-on"
    backends = write_backend(
        tmp_path,
        "def initialize(self, args):",
        f"    while not pathlib.Path({str(go_on)!r}).exists():",
        "        time.sleep(0.1)",
    )

    def num_hung() -> int:
        return caplog.text.count("hung while starting")

    def let_the_third_start_go_on(stop: Event) -> None:
        wait_until(lambda: num_hung() == 2 or stop.is_set())
        go_on.touch()

    with (
        background_thread(let_the_third_start_go_on),
        EmbeddedServer(replace(identity, backends=(backends,))) as server,
    ):
        assert server.endpoints.grpc
    assert num_hung() == 2


def test_server_that_is_not_ready_in_time_is_stopped(identity: ServerConfig) -> None:
    before = set(psutil.Process().children(recursive=True))
    config = ServerConfig(repositories=identity.repositories, backends=(BACKENDS,), ready_timeout_s=0.05)
    with pytest.raises(ServerError, match=r"not ready within 0\.05 s"):
        EmbeddedServer(config).start()
    assert set(psutil.Process().children(recursive=True)) <= before


def test_paths_may_have_blanks_and_quotes(tmp_path: Path) -> None:
    repository = tmp_path / "my 'best' models; é"
    write_model(repository, identity_config())
    config = ServerConfig(repositories=(repository,), backends=(BACKENDS,))
    with EmbeddedServer(config) as server, Client(server.endpoints.grpc, "identity") as client:
        assert client.predict({"x": [7]}).tolist() == [7]


def test_missing_repository_and_backends_are_named(tmp_path: Path, identity: ServerConfig) -> None:
    with pytest.raises(ServerError, match="nowhere does not exist"):
        EmbeddedServer(ServerConfig(repositories=(tmp_path / "nowhere",))).start()
    with pytest.raises(ServerError, match="nobackends does not exist"):
        EmbeddedServer(ServerConfig(repositories=identity.repositories, backends=(tmp_path / "nobackends",))).start()
