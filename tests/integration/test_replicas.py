"""Several real servers behind one address: the same answers, and none lost when a server, a version or nginx goes."""

import re
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest

from serving.balancer import BalancerConfig
from serving.client import Client
from serving.client.config import GRPC, HTTP, ClientConfig
from serving.ensemble import ExportedEnsemble, before
from serving.replicas import ReplicasConfig, ReplicaSet
from serving.server import EmbeddedServer
from serving.supervise import config_of
from tests.support.command_line import RANKLINE, rankline
from tests.support.programs import need_program
from tests.support.tiny_ensembles import NAME, damage, publish_tiny
from tests.support.waiting import wait_until, wait_until_ended
from workflows.errors import ConfigError, RequestError, ServerError, ServingError

pytestmark = pytest.mark.in_order


def programs(name: str, parent: int | None = None) -> list[psutil.Process]:
    """Processes below this one, or below `parent`, with a name that begins like this."""
    return [process for process in psutil.Process(parent).children(recursive=True) if process.name().startswith(name)]


@dataclass
class Served:
    """Two replicas of a tiny ensemble."""

    repository: Path
    replicas: ReplicaSet
    events: list[str]
    strangers: frozenset[int]
    """Processes that ran before, such as the server of other tests."""

    def programs(self, name: str) -> list[psutil.Process]:
        return [process for process in programs(name) if process.pid not in self.strangers]

    def address(self, transport: str = GRPC) -> str:
        endpoints = self.replicas.endpoints
        return endpoints.grpc if transport == GRPC else endpoints.http.removeprefix("http://")

    def num_scored(self) -> list[int]:
        """Rows that each replica has scored."""
        found = []
        for url in self.replicas.metrics_urls:
            with urllib.request.urlopen(url, timeout=120) as answer:
                text = answer.read().decode()
            found += re.findall(rf'^nv_inference_count{{model="{NAME}",.*}} (\d+)$', text, re.MULTILINE)
        return list(map(int, found))

    def tells(self, *lines: str) -> None:
        """Wait until all of these have been told, and forget what was."""
        wait_until(lambda: set(lines) <= set(self.events))
        self.events.clear()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Version 1 answers key i with 10 + i."""
    need_program("nginx", package="nginx-light", directories=(Path("/usr/sbin"),))
    return publish_tiny(tmp_path_factory.mktemp("replicas") / NAME, 10).path


@pytest.fixture(scope="module")
def served(repository: Path) -> Iterator[Served]:
    events: list[str] = []
    strangers = frozenset(process.pid for process in psutil.Process().children(recursive=True))
    config = ReplicasConfig(num_replicas=2, balancer=BalancerConfig(), log_path=repository.parent / "triton.log")
    stop = threading.Event()
    with ReplicaSet(ExportedEnsemble.load(repository), config, follow_versions=True, report=events.append) as replicas:
        runner = threading.Thread(target=replicas.run, args=(stop,))
        runner.start()
        try:
            yield Served(repository, replicas, events, strangers)
        finally:
            stop.set()
            runner.join()


@dataclass
class Load:
    """What clients have seen."""

    answers: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def goes_on(self) -> None:
        """Wait for further answers."""
        seen = len(self.answers)
        wait_until(lambda: len(self.answers) > seen + 50)


@contextmanager
def load(served: Served) -> Iterator[Load]:
    """Four clients over gRPC that do not try again."""
    seen, stop = Load(), threading.Event()

    def ask() -> None:
        with Client(served.address(), NAME, ClientConfig(retry_lost=False)) as client:
            request = client.prepare({"x": [0]})
            while not stop.is_set():
                stop.wait(0.002)  # leave a little time to what happens meanwhile
                try:
                    seen.answers.append(int(client.infer(request)[0]))
                except ServingError as error:
                    seen.errors.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        seen.goes_on()
        yield seen
        seen.goes_on()
    finally:
        stop.set()
        for thread in threads:
            thread.join()


# Each test leaves two replicas that answer 10 to key 0.


@pytest.fixture(scope="module")
def alone(served: Served) -> str:
    """The replicas themselves, without what stands before them, as gRPC writes several servers."""
    ports = [
        argument.removeprefix("--grpc-port=")
        for process in served.programs("tritonserver")
        for argument in process.cmdline()
        if argument.startswith("--grpc-port=")
    ]
    return "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in ports)


@pytest.mark.parametrize("transport", [GRPC, HTTP])
@pytest.mark.parametrize("num_rows", [1, 50_000])
def test_answers_are_those_of_the_servers_alone(served: Served, alone: str, transport: str, num_rows: int) -> None:
    keys = np.arange(num_rows) % 7  # two of them are unseen
    with Client(served.address(transport), NAME, ClientConfig(transport=transport)) as through:
        with Client(alone, NAME) as direct:
            assert np.array_equal(through.predict({"x": keys}), direct.predict({"x": keys}))
        with pytest.raises(RequestError, match="'x'"):
            through.predict({"x": ["no number"]})


def test_a_client_asks_several_servers_in_turn(served: Served, alone: str) -> None:
    earlier = served.num_scored()
    with Client(alone, NAME) as client:

        def has_asked_all() -> bool:
            assert client.predict({"x": [0]}).tolist() == [10]
            return all(later > count for later, count in zip(served.num_scored(), earlier, strict=True))

        wait_until(has_asked_all)


def test_the_balancer_answers_grpc_health_checks(served: Served) -> None:
    with grpc.insecure_channel(served.address()) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"", timeout=120) == b"\x08\x01"  # status: SERVING


def test_both_replicas_work(served: Served) -> None:
    earlier = served.num_scored()
    with load(served) as seen:
        pass
    assert seen.errors == []
    assert len(earlier) == 2
    assert all(later > count for later, count in zip(served.num_scored(), earlier, strict=True))


def test_a_replica_that_is_killed_under_load_costs_no_request_and_comes_back(served: Served) -> None:
    with load(served) as seen:
        for _ in range(2):
            served.programs("tritonserver")[0].send_signal(signal.SIGKILL)
            wait_until(lambda: any("out of service" in event for event in served.events))
            wait_until(lambda: any("in service again" in event for event in served.events))
            served.events.clear()
            assert len(served.programs("tritonserver")) == 2
        wait_until(lambda: all(count > 0 for count in served.num_scored()))  # the new ones, too
    assert set(seen.answers) == {10}
    assert seen.errors == []


def test_versions_change_under_load_without_a_failed_request(served: Served) -> None:
    with load(served) as seen:
        publish_tiny(served.repository, 20)
        served.tells("replica 1: version 2 is active", "replica 2: version 2 is active")
        seen.goes_on()
        assert seen.answers[-1] == 20
        before(served.repository).activate()
        served.tells("replica 1: version 1 is active", "replica 2: version 1 is active")
    assert seen.errors == []
    assert set(seen.answers) == {10, 20}
    assert seen.answers[-1] == 10


def test_a_version_that_cannot_be_loaded_is_served_by_none(served: Served) -> None:
    file = damage(publish_tiny(served.repository, 30), "predict")
    with load(served) as seen:
        wait_until(lambda: any("version 1 stays active" in event for event in served.events))
        assert str(file) in served.events[-1]
        # What starts now, with that version active on disk, has the version of the others.
        served.events.clear()
        served.programs("tritonserver")[0].send_signal(signal.SIGKILL)
        wait_until(lambda: any("in service again" in event for event in served.events))
    before(served.repository).activate()
    assert seen.errors == []
    assert set(seen.answers) == {10}


def test_an_nginx_that_is_killed_is_started_again(served: Served) -> None:
    nginxes = {process.pid: process for process in served.programs("nginx")}
    (master,) = [process for process in nginxes.values() if process.ppid() not in nginxes]
    master.kill()
    served.tells("nginx has ended; starting it again")
    with Client(served.address(), NAME, ClientConfig(connect_timeout_s=60)) as client:
        assert client.predict({"x": [0]}).tolist() == [10]


def test_each_has_its_log(served: Served) -> None:
    names = {path.name for path in served.repository.parent.glob("triton*")}
    assert names >= {"triton-1.log", "triton-2.log", "triton-balancer.log"}
    assert names & {"triton-1.log.old", "triton-2.log.old"}


# Starts and ends


def test_a_replica_that_cannot_start_is_named_and_nothing_is_left(tmp_path: Path, repository: Path) -> None:
    ensemble = publish_tiny(tmp_path / NAME, 10)
    file = damage(ensemble, "transform")
    earlier = {process.pid for process in psutil.Process().children(recursive=True)}
    replicas = ReplicaSet(
        ensemble,
        ReplicasConfig(num_replicas=2, balancer=BalancerConfig()),
        follow_versions=False,
        report=lambda _: None,
    )
    with pytest.raises(ServerError, match=rf"replica [12]: .*{file.name} does not match its checksum"):
        replicas.start()
    started = [process for process in psutil.Process().children(recursive=True) if process.pid not in earlier]
    assert [process for process in started if process.is_running() and "triton" in process.name()] == []
    with pytest.raises(ConfigError, match="num_replicas is 0"):
        ReplicasConfig(num_replicas=0, balancer=BalancerConfig())


def test_connections_that_grow_old_lose_no_request(tmp_path: Path) -> None:
    config = config_of(publish_tiny(tmp_path / NAME, 10), max_connection_age_s=0.3)
    ports: set[int] = set()
    with EmbeddedServer(config) as server, Client(server.endpoints.grpc, NAME) as client:
        port = int(server.endpoints.grpc.rpartition(":")[2])

        def has_moved() -> bool:
            assert client.predict({"x": [0]}).tolist() == [10]
            ours = psutil.Process().net_connections()
            ports.update(one.laddr.port for one in ours if one.raddr and one.raddr.port == port)
            return len(ports) >= 4

        wait_until(has_moved)


@contextmanager
def command_running(*arguments: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """`rankline` with what it says until it serves; stopped at the end of the block."""
    command = [RANKLINE, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if line.startswith("Ctrl-C"):
                    break
            yield process, "".join(lines)
        finally:
            process.terminate()


def test_the_command_serves_until_it_is_interrupted(tmp_path: Path, repository: Path) -> None:
    publish_tiny(tmp_path / "movielens", 10)
    serve = ("serve", "movielens", "--repository", str(tmp_path), "--replicas", "2", "--port")
    with command_running(*serve, "0") as (process, text):
        address = re.findall(r"^gRPC +(\S+)$", text, re.MULTILINE)[0]
        assert len(re.findall(r"http://\S+/[12]/metrics", text)) == 2
        with Client(address, NAME) as client:
            assert client.predict({"x": [4]}).tolist() == [14]
        port = address.rpartition(":")[2]
        second = rankline(*serve, port, cwd=tmp_path)
        assert second.returncode == 1
        assert f"grpc_port {port} on 127.0.0.1 is already in use" in second.stderr
        below = psutil.Process(process.pid).children(recursive=True)
        assert len(programs("tritonserver", process.pid)) == 2
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate()
    assert (process.returncode, rest.strip().splitlines()[-1]) == (0, "stopped")
    assert "Traceback" not in rest
    wait_until_ended(below)
