"""Several servers of one ensemble on this machine, behind one address.

Each replica has a thread that starts it, looks after it and starts it again. One that has ended, does not answer, or
has lost a model process gets no requests until it is well again. One replica after another switches to a new
version, each without dropping a request; one that any of them cannot load is loaded by none in the end.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2, service_pb2_grpc

from serving.balancer import Balancer, BalancerConfig, Upstream
from serving.ensemble import ExportedEnsemble
from serving.ports import Port, choose_ports
from serving.server import EmbeddedServer, Endpoints, ServerConfig
from serving.supervise import INTERVAL_S, Follower, Supervisor
from workflows.errors import ConfigError, RanklineError, ServerError

_POLL_INTERVAL_S = 0.02
_HEALTH_TIMEOUT_S = 2.0
_MOST_MISSES = 4  # health checks without an answer, until a replica is started again
_LONGEST_PAUSE_S = 30.0
_INTERRUPT_INTERVAL_S = 0.2


@dataclass(frozen=True, kw_only=True)
class ReplicasConfig:
    """How to run several servers.

    Attributes:
        num_replicas: how many, at least 1.
        balancer: where they are reached.
        log_path: with `-1`, `-2`, … and `-balancer` before its suffix, where their logs go; None keeps the ends of
            them. The log of a replica that is started again becomes `….old`.
    """

    num_replicas: int
    balancer: BalancerConfig
    log_path: Path | None = None

    def __post_init__(self) -> None:
        if self.num_replicas < 1:
            raise ConfigError(f"num_replicas is {self.num_replicas}, expected at least 1.")

    def log_of(self, part: object) -> Path | None:
        """Where a part's log goes."""
        path = self.log_path
        return None if path is None else path.with_name(f"{path.stem}-{part}{path.suffix}")


