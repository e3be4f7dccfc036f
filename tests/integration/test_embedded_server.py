"""Starting, failing and stopping of real servers."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tiny_models import BENCH_BACKENDS, identity_config, write_model

from serving.client import Client
from serving.server import EmbeddedServer, ServerConfig
from workflows.errors import ServerError

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def identity(tmp_path: Path) -> ServerConfig:
    repository = tmp_path / "repository"
    write_model(repository, identity_config())
    return ServerConfig(repositories=(repository,), backends=(BENCH_BACKENDS,))


def wait_until(condition: Callable[[], bool], timeout_s: float = 20) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def alive(process_ids: tuple[int, ...]) -> list[int]:
    return [pid for pid in process_ids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]


def trouble(server: EmbeddedServer) -> str:
    try:
        server.check_alive()
    except ServerError as error:
        return str(error)
    return ""


def leftovers() -> set[Path]:
    """Shared memory and temporary directories of this process's servers."""
    temporary = Path(tempfile.gettempdir())
    return {*Path("/dev/shm").glob(f"rankline_{os.getpid()}_*"), *temporary.glob(f"rankline-server-{os.getpid()}-*")}


def test_stopping_leaves_nothing_behind(identity: ServerConfig, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "server.log"
    before = leftovers()
    with EmbeddedServer(
        ServerConfig(repositories=identity.repositories, backends=identity.backends, log_path=log)
    ) as server:
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


def test_cleans_up_after_a_server_that_was_killed(identity: ServerConfig) -> None:
    before = leftovers()
    server = EmbeddedServer(identity)
    server.start()
    process_ids = server.process_ids()
    server.check_alive()
    os.kill(server.pid, signal.SIGKILL)  # the server dies and leaves its model process and shared memory
    assert wait_until(lambda: "ended with status -9" in trouble(server))
    server.stop()
    assert alive(process_ids) == []
    assert leftovers() == before
    server.stop()  # twice is once


def test_client_of_a_stopped_server_is_told_so(identity: ServerConfig) -> None:
    with EmbeddedServer(identity) as server:
        client = Client(server.endpoints.grpc, "identity")
    with client, pytest.raises(ServerError, match="no Triton server answers at 127.0.0.1:.*rankline serve"):
        client.predict({"x": [1]})


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_dies_with_its_parent(identity: ServerConfig, how: signal.Signals, tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from serving.server import *\n"
        "paths = [Path(p) for p in sys.argv[1:]]\n"
        "with EmbeddedServer(ServerConfig(repositories=(paths[0],), backends=(paths[1],))) as server:\n"
        "    print(*server.process_ids(), flush=True)\n"
        "    time.sleep(600)\n"
    )
    command = [sys.executable, "-c", code, str(identity.repositories[0]), str(BENCH_BACKENDS)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        process_ids = tuple(map(int, parent.stdout.readline().split()))
        assert len(alive(process_ids)) == 2
        parent.send_signal(how)
        parent_pid = parent.pid
    assert wait_until(lambda: alive(process_ids) == [])
    assert not list(Path("/dev/shm").glob(f"rankline_{parent_pid}_*"))


def test_port_in_use_is_named(identity: ServerConfig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = ServerConfig(repositories=identity.repositories, http_port=port)
        with pytest.raises(ServerError, match=f"http_port {port} on 127.0.0.1 .*in use"):
            EmbeddedServer(config).start()


def test_missing_repository_and_backends_are_named(tmp_path: Path, identity: ServerConfig) -> None:
    with pytest.raises(ServerError, match="nowhere does not exist"):
        EmbeddedServer(ServerConfig(repositories=(tmp_path / "nowhere",))).start()
    with pytest.raises(ServerError, match="nobackends does not exist"):
        EmbeddedServer(ServerConfig(repositories=identity.repositories, backends=(tmp_path / "nobackends",))).start()


def test_a_model_that_is_refused_is_named(identity: ServerConfig) -> None:
    server = EmbeddedServer(ServerConfig(repositories=identity.repositories))  # without the identity backend
    with pytest.raises(ServerError, match=r"ended while starting\. Model 'identity': .*backend") as failure:
        server.start()
    assert len(str(failure.value).splitlines()) == 1
    assert server.process_ids() == ()


def test_a_server_that_is_not_ready_in_time_is_stopped(identity: ServerConfig) -> None:
    before = set(psutil.Process().children(recursive=True))
    config = ServerConfig(repositories=identity.repositories, backends=(BENCH_BACKENDS,), ready_timeout_s=0.05)
    with pytest.raises(ServerError, match=r"not ready within 0\.05 s"):
        EmbeddedServer(config).start()
    assert set(psutil.Process().children(recursive=True)) <= before
