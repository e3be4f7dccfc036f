"""Starts the workers of an elastic run, replaces those that die, and forms worlds of those that stand ready.

    python -m rankline.elastic -np 2 --min 1 --max 2 -- rankline train movielens …

It stands where `horovodrun` does for a run that is not elastic: `training.elastic` is the other end, and says why. Each
worker has a connection to it; worlds meet through the key-value store here, over HTTP, as Horovod's C++ expects it.
The exit code is 0 if the model was published.
"""

import argparse
import json
import os
import secrets
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any, TextIO

import psutil

from rankline.elastic_hosts import LOCAL, FixedHosts, Hosts, HostScript
from training.config import LAG_FACTOR, WorkersConfig
from training.elastic import ADDRESS_VARIABLE
from workflows.errors import ConfigError, RanklineError

_LOOPBACK = "lo"
_LOOK_EVERY_S = 0.1
_HOSTS_EVERY_S = 1.0
_START_TIMEOUT_S = 600.0  # as horovodrun's
_STOP_TIMEOUT_S = 30.0
_GRACE_S = 10.0
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")
_SSH_FAILED = 255
SIGNALLED = 128
"""A shell's status of a program that was ended by signal 0."""
_PASSED = ("RANKLINE_", "OMP_", "TF_", "MLFLOW_")  # variables that a worker on another host gets
_LONGEST_HELLO = 1024  # bytes
_FIRST_PAUSE_S = 0.25  # before a worker is replaced; twice as long after each death without a commit
_LONGEST_PAUSE_S = 60.0
_MOST_DEATHS = 5  # times the largest number of workers, without a commit between them


@dataclass(frozen=True, kw_only=True)
class ElasticConfig:
    """Choices of an elastic run.

    Attributes:
        command: of each worker.
        hosts: where workers may be.
        workers: how many the first world has.
        min_workers: fewer do not train; the run waits.
        max_workers: more are not started.
        interface: network interface that all hosts have.
        timeout_s: a worker of a broken world that does not answer for so long is ended.
    """

    command: Sequence[str]
    hosts: Hosts
    workers: int
    min_workers: int
    max_workers: int
    interface: str = _LOOPBACK
    timeout_s: float = WorkersConfig.timeout_s

    def __post_init__(self) -> None:
        if not 1 <= self.min_workers <= self.workers <= self.max_workers:
            raise ConfigError(
                f"min_workers is {self.min_workers}, workers {self.workers} and max_workers {self.max_workers}, "
                "expected 1 ≤ min_workers ≤ workers ≤ max_workers."
            )
        if not self.timeout_s > 0:
            raise ConfigError(f"timeout_s is {self.timeout_s}, expected seconds above 0.")