class Replica:
    """One server, kept up by a thread of its own.

    Args:
        number: from 1.
        ensemble: the version to serve.
        config: of all replicas.
        claim_ports: gives three that no other replica has, for gRPC, HTTP and metrics.
        on_change: called when requests may go to it, or may no more.
        report: is given a line for each event.
    """

    def __init__(
        self,
        number: int,
        ensemble: ExportedEnsemble,
        config: ReplicasConfig,
        *,
        claim_ports: Callable[[], tuple[int, ...]],
        on_change: Callable[[], None],
        report: Callable[[str], None],
    ) -> None:
        self.number = number
        self.upstream: Upstream | None = None
        """Where it answers, while it runs."""
        self.is_well = False
        """It runs and can take requests."""
        self.failure: Exception | None = None
        """Why it did not start for the first time; it does not try again."""
        self._ensemble, self._config = ensemble, config
        self._claim_ports, self._on_change = claim_ports, on_change
        self._report: Callable[[str], None] = lambda line: report(f"replica {number}: {line}")
        self._was_well = self._is_well_since_start = False
        self._server: EmbeddedServer | None = None
        self._supervisor: Supervisor | None = None
        self._changing = threading.Lock()  # its models
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"rankline-replica-{number}", daemon=True)

    def start(self) -> None:
        """Begin to start it; `is_well` or `failure` says when that is done."""
        self._thread.start()

    def switch_to(self, new: ExportedEnsemble) -> None:
        """Make another version the active one; nothing to do for one that does not run or has it.

        Raises:
            ServerError: it cannot be loaded. The old one goes on.
        """
        with self._changing:
            if self._supervisor is None or self._server is None or self._supervisor.serving is new:
                return
            try:
                self._supervisor.switch_to(new)
            except ServerError:
                if self._server.why_ended() is None:  # else it is not the version's fault
                    raise

    def keep(self, version: ExportedEnsemble) -> None:
        """Serve a version from now on, after every start too; one that cannot change to it starts anew."""
        self._ensemble = version
        try:
            self.switch_to(version)
        except ServerError:
            self._interrupt()

    def begin_stop(self) -> None:
        """Stop it, and do not wait."""
        self._stopping.set()

    def finish_stop(self) -> None:
        """Wait until it has stopped; one that is being started or loads a model is interrupted."""
        while self._thread.is_alive():
            self._thread.join(_INTERRUPT_INTERVAL_S)
            self._interrupt()

    def _interrupt(self) -> None:
        if (server := self._server) is not None:
            server.interrupt()

    def _run(self) -> None:
        num_failures = 0
        while not self._stopping.is_set():
            self._is_well_since_start = False
            try:
                self._serve()
            except (RanklineError, OSError) as error:
                if not self._was_well:
                    self.failure = error
                    return
                if not self._stopping.is_set():
                    reason = self._server.why_ended() if self._server is not None else None
                    self._report(f"out of service, starting it again: {reason or error}")
            finally:
                self._clear()
            num_failures = 0 if self._is_well_since_start else num_failures + 1
            self._stopping.wait(min(2**num_failures, _LONGEST_PAUSE_S) if num_failures else 0)

    def _serve(self) -> None:
        """Start a server and look after it until it is to stop.

        Raises:
            RanklineError, OSError: it cannot be started, has ended, or does not answer any more.
        """
        ensemble = self._ensemble
        log_path = self._config.log_of(self.number)
        if log_path is not None and self._was_well:
            with contextlib.suppress(FileNotFoundError):
                log_path.replace(f"{log_path}.old")
        grpc_port, http_port, metrics_port = self._claim_ports()
        server = self._server = EmbeddedServer(
            ServerConfig(
                repositories=(ensemble.path,),
                models=ensemble.steps,  # the ensemble's own file may name another version by now
                grpc_port=grpc_port,
                http_port=http_port,
                metrics_port=metrics_port,
                log_path=log_path,
            )
        )
        server.start()
        with self._changing:
            server.load(ensemble.name, ensemble.config)
            supervisor = Supervisor(server, ensemble, follow_versions=False, report=self._report)
            if self._ensemble is not ensemble:
                supervisor.switch_to(self._ensemble)
            self._supervisor = supervisor
        with _Health(server.endpoints.grpc, ensemble.name) as health:
            self._look_after(server, supervisor, health)

    def _look_after(self, server: EmbeddedServer, supervisor: Supervisor, health: "_Health") -> None:
        num_misses = 0
        while True:
            with self._changing:
                down = supervisor.find_down()
            num_misses = 0 if health.answers() else num_misses + 1
            if num_misses > _MOST_MISSES:
                raise ServerError(f"it did not answer {num_misses} health checks.")
            self._set_well(server, is_well=not (down or num_misses))
            if down or supervisor.has_to_go_back:
                with self._changing:
                    supervisor.step()
            if self._stopping.wait(INTERVAL_S):
                return

    def _set_well(self, server: EmbeddedServer, *, is_well: bool) -> None:
        upstream = Upstream.of(self.number, server.endpoints)
        if (upstream, is_well) == (self.upstream, self.is_well):
            return
        self.upstream, self.is_well = upstream, is_well
        self._on_change()
        if is_well:
            if self._was_well:
                self._report("in service again")
            self._was_well = self._is_well_since_start = True

    def _clear(self) -> None:
        with self._changing:
            self._supervisor = None
        self.upstream, self.is_well = None, False
        if not self._stopping.is_set():
            self._on_change()
        if self._server is not None:
            self._server.stop()
        self._server = None


