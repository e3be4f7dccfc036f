"""nginx in front of several servers on this machine: one address for gRPC, one for HTTP, one for everybody's metrics.

A request goes to the server with the fewest in work. One that a server loses on the way is sent to another: scoring
changes nothing, so sending twice does no harm. nginx does that only with requests that it has whole, and it does not
wait for the whole of a gRPC request unless something reads it first; `mirror` does, and throws it away. Other servers
are taken over by a graceful reload: new worker processes take the connections, the old ones finish what they have.
"""

import contextlib
import grp
import http.client
import os
import pwd
import re
import resource
import secrets
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from serving.launched import Launched, new_home
from serving.ports import LOOPBACK, Port, Ports, choose_ports
from serving.server import Endpoints
from serving.server_log import FileLog, PipeLog, ServerLog
from workflows.errors import ServerError

_SYSTEM_PROGRAMS = "/usr/sbin"  # not on everybody's PATH
_CONFIG = "nginx.conf"
_GENERATION = "/generation"
_POLL_INTERVAL_S = 0.02
_RELOAD_TIMEOUT_S = 60.0  # ends what hangs; a reload takes some tenths of a second
_STOP_TIMEOUT_S = 10.0
_FOREVER = "365d"  # the client's deadline ends a request, and the client its connection
_MANY = "1000000000"
_SHUTDOWN_TIMEOUT = "60s"  # of workers that a reload replaces
# An HTTP/2 connection that comes in the moment of a reload stays with a worker that is to end (nginx pull request 437),
# and is cut off with it. So clients are told to take another one well before, and lose no request.
_GRPC_CONNECTION_TIME = "5s"
_PLAIN = re.compile(r"[\w./:=@-]+", re.ASCII)
_ERROR = re.compile(r"\[(?:emerg|alert|crit)\] (?:\d+#\d+: )?(.+)")

Directive = tuple[Any, ...]
"""Name and arguments of a directive; the last may be a list of further ones, which is its block."""


@dataclass(frozen=True, kw_only=True)
class Upstream:
    """A server behind the balancer.

    Attributes:
        number: of the server, in the address of its metrics.
        grpc, http, metrics: HOST:PORT of each.
    """

    number: int
    grpc: str
    http: str
    metrics: str

    @classmethod
    def of(cls, number: int, endpoints: Endpoints) -> "Upstream":
        """A server that runs."""
        metrics = endpoints.metrics.removeprefix("http://").removesuffix("/metrics")
        return cls(number=number, grpc=endpoints.grpc, http=endpoints.http.removeprefix("http://"), metrics=metrics)


@dataclass(frozen=True, kw_only=True)
class BalancerConfig(Ports):
    """Where the balancer listens, on loopback."""


