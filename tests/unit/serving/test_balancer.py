"""What nginx is told, and a real nginx before tiny servers of HTTP and gRPC."""

import http.client
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.balancer import Balancer, BalancerConfig, Upstream, failure_reason, find_nginx, nginx_config
from serving.ports import Port, choose_ports
from tests.support.vanishing import vanishing
from tests.support.waiting import wait_until
from workflows.errors import ConfigError, ServerError

PORTS = BalancerConfig(grpc_port=8001, http_port=8000, metrics_port=8002)
UPSTREAMS = tuple(
    Upstream(number=number, grpc=f"127.0.0.1:{9000 + number}", http=f"127.0.0.1:{9100 + number}", metrics="127.0.0.1:9")
    for number in range(1, 4)
)


@pytest.fixture(scope="module")
def nginx() -> Path:
    try:
        return find_nginx()
    except ServerError as error:
        pytest.skip(str(error))


# What it is told


@pytest.mark.parametrize("num_servers", [0, 1, 3])
def test_nginx_accepts_the_configuration(nginx: Path, tmp_path: Path, num_servers: int) -> None:
    numbers = choose_ports(*(Port(name=name) for name in PORTS.ports))
    config = BalancerConfig(**dict(zip(PORTS.ports, numbers, strict=True)))
    (tmp_path / "nginx.conf").write_text(nginx_config(config, UPSTREAMS[:num_servers], generation="1"))
    command = [nginx, "-e", "stderr", "-p", f"{tmp_path}/", "-c", "nginx.conf", "-t"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "[warn]" not in done.stderr


@given(st.integers(1, 5))
def test_every_server_is_named_once_for_each_protocol(num_servers: int) -> None:
    lines = nginx_config(PORTS, UPSTREAMS[:num_servers], generation="1").splitlines()
    for upstream in UPSTREAMS[:num_servers]:
        assert len([line for line in lines if f"server {upstream.grpc} " in line]) == 1
        assert len([line for line in lines if f"server {upstream.http} " in line]) == 1
        assert len([line for line in lines if f"/{upstream.number}/metrics" in line]) == 1


def test_it_listens_on_loopback_alone() -> None:
    lines = nginx_config(PORTS, UPSTREAMS, generation="1").splitlines()
    listening = [line.split()[1].rstrip(";") for line in lines if line.split()[:1] == ["listen"]]
    assert listening == ["127.0.0.1:8001", "127.0.0.1:8000", "127.0.0.1:8002"]


def test_a_request_goes_to_the_server_with_the_fewest() -> None:
    text = nginx_config(PORTS, UPSTREAMS, generation="1")
    assert text.count("least_conn;") == 2  # gRPC and HTTP
    assert text.count("keepalive 256;") == 2


# What goes wrong


def test_a_missing_nginx_comes_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="nginx is not installed.*apt-get install nginx-light"):
        find_nginx(str(tmp_path))


@pytest.mark.parametrize("name", ["grpc_port", "http_port", "metrics_port"])
def test_a_port_that_is_taken_is_named(nginx: Path, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServerError, match=f"{name} {port} on 127.0.0.1 .*in use.*try another"):
            Balancer(BalancerConfig(**{name: port}))


def test_a_port_that_is_taken_at_the_last_moment_is_reported(nginx: Path) -> None:
    balancer = Balancer(BalancerConfig())
    with socket.create_server(("127.0.0.1", balancer.config.grpc_port)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServerError, match=rf"nginx has ended\. bind\(\) to 127\.0\.0\.1:{port} failed.*in use"):
            balancer.start(())
    assert not balancer.is_running


def test_what_was_not_started_cannot_be_changed(nginx: Path) -> None:
    balancer = Balancer(BalancerConfig())
    with pytest.raises(ServerError, match="nginx is not running"):
        balancer.change(UPSTREAMS)
    balancer.stop()  # nothing to do