@dataclass(kw_only=True, eq=False)
class _Worker:
    """A worker, as long as it lives.

    Attributes:
        number: counts all workers that were started.
        host: where it is.
        process: it, or the ssh to it.
        connection: None until it has connected, and when it has gone.
        ready: step of its commit, -1 without one, if it stands ready.
        rank: in the world that it is in.
        has_trained: whether it publishes the model.
        heard_s: when it last said something.
        gone_s: when its connection ended, before the process did.
    """

    number: int
    host: str
    process: subprocess.Popen[str]
    pumps: Sequence[threading.Thread]
    connection: socket.socket | None = None
    ready: int | None = None
    rank: int | None = None
    has_trained: bool = False
    heard_s: float = 0.0
    gone_s: float | None = None

    def __str__(self) -> str:
        return f"worker {self.number} on {self.host}"

    def say(self, **message: Any) -> None:
        if self.connection is not None:
            with suppress(OSError):  # that it has gone is noticed elsewhere
                self.connection.sendall(json.dumps(message).encode() + b"\n")

    def end(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


@dataclass(eq=False)
class _Line:
    """A connection, as far as it was read.

    Attributes:
        connection: it.
        worker: who it is; None until it has said so.
        heard: what came of its next message.
    """

    connection: socket.socket
    worker: _Worker | None = None
    heard: bytes = b""


class ElasticRun:
    """One run.

    Args:
        config: its choices.
        tell: is told what happens.
        clock: seconds.
    """

    def __init__(
        self, config: ElasticConfig, tell: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config, self._tell, self._clock = config, tell, clock
        self._token = secrets.token_hex(16)
        self._workers: list[_Worker] = []
        self._events: list[str] = []  # since the last world
        self._places: Mapping[str, int] = {}
        self._num_started = self._num_worlds = self._deaths = 0
        self._next_start_s = self._next_look_s = self._next_ask_s = 0.0
        self._broken_since_s: float | None = None  # when the world lost a member, or a member left it
        self._waits_since_s = clock()
        self._asked: _Worker | None = None  # to end its world, because a new worker waits
        self._run_id: str | None = None
        self._is_published = False

    def run(self) -> None:
        """Train until the model is published; no worker is left behind, whatever happens.

        Raises:
            RanklineError: a worker failed by itself, workers die before they get anywhere, or there are not enough.
        """
        address = _address(self._config.interface)
        with ExitStack() as at_end:
            self._store = at_end.enter_context(_Store(address))
            self._selector = at_end.enter_context(selectors.DefaultSelector())
            self._listener = at_end.enter_context(socket.create_server((address, 0)))
            self._selector.register(self._listener, selectors.EVENT_READ)
            at_end.callback(self._hang_up_on_all)
            at_end.callback(self._end_all)
            while not self._is_published:
                self._find_hosts()
                self._start_missing()
                for key, _ in self._selector.select(_LOOK_EVERY_S):
                    self._accept() if key.data is None else self._hear(key.data)
                self._bury_dead()
                self._form_world()
            for worker in self._workers:
                worker.say(over=True)
            self._wait_for_exits(_STOP_TIMEOUT_S)

    def _find_hosts(self) -> None:
        if self._clock() < self._next_look_s:
            return
        self._next_look_s = self._clock() + _HOSTS_EVERY_S
        try:
            places = self._config.hosts.find()
            _check_reach(places, self._config.interface)
            self._places = places
        except ConfigError as error:
            if not self._places:
                raise
            self._tell(str(error))  # it may know more the next time
        for worker in self._workers:
            if worker.host not in self._places:
                worker.end(signal.SIGKILL)

    def _start_missing(self) -> None:
        if self._clock() < self._next_start_s or any(worker.has_trained for worker in self._workers):
            return
        taken = Counter(worker.host for worker in self._workers)
        free = [host for host, number in self._places.items() for _ in range(number - taken[host])]
        for host in free[: self._config.max_workers - len(self._workers)]:
            self._start(host)

    def _start(self, host: str) -> None:
        number, (address, port) = self._num_started, self._listener.getsockname()
        variables = {ADDRESS_VARIABLE: f"{address}:{port}:{self._token}:{number}"}
        command = list(self._config.command)
        if not _is_here(host):
            passed = {name: value for name, value in os.environ.items() if name.startswith(_PASSED)} | variables
            settings = [f"{name}={value}" for name, value in passed.items()]
            line = f"cd {shlex.quote(str(Path.cwd()))} && exec env {shlex.join([*settings, *command])}"
            command = [*_SSH, host, line]
        process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C comes here, and is passed on
        )
        pumps = [
            threading.Thread(target=_pump, args=(source, sink, f"[{number}]<{name}>:"), daemon=True)
            for name, source, sink in (("stdout", process.stdout, sys.stdout), ("stderr", process.stderr, sys.stderr))
        ]
        for pump in pumps:
            pump.start()
        self._workers.append(_Worker(number=number, host=host, process=process, pumps=pumps))
        self._num_started += 1

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(_STOP_TIMEOUT_S)
        self._selector.register(connection, selectors.EVENT_READ, _Line(connection))

    def _hear(self, line: _Line) -> None:
        try:
            heard = line.connection.recv(65_536)
        except OSError:
            heard = b""
        *messages, line.heard = (line.heard + heard).split(b"\n")
        try:
            for message in messages:
                self._take(line, json.loads(message))
        except (ValueError, KeyError, TypeError, RecursionError):  # not one of ours
            heard = b""
        if not heard or (line.worker is None and len(line.heard) > _LONGEST_HELLO):
            self._hang_up(line)

    def _take(self, line: _Line, message: dict[str, Any]) -> None:
        worker = line.worker
        if worker is None:
            if not secrets.compare_digest(message["hello"], self._token):
                raise ValueError("a stranger")
            (line.worker,) = (worker for worker in self._workers if worker.number == message["number"])
            line.worker.connection = line.connection
            return
        worker.heard_s = self._clock()
        if "ready" in message:
            worker.ready = message["ready"]
            if worker.rank is not None:
                self._broken_since_s = self._broken_since_s or self._clock()
        elif "run_id" in message:
            self._run_id = message["run_id"]
        elif "commit" in message:
            self._deaths = 0
        elif "trained" in message:
            worker.has_trained = True
        elif "published" in message:
            self._is_published = True

    def _bury_dead(self) -> None:
        for worker in self._workers:
            if worker.gone_s is not None and self._clock() - worker.gone_s > _STOP_TIMEOUT_S:
                worker.end(signal.SIGKILL)
        for worker in [worker for worker in self._workers if worker.process.poll() is not None]:
            self._workers.remove(worker)
            worker.end(signal.SIGKILL)  # what it has left behind; and on another host it ends with its connection
            for line in self._lines():
                if line.worker is worker:
                    self._hang_up(line)
            code = worker.process.returncode
            if self._is_published:
                continue
            if 0 <= code < SIGNALLED:
                _finish(worker)
                raise RanklineError(f"{worker} ended with exit code {code}; its output says why.")
            self._deaths += 1
            event = f"{worker} was lost ({_cause(code)})"
            self._events.append(event)
            self._tell(event)
            if self._deaths >= _MOST_DEATHS * self._config.max_workers:
                raise RanklineError(
                    f"{self._deaths} workers died since the last commit, the last one by {_cause(code)}. Is the memory "
                    "enough for so many workers? Otherwise let them commit more often: --commit-every."
                )
            self._next_start_s = self._clock() + min(_FIRST_PAUSE_S * 2.0 ** (self._deaths - 1), _LONGEST_PAUSE_S)
            if worker.rank is not None and not any(other.has_trained for other in self._workers):
                self._broken_since_s = self._broken_since_s or self._clock()
                for other in self._workers:
                    other.say(lost=True)

    def _form_world(self) -> None:
        world = [worker for worker in self._workers if worker.rank is not None]
        ready = [worker for worker in self._workers if worker.ready is not None]
        if remaining := [worker for worker in world if worker.ready is None]:
            self._end_world(remaining, num_newcomers=len([worker for worker in ready if worker.rank is None]))
            return
        needed = self._config.min_workers if self._num_worlds else self._config.workers
        if len(ready) >= needed:
            self._place(ready)
        elif self._clock() - self._waits_since_s > _START_TIMEOUT_S:
            raise RanklineError(
                f"{len(ready)} workers stood ready within {_START_TIMEOUT_S:.0f} s, expected {needed}. Look into their "
                "output, and give hosts with room for as many, or ask for fewer."
            )

    def _end_world(self, remaining: list[_Worker], num_newcomers: int) -> None:
        """See that a world ends that others wait for."""
        self._waits_since_s = self._clock()
        if any(worker.has_trained for worker in remaining):
            return
        first = min(remaining, key=lambda worker: worker.rank or 0)
        if self._broken_since_s is not None:
            self._ask_for_life(remaining, self._broken_since_s)
        elif num_newcomers and self._asked is not first:
            self._asked = first
            first.say(awaited=True)

    def _ask_for_life(self, remaining: list[_Worker], since_s: float) -> None:
        """End those of a broken world that do not answer, or do but are stuck; others may have to evaluate first."""
        now_s, timeout_s = self._clock(), self._config.timeout_s
        for worker in remaining:
            if now_s - max(worker.heard_s, since_s) > timeout_s or now_s - since_s > LAG_FACTOR * timeout_s:
                self._tell(f"{worker} does not answer")
                worker.end(signal.SIGKILL)
        if now_s >= self._next_ask_s:
            self._next_ask_s = now_s + min(1.0, timeout_s / 4)
            for worker in remaining:
                worker.say(lives=True)

    def _place(self, ready: list[_Worker]) -> None:
        """Form a world; the worker with the latest commit, of those the oldest, becomes worker 0."""
        self._store.clear()
        members = sorted(ready, key=lambda worker: (-(worker.ready or 0), worker.number))
        sizes = Counter(worker.host for worker in members)
        hosts, seen = list(sizes), Counter[str]()
        self._tell(f"a world of {len(members)}: {', '.join(map(str, members))}")
        for rank, worker in enumerate(members):
            local_rank = seen[worker.host]
            seen[worker.host] += 1
            cross = [host for host in hosts if sizes[host] > local_rank]
            environment = {
                "HOROVOD_HOSTNAME": worker.host,
                "HOROVOD_RANK": rank,
                "HOROVOD_SIZE": len(members),
                "HOROVOD_LOCAL_RANK": local_rank,
                "HOROVOD_LOCAL_SIZE": sizes[worker.host],
                "HOROVOD_CROSS_RANK": cross.index(worker.host),
                "HOROVOD_CROSS_SIZE": len(cross),
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": self._store.address,
                "HOROVOD_GLOO_RENDEZVOUS_PORT": self._store.port,
                "HOROVOD_GLOO_IFACE": self._config.interface,
                "HOROVOD_CONTROLLER": "gloo",
                "HOROVOD_CPU_OPERATIONS": "gloo",
            }
            variables = {name: str(value) for name, value in environment.items()}
            about = {"is_first": not self._num_worlds, "run_id": self._run_id, "events": self._events}
            worker.say(place={"environment": variables, **about})
            worker.rank, worker.ready = rank, None
        self._num_worlds += 1
        self._events, self._asked, self._broken_since_s = [], None, None

    def _end_all(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for worker in self._workers:
                worker.end(number)
            self._wait_for_exits(_GRACE_S)

    def _lines(self) -> list[_Line]:
        return [key.data for key in self._selector.get_map().values() if key.data is not None]

    def _hang_up(self, line: _Line) -> None:
        self._selector.unregister(line.connection)
        line.connection.close()
        if line.worker is not None:
            line.worker.connection, line.worker.ready, line.worker.gone_s = None, None, self._clock()

    def _hang_up_on_all(self) -> None:
        for line in self._lines():
            self._hang_up(line)

    def _wait_for_exits(self, timeout_s: float) -> None:
        deadline_s = self._clock() + timeout_s
        for worker in self._workers[:]:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(0.0, deadline_s - self._clock()))
                _finish(worker)
                self._workers.remove(worker)


class _Store:
    """A key-value store over HTTP in which the workers of a world find each other: what Horovod's C++ expects.

    Args:
        address: where it listens, on a port of its own.
    """

    def __init__(self, address: str) -> None:
        values = self._values = dict[str, bytes]()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(values.get(self.path))

            def do_PUT(self) -> None:
                values[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
                self._answer(b"")

            def do_DELETE(self) -> None:
                self._answer(b"")  # all keys go before the next world

            def log_message(self, *_: Any) -> None:
                pass

            def _answer(self, value: bytes | None) -> None:
                self.send_response(404 if value is None else 200)
                self.send_header("Content-Length", str(len(value or b"")))
                self.end_headers()
                self.wfile.write(value or b"")

        self._server = ThreadingHTTPServer((address, 0), Handler)
        self._server.daemon_threads = True
        self.address, self.port = address, self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def clear(self) -> None:
        """Forget all keys."""
        self._values.clear()

    def __enter__(self) -> "_Store":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: see the module.

    Returns:
        Exit code.
    """
    parser = argparse.ArgumentParser(prog="python -m rankline.elastic", description="Workers that may come and go.")
    parser.add_argument("-np", type=int, required=True, dest="workers", help="workers of the first world")
    parser.add_argument("--min", type=int, required=True, dest="min_workers", help="fewer do not train")
    parser.add_argument("--max", type=int, required=True, dest="max_workers", help="more are not started")
    parser.add_argument("-H", "--hosts", help="HOST:NUMBER,…; this machine by default")
    parser.add_argument("--host-discovery-script", type=Path, help="prints HOST:NUMBER lines, again and again")
    parser.add_argument(
        "--network-interface",
        default=ElasticConfig.interface,
        dest="interface",
        help="that all hosts have; needed for others than this",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=ElasticConfig.timeout_s,
        dest="timeout_s",
        help="seconds to leave a broken world",
    )
    parser.add_argument("command", nargs="+", help="of each worker")
    options = vars(parser.parse_args(arguments))
    hosts, script = options.pop("hosts"), options.pop("host_discovery_script")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        here = FixedHosts({LOCAL: options["max_workers"]})
        places = HostScript(script) if script else FixedHosts.parse(hosts) if hosts else here
        ElasticRun(ElasticConfig(hosts=places, **options), tell=_remark).run()
    except RanklineError as error:
        _remark(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _check_reach(places: Mapping[str, int], interface: str) -> None:
    """Refuse hosts whose workers could not reach this one."""
    if interface == _LOOPBACK and (others := [host for host in places if not _is_here(host)]):
        raise ConfigError(
            f"{', '.join(others)} {'are other machines' if len(others) > 1 else 'is another machine'}. Say over which "
            "network interface its workers reach this one: --network-interface eth0."
        )


def _remark(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _pump(source: IO[str], sink: TextIO, prefix: str) -> None:
    with source:
        for line in source:
            sink.write(prefix + line)
            sink.flush()


def _finish(worker: _Worker) -> None:
    """Let its last lines come out."""
    for pump in worker.pumps:
        pump.join(_GRACE_S)


def _cause(code: int) -> str:
    if code == _SSH_FAILED:
        return "its host cannot be reached, or it was"
    number = -code if code < 0 else code - SIGNALLED
    return f"signal {number}"


def _is_here(host: str) -> bool:
    """Whether a host is this machine."""
    try:
        found = socket.gethostbyname(host)
    except OSError:
        return False
    return any(found == address.address for part in psutil.net_if_addrs().values() for address in part)


def _address(interface: str) -> str:
    """This machine's IPv4 address on an interface.

    Raises:
        ConfigError: there is none.
    """
    found = {
        name: address.address
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if address.family == socket.AF_INET
    }
    if interface not in found:
        raise ConfigError(
            f"there is no network interface {interface!r} with an IPv4 address, there are {sorted(found)}."
        )
    return found[interface]


if __name__ == "__main__":
    sys.exit(main())