class Balancer:
    """An nginx that runs from `start` to `stop`, and never longer than this process.

    Args:
        config: where it listens. Its ports are looked for at once, and taken by `start`.
        log_path: where its log goes; None keeps the end of it as long as it runs.

    Raises:
        ServerError: nginx is not installed, or a port is already in use.
    """

    def __init__(self, config: BalancerConfig, *, log_path: Path | None = None) -> None:
        self._program = find_nginx()
        self._log_path = log_path
        numbers = choose_ports(*(Port(name=name, number=number) for name, number in config.ports.items()))
        self.config = BalancerConfig(**dict(zip(config.ports, numbers, strict=True)))
        """With the ports that were chosen."""
        self._home = Path()
        self._log: ServerLog | None = None
        self._launched: Launched | None = None
        self._pid = 0

    @property
    def endpoints(self) -> Endpoints:
        """Where it listens; each server has metrics of its own, at `metrics_url`."""
        return Endpoints(
            grpc=f"{LOOPBACK}:{self.config.grpc_port}",
            http=f"http://{LOOPBACK}:{self.config.http_port}",
            metrics=f"http://{LOOPBACK}:{self.config.metrics_port}",
        )

    def metrics_url(self, number: int) -> str:
        """Of the server with this number, whatever port it has after a new start."""
        return f"{self.endpoints.metrics}/{number}/metrics"

    @property
    def is_running(self) -> bool:
        """It was started and has not ended."""
        return self._launched is not None and self._launched.poll() is None

    def start(self, upstreams: Sequence[Upstream]) -> None:
        """Start nginx and wait until it answers.

        Args:
            upstreams: the servers behind it; without any, requests fail with UNAVAILABLE.

        Raises:
            ServerError: it does not start.
        """
        self._home = home = new_home("balancer")
        self._log = PipeLog() if self._log_path is None else FileLog(self._log_path)
        try:
            self._launched = Launched(
                home, self._log, environment=os.environ, stop_timeout_s=_STOP_TIMEOUT_S, shm_prefix=home.name
            )
            home.chmod(0o711)  # workers of another user have their files in it
            generation = self._configure(upstreams)
            self._pid = self._launched.run(str(self._program), "-e", "stderr", "-p", f"{home}/", "-c", _CONFIG)
            self._wait_for(generation)
        except EOFError:
            reason = self._reason()
            self.stop()
            raise ServerError(f"nginx could not be started. {reason}") from None
        except BaseException:
            self.stop()
            raise
        self._launched.set_at_work()

    def change(self, upstreams: Sequence[Upstream]) -> None:
        """Send further requests to these servers, and wait until no worker of nginx does otherwise; none is dropped.

        Raises:
            ServerError: nginx was not started, has ended or does not take it.
        """
        if self._launched is None:
            raise ServerError("nginx is not running. Start it first.")
        former_workers = self._workers()
        generation = self._configure(upstreams)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGHUP)
        self._wait_for(generation)
        # The old workers take connections beside the new ones until each has closed its listening sockets.
        self._wait_until(lambda: not any(map(_is_listening, former_workers)))

    def stop(self) -> None:
        """Take no more requests, wait a while for those that run, and end; nothing to do when stopped."""
        if self._launched is not None:
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess, psutil.TimeoutExpired):
                if self._pid and self.is_running:
                    os.kill(self._pid, signal.SIGQUIT)
                    psutil.Process(self._pid).wait(_STOP_TIMEOUT_S)
            self._launched.stop()
        if self._log is not None:
            self._log.close()
        self._launched, self._log, self._pid = None, None, 0

    def _configure(self, upstreams: Sequence[Upstream]) -> str:
        """Write the configuration; what it answers at `_GENERATION`, so that one knows that it is at work."""
        generation = secrets.token_hex(8)
        text = nginx_config(self.config, upstreams, generation=generation)
        new = self._home / f"{_CONFIG}.new"
        try:
            new.write_text(text, encoding="utf-8")
            new.rename(self._home / _CONFIG)
        except OSError:  # `launch.py` has removed the directory
            raise ServerError(f"nginx has ended. {self._reason()}") from None
        return generation

    def _workers(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self._pid).children()
        except psutil.NoSuchProcess:
            return []

    def _wait_for(self, generation: str) -> None:
        self._wait_until(lambda: self._answer() == generation)

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _RELOAD_TIMEOUT_S
        while not condition():
            if not self.is_running:
                raise ServerError(f"nginx has ended. {self._reason()}")
            if time.monotonic() > deadline:
                raise ServerError(f"nginx did not reload within {_RELOAD_TIMEOUT_S:g} s. {self._reason()}")
            time.sleep(_POLL_INTERVAL_S)

    def _answer(self) -> str:
        connection = http.client.HTTPConnection(LOOPBACK, self.config.metrics_port, timeout=1)
        try:
            connection.request("GET", _GENERATION)
            return connection.getresponse().read().decode(errors="replace")
        except (OSError, http.client.HTTPException):
            return ""
        finally:
            connection.close()

    def _reason(self) -> str:
        return failure_reason(self._log.text()) if self._log is not None else ""


def find_nginx(path: str | None = None) -> Path:
    """The program.

    Args:
        path: directories to look in; None for those of PATH and where system programs are.

    Raises:
        ServerError: it is not installed.
    """
    path = path or os.pathsep.join([os.environ.get("PATH", os.defpath), _SYSTEM_PROGRAMS])
    if (found := shutil.which("nginx", path=path)) is None:
        raise ServerError(
            "nginx is not installed, and several servers behind one address need it: apt-get install nginx-light "
            "(as root), or serve one."
        )
    return Path(found)


def _is_listening(process: psutil.Process) -> bool:
    try:
        return any(found.status == psutil.CONN_LISTEN for found in process.net_connections("tcp"))
    except psutil.NoSuchProcess:
        return False


def failure_reason(log: str) -> str:
    """The first error in nginx's log, else its last line."""
    if found := _ERROR.search(log):
        return found[1]
    lines = log.strip().splitlines()
    return lines[-1] if lines else "It wrote no log."