@pytest.mark.parametrize("number", [-1, 65536])
def test_a_port_must_be_one(number: int) -> None:
    with pytest.raises(ConfigError, match=f"http_port is {number}, expected 0"):
        BalancerConfig(http_port=number)


def test_the_reason_of_a_failure_is_the_first_error_else_the_last_line() -> None:
    log = (
        "2026/11/21 02:45:01 [error] 7#7: *1 connect() failed\n"
        '2026/11/21 02:45:02 [emerg] 7#7: unknown directive "grpc_pass" in nginx.conf:3\n'
        "2026/11/21 02:45:03 [emerg] 7#7: still could not bind()\n"
    )
    assert failure_reason(log) == 'unknown directive "grpc_pass" in nginx.conf:3'
    assert failure_reason("one\ntwo\n") == "two"
    assert failure_reason("") == "It wrote no log."


# At work


@dataclass
class Server:
    """Answers each request with its own number, once `release` is set."""

    number: int
    upstream: Upstream
    server: ThreadingHTTPServer
    release: threading.Event = field(default_factory=threading.Event)
    num_requests: int = 0

    @classmethod
    def start(cls, number: int, stack: ExitStack) -> "Server":
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # head and body in one packet: a second one waits for the first's acknowledgement

            def do_GET(self) -> None:
                made.num_requests += 1
                made.release.wait()
                body = f"{number} {self.path}".encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        address = f"127.0.0.1:{server.server_port}"
        made = cls(number, Upstream(number=number, grpc=address, http=address, metrics=address), server)
        made.release.set()
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        for clean_up in (server.server_close, thread.join, server.shutdown):  # carried out from the last to the first
            stack.callback(clean_up)
        return made


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    with ExitStack() as stack:
        yield [Server.start(number, stack) for number in (1, 2)]


@contextmanager
def running(*servers: Server) -> Iterator[Balancer]:
    with running_before(Balancer(BalancerConfig()), *(server.upstream for server in servers)) as balancer:
        yield balancer


@contextmanager
def running_before(balancer: Balancer, *upstreams: Upstream) -> Iterator[Balancer]:
    balancer.start(upstreams)
    try:
        yield balancer
    finally:
        balancer.stop()


def get(port: int, path: str = "/") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_requests_go_to_those_that_it_was_last_told(nginx: Path, servers: list[Server]) -> None:
    first, second = servers
    with running(*servers) as balancer:
        port = balancer.config.http_port
        assert {get(port)[1] for _ in range(8)} == {"1 /", "2 /"}
        balancer.change([second.upstream])
        assert {get(port)[1] for _ in range(8)} == {"2 /"}
        assert get(balancer.config.metrics_port, "/2/metrics") == (200, "2 /metrics")
        assert get(balancer.config.metrics_port, "/1/metrics")[0] == 404
        balancer.change([])
        assert get(port)[0] == 503
        balancer.change([first.upstream, second.upstream])
        assert {get(port)[1] for _ in range(8)} == {"1 /", "2 /"}


def test_a_change_waits_for_a_worker_that_still_takes_connections(nginx: Path, servers: list[Server]) -> None:
    first, second = servers
    order = []

    def change() -> None:
        balancer.change([second.upstream])
        order.append("changed")

    before = set(psutil.Process().children(recursive=True))
    with running(first) as balancer:
        nginxes = [process for process in psutil.Process().children(recursive=True) if process.name() == "nginx"]
        (master,) = [process for process in nginxes if process not in before and process.parent() not in nginxes]
        late = master.children()[0]
        late.suspend()
        changing = threading.Thread(target=change)
        changing.start()
        wait_until(lambda: len(master.children()) > len(nginxes) - 1)  # the new workers are there, the old ones too
        for _ in range(30):
            get(balancer.config.http_port)
        order.append("resumed")
        late.resume()
        changing.join()
    assert order == ["resumed", "changed"]


