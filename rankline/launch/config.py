"""Settings for launching several workers, and discovery of their hosts. This module is fast to import."""

import re
import socket
import subprocess
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil

from rankline.training.distributed.config import WorkersConfig
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.validation import check_at_least

LOCAL = "localhost"
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_SCRIPT_TIMEOUT_S = 10.0
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "ConnectTimeout=5")
_SSH_TIMEOUT_S = 10.0


def parse_hosts(entries: Iterable[str]) -> dict[str, int]:
    """Parse entries such as "a:2" and "b" into the number of workers per host, which defaults to 1."""
    hosts: dict[str, int] = {}
    for entry in entries:
        host, _, number = entry.strip().partition(":")
        if not _HOST.fullmatch(host) or host in hosts or not (number or "1").isdecimal() or int(number or "1") < 1:
            raise ConfigError(f"invalid host {entry!r}, expected NAME:NUMBER. Each name may appear only once.")
        hosts[host] = int(number or "1")
    return hosts


def discover_hosts(script: Path) -> dict[str, int]:
    """Run a host discovery script and parse its output, one `HOST:NUMBER` per line as in horovodrun."""
    try:
        done = subprocess.run(
            [str(script.absolute())], capture_output=True, text=True, timeout=_SCRIPT_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(
            f"--host-discovery-script {script} failed: {error}. Pass a program that prints one HOST:NUMBER line "
            "per host."
        ) from None
    return parse_hosts(done.stdout.split())


def first_places(hosts: Mapping[str, int], number: int) -> dict[str, int]:
    """Assign at most `number` workers to the hosts in order, and return the number of workers per host."""
    places: dict[str, int] = {}
    for host, size in hosts.items():
        if (free := number - sum(places.values())) > 0:
            places[host] = min(size, free)
    return places


def is_local(host: str) -> bool:
    try:
        found = socket.gethostbyname(host)
    except OSError:
        return False
    return any(found == address.address for part in psutil.net_if_addrs().values() for address in part)


def reachable(hosts: Mapping[str, int]) -> dict[str, int]:
    """Return the reachable hosts: this machine first, then the hosts that accept ssh without a password.

    Worker 0 writes checkpoints and the model, so it runs here if any worker does.
    """
    local = [host for host in hosts if is_local(host)]
    remote = [host for host in hosts if host not in local]
    if remote:
        with ThreadPoolExecutor(len(remote)) as pool:
            remote = [host for host, answers in zip(remote, pool.map(_answers, remote), strict=True) if answers]
    return {host: hosts[host] for host in (*local, *remote)}


def _answers(host: str) -> bool:
    try:
        done = subprocess.run([*_SSH, host, "true"], capture_output=True, timeout=_SSH_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """Hosts and resources of the workers.

    Attributes:
        hosts: hosts and the number of workers on each, such as a:2,b:2, reachable by ssh without a password and with
            the same paths; by default all workers run on this machine.
        host_discovery_script: program that prints such hosts, one per line; an elastic run calls it every second.
        network_interface: network interface for traffic between workers, such as eth0; by default one that all hosts
            have.
        mpi: use MPI instead of Gloo to start the workers and to communicate between them.
        threads: threads of each process, for computing and for reading; 0 divides the cores among the workers.
        bind_cores: bind each worker of a machine to cores of its own, unless there are more workers than cores.
    """

    hosts: str = ""
    host_discovery_script: str = ""
    network_interface: str = ""
    mpi: bool = False
    threads: int = 0
    bind_cores: bool = True

    def __post_init__(self) -> None:
        check_at_least(self, 0, "threads")
        if self.hosts and self.host_discovery_script:
            raise ConfigError("--hosts and --host-discovery-script cannot be combined. Pass only one of them.")
        self._named_hosts()

    def find_hosts(self, config: WorkersConfig) -> Mapping[str, int]:
        """Return the current number of workers per host. By default, all workers run on this machine."""
        if self.host_discovery_script:
            return discover_hosts(Path(self.host_discovery_script))
        return self._named_hosts() or {LOCAL: max(config.workers, config.max_workers)}

    def num_workers(self, config: WorkersConfig) -> int:
        number = sum(self._named_hosts().values())
        if config.workers > 1 and 0 < number < config.workers:
            raise ConfigError(
                f"--workers is {config.workers}, but --hosts {self.hosts} allows only {number}. Add hosts, or increase "
                "the number of workers per host (HOST:NUMBER)."
            )
        if config.workers > 1 or not number:
            return config.workers
        return min(number, config.max_workers) if config.is_elastic else number

    def is_asked_for(self, config: WorkersConfig) -> bool:
        if self.host_discovery_script and not config.is_elastic:
            raise ConfigError(
                "--host-discovery-script requires an elastic run. Pass --min-workers and --max-workers too, or use "
                "--hosts instead."
            )
        return config.is_elastic or bool(self.hosts) or config.workers > 1

    def _named_hosts(self) -> Mapping[str, int]:
        return parse_hosts(self.hosts.split(",")) if self.hosts else {}