def nginx_config(config: BalancerConfig, upstreams: Sequence[Upstream], *, generation: str) -> str:
    """What nginx is to do.

    Args:
        config: its ports; none is 0.
        upstreams: where requests go.
        generation: what it answers at `/generation` of the metrics.
    """
    is_empty = not upstreams
    num_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    directives: list[Directive] = [
        *_user(),
        ("daemon", "off"),
        ("pid", "nginx.pid"),
        ("error_log", "stderr", "error"),
        ("worker_processes", "auto"),
        ("worker_shutdown_timeout", _SHUTDOWN_TIMEOUT),
        ("events", [("worker_connections", str(min(8192, num_files)))]),
        (
            "http",
            [
                ("access_log", "off"),
                ("server_tokens", "off"),
                *((f"{name}_temp_path", name) for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")),
                ("client_max_body_size", "0"),
                ("client_body_buffer_size", "1m"),  # larger requests wait in a file
                ("client_body_timeout", "1h"),
                ("keepalive_timeout", _FOREVER),
                ("keepalive_time", _FOREVER),
                ("keepalive_requests", _MANY),
                *_upstream("grpc_servers", [upstream.grpc for upstream in upstreams]),
                *_upstream("http_servers", [upstream.http for upstream in upstreams]),
                ("server", _grpc_server(config.grpc_port, is_empty=is_empty)),
                ("server", _http_server(config.http_port, is_empty=is_empty)),
                ("server", _metrics_server(config.metrics_port, upstreams, generation)),
            ],
        ),
    ]
    return "\n".join(_lines(directives)) + "\n"


def _user() -> list[Directive]:
    """Who its workers run as where we are root: a user with no rights, as nothing that they read needs any."""
    if os.geteuid() != 0:
        return []
    home = Path(tempfile.gettempdir(), "home").resolve()
    if not all(parent.stat().st_mode & stat.S_IXOTH for parent in home.parents):
        return [("user", "root", "root")]  # others could not enter their directory
    try:
        nobody = pwd.getpwnam("nobody")
        return [("user", nobody.pw_name, grp.getgrgid(nobody.pw_gid).gr_name)]
    except KeyError:
        return [("user", "root", "root")]


def _upstream(name: str, addresses: Sequence[str]) -> list[Directive]:
    if not addresses:  # nginx takes no empty one
        return []
    servers = [("server", address, "max_fails=1", "fail_timeout=1s") for address in addresses]
    block: list[Directive] = [
        ("zone", name, "256k"),  # all worker processes count together
        ("least_conn",),
        *servers,
        ("keepalive", "256"),
        ("keepalive_requests", _MANY),
        ("keepalive_time", _FOREVER),
        ("keepalive_timeout", "1h"),
    ]
    return [("upstream", name, block)]


def _grpc_server(port: int, *, is_empty: bool) -> list[Directive]:
    """gRPC in clear text; where nothing answers, in gRPC's own words."""
    to_servers: list[Directive] = [
        ("grpc_pass", "grpc://grpc_servers"),
        ("grpc_connect_timeout", "2s"),
        ("grpc_read_timeout", _FOREVER),
        ("grpc_send_timeout", _FOREVER),
        ("grpc_next_upstream", "error", "timeout"),
        ("grpc_buffer_size", "64k"),
    ]
    # What a server has lost is sent again in a second pass: nginx 1.22's own repetition may put the number of an old
    # stream on a new connection.
    again = [("error_page", "502", "504", "=", "@again"), ("mirror", "/taken")]
    return [
        ("listen", f"{LOOPBACK}:{port}", "http2"),
        ("http2_max_concurrent_streams", "1024"),
        ("http2_chunk_size", "64k"),
        ("keepalive_time", _GRPC_CONNECTION_TIME),
        ("recursive_error_pages", "on"),
        ("error_page", "502", "503", "504", "=", "@unavailable"),
        ("location", "/", [("return", "503")] if is_empty else [*again, *to_servers]),
        ("location", "=", "/taken", [("internal",), ("return", "204")]),
        ("location", "@again", [("return", "503")] if is_empty else to_servers),
        (
            "location",
            "@unavailable",
            [
                ("default_type", "application/grpc"),
                ("add_header", "grpc-status", "14"),
                ("add_header", "grpc-message", "none of the servers behind the balancer answers"),
                ("return", "204"),
            ],
        ),
    ]


def _http_server(port: int, *, is_empty: bool) -> list[Directive]:
    to_servers: list[Directive] = [
        ("proxy_pass", "http://http_servers"),
        ("proxy_http_version", "1.1"),
        ("proxy_set_header", "Connection", ""),
        ("proxy_connect_timeout", "2s"),
        ("proxy_read_timeout", _FOREVER),
        ("proxy_send_timeout", _FOREVER),
        ("proxy_next_upstream", "error", "timeout", "non_idempotent"),
    ]
    return [
        ("listen", f"{LOOPBACK}:{port}"),
        ("location", "/", [("return", "503")] if is_empty else to_servers),
    ]


def _metrics_server(port: int, upstreams: Sequence[Upstream], generation: str) -> list[Directive]:
    metrics: list[Directive] = [
        ("location", "=", f"/{upstream.number}/metrics", [("proxy_pass", f"http://{upstream.metrics}/metrics")])
        for upstream in upstreams
    ]
    return [
        ("listen", f"{LOOPBACK}:{port}"),
        ("location", "=", _GENERATION, [("return", "200", generation)]),
        ("location", "/", [("return", "404")]),
        *metrics,
    ]


def _lines(directives: Sequence[Directive], indent: str = "") -> Iterator[str]:
    for directive in directives:
        block = directive[-1] if isinstance(directive[-1], list) else None
        words = directive if block is None else directive[:-1]
        head = indent + " ".join(map(_word, words))
        if block is None:
            yield f"{head};"
        else:
            yield f"{head} {{"
            yield from _lines(block, indent + "  ")
            yield f"{indent}}}"


def _word(word: str) -> str:
    return word if _PLAIN.fullmatch(word) else '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'