@contextmanager
def echo() -> Iterator[Upstream]:
    """A gRPC server that answers every request with itself."""

    class Echo(grpc.GenericRpcHandler):  # type: ignore[misc]  # it has no annotations
        def service(self, _: object) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(lambda request, _: request)

    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads, handlers=[Echo()])
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        yield Upstream(number=1, grpc=address, http=address, metrics=address)
        server.stop(None).wait()


def test_a_connection_that_comes_as_nginx_reloads_moves_to_another_worker(
    nginx: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.balancer._SHUTDOWN_TIMEOUT", "1h")  # which would end it otherwise
    balancer, reloaded = Balancer(BalancerConfig()), threading.Event()
    with (
        echo() as server,
        running_before(balancer, server),
        vanishing(balancer.endpoints.grpc, reloaded.wait) as (url, _),
        grpc.insecure_channel(url) as channel,
    ):
        former = balancer._workers()
        ask = channel.unary_unary("/rankline.Test/Echo")
        first = ask.future(b"1", wait_for_ready=True)
        port = balancer.config.grpc_port
        wait_until(
            lambda: any(one.raddr and one.laddr.port == port for worker in former for one in worker.net_connections())
        )
        balancer.change([server])
        reloaded.set()
        assert first.result() == b"1"
        assert any(map(psutil.Process.is_running, former))
        while any(map(psutil.Process.is_running, former)):
            assert ask(b"2") == b"2"


def test_a_busy_server_gets_fewer(nginx: Path, servers: list[Server]) -> None:
    busy, idle = servers
    busy.release.clear()
    with running(*servers) as balancer:
        port = balancer.config.http_port
        waiting = [threading.Thread(target=get, args=(port,)) for _ in range(2)]
        for thread in waiting:
            thread.start()
        # A third request beside both of them would find one at each server.
        wait_until(lambda: busy.num_requests + idle.num_requests == 2)
        wait_until(lambda: sum(thread.is_alive() for thread in waiting) == busy.num_requests > 0)
        assert [get(port)[1] for _ in range(6)] == ["2 /"] * 6
        busy.release.set()
        for thread in waiting:
            thread.join()
    assert idle.num_requests >= 6


def test_a_request_that_runs_outlives_a_change_and_a_stop(nginx: Path, servers: list[Server]) -> None:
    slow, other = servers
    slow.release.clear()
    answers: list[tuple[int, str]] = []
    with running(slow) as balancer:
        asking = threading.Thread(target=lambda: answers.append(get(balancer.config.http_port)))
        asking.start()
        wait_until(lambda: slow.num_requests == 1)
        balancer.change([other.upstream])
        stopping = threading.Thread(target=balancer.stop)
        stopping.start()
        wait_until(lambda: not can_connect(balancer.config.http_port))
        assert answers == []
        slow.release.set()
        stopping.join()
        asking.join()
    assert answers == [(200, "1 /")]


def can_connect(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_nothing_is_left_behind(nginx: Path, servers: list[Server], tmp_path: Path) -> None:
    before = set(psutil.Process().children(recursive=True))
    with running(*servers):
        started = set(psutil.Process().children(recursive=True)) - before
        (home,) = {Path(process.cwd()) for process in started if process.name() == "nginx"}
        assert home.is_dir()
    assert not any(process.is_running() for process in started)
    assert not home.exists()


def test_an_nginx_that_is_killed_takes_its_workers_with_it(nginx: Path, servers: list[Server]) -> None:
    before = set(psutil.Process().children(recursive=True))
    with running(*servers) as balancer:
        started = set(psutil.Process().children(recursive=True)) - before
        nginxes = {process.pid: process for process in started if process.name() == "nginx"}
        (master,) = [process for process in nginxes.values() if process.ppid() not in nginxes]
        os.kill(master.pid, signal.SIGKILL)
        wait_until(lambda: not balancer.is_running)
        with pytest.raises(ServerError, match="nginx has ended"):
            balancer.change([servers[0].upstream])
        assert not can_connect(balancer.config.http_port)