class ReplicaSet:
    """Servers of one ensemble behind one address.

    Args:
        ensemble: the version to serve.
        config: how many, and where.
        follow_versions: switch to what becomes the active version on disk.
        report: is given a line for each event, from several threads.

    Raises:
        ServerError: nginx is not installed, or a port is already in use.
    """

    def __init__(
        self,
        ensemble: ExportedEnsemble,
        config: ReplicasConfig,
        *,
        follow_versions: bool,
        report: Callable[[str], None],
    ) -> None:
        self._balancer = Balancer(config.balancer, log_path=config.log_of("balancer"))
        self._balancing = threading.Lock()
        self._replicas = [
            Replica(
                number,
                ensemble,
                config,
                claim_ports=partial(self._claim_ports, number),
                on_change=self._rebalance,
                report=report,
            )
            for number in range(1, config.num_replicas + 1)
        ]
        self._claimed = {0: tuple(self._balancer.config.ports.values())}  # by number of the replica; 0 is nginx
        self._report = report
        self._stopping = threading.Event()
        self._follower = Follower(ensemble, self._report_follower) if follow_versions else None
        self._following = threading.Thread(target=self._follow, name="rankline-versions", daemon=True)

    def __enter__(self) -> "ReplicaSet":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def endpoints(self) -> Endpoints:
        """The one address; each replica has metrics of its own, at `metrics_urls`."""
        return self._balancer.endpoints

    @property
    def metrics_urls(self) -> tuple[str, ...]:
        """Where each replica's Prometheus metrics are."""
        return tuple(self._balancer.metrics_url(replica.number) for replica in self._replicas)

    def start(self) -> None:
        """Start all replicas, and when they are ready what stands before them.

        Raises:
            ServerError: one of them or nginx cannot be started.
        """
        try:
            for replica in self._replicas:
                replica.start()
            while not all(replica.is_well for replica in self._replicas):
                for replica in self._replicas:
                    if replica.failure is not None:
                        raise ServerError(f"replica {replica.number}: {replica.failure}")
                time.sleep(_POLL_INTERVAL_S)
            with self._balancing:
                self._balancer.start(self._upstreams())
            self._following.start()
        except BaseException:
            self.stop()
            raise

    def run(self, stop: threading.Event) -> None:
        """Look after nginx until `stop` is set; the replicas look after themselves.

        Raises:
            ServerError: nginx has ended and cannot be started again.
        """
        while not stop.wait(INTERVAL_S):
            if not self._balancer.is_running:
                self._report("nginx has ended; starting it again")
                with self._balancing:
                    self._balancer.stop()
                    self._balancer.start(self._upstreams())

    def stop(self) -> None:
        """Take no more requests, wait a while for those that run, and stop everything."""
        self._stopping.set()
        with self._balancing:
            self._balancer.stop()
        for replica in self._replicas:
            replica.begin_stop()
        for replica in self._replicas:
            replica.finish_stop()
        if self._following.is_alive():
            self._following.join()

    def _follow(self) -> None:
        while self._follower is not None and not self._stopping.wait(INTERVAL_S):
            if any(replica.is_well for replica in self._replicas):  # none could refuse a version
                self._follower.step(self._switch_to)

    def _report_follower(self, line: str) -> None:
        if not self._stopping.is_set():  # a version whose loading is interrupted is not refused
            self._report(line)

    def _switch_to(self, new: ExportedEnsemble) -> None:
        assert self._follower is not None
        kept = self._follower.serving
        try:
            for replica in self._replicas:
                replica.switch_to(new)
            kept = new
        finally:
            for replica in self._replicas:
                replica.keep(kept)

    def _claim_ports(self, number: int) -> tuple[int, ...]:
        """Free ones that neither nginx nor another replica was given: one that starts takes them when it has loaded."""
        with self._balancing:
            taken = {port for owner, ports in self._claimed.items() if owner != number for port in ports}
            while True:
                ports = choose_ports(Port(), Port(), Port())
                if taken.isdisjoint(ports):
                    self._claimed[number] = ports
                    return ports

    def _upstreams(self) -> list[Upstream]:
        """Replicas that can take requests; if none can, those that run: slow answers are better than none."""
        well = [replica.upstream for replica in self._replicas if replica.is_well]
        found = well or [replica.upstream for replica in self._replicas]
        return [upstream for upstream in found if upstream is not None]

    def _rebalance(self) -> None:
        with self._balancing:
            if self._balancer.is_running:
                try:
                    self._balancer.change(self._upstreams())
                except ServerError as error:  # if it has ended, `step` starts it again
                    self._report(str(error))


class _Health:
    """Asks a server over gRPC whether a model is ready."""

    def __init__(self, address: str, model: str) -> None:
        options = [("grpc.enable_http_proxy", 0)]  # it is on this machine
        self._channel: Any = grpc.insecure_channel(address, options=options)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._request = service_pb2.ModelReadyRequest(name=model)

    def __enter__(self) -> "_Health":
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def answers(self) -> bool:
        """It does, and the model is ready."""
        try:
            return bool(self._stub.ModelReady(self._request, timeout=_HEALTH_TIMEOUT_S).ready)
        except grpc.RpcError:
            return False
