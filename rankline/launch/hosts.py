"""Hosts, their places for workers, and whether they can be reached. This module is fast to import."""

import re
import socket
import subprocess
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from rankline.workflows.core.errors import ConfigError

LOCAL = "localhost"
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_SCRIPT_TIMEOUT_S = 10.0
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "ConnectTimeout=5")
_SSH_TIMEOUT_S = 10.0


def parse_hosts(entries: Iterable[str]) -> dict[str, int]:
    """Parse entries such as "a:2" and "b" into a mapping from host to number of workers, 1 by default."""
    hosts: dict[str, int] = {}
    for entry in entries:
        host, _, number = entry.strip().partition(":")
        if not _HOST.fullmatch(host) or host in hosts or not (number or "1").isdecimal() or int(number or "1") < 1:
            raise ConfigError(f"{entry!r} is not a host: expected NAME:NUMBER, each name once.")
        hosts[host] = int(number or "1")
    return hosts


def discover_hosts(script: Path) -> dict[str, int]:
    """Return the hosts that a program prints, one `HOST:NUMBER` per line, as horovodrun's discovery scripts do."""
    try:
        done = subprocess.run(
            [str(script.absolute())], capture_output=True, text=True, timeout=_SCRIPT_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(
            f"--host-discovery-script {script} failed: {error}. Expected a program that prints a line HOST:NUMBER for "
            "each host."
        ) from None
    return parse_hosts(done.stdout.split())


def first_places(hosts: Mapping[str, int], number: int) -> dict[str, int]:
    """Return places for at most `number` workers, filling the first hosts first."""
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
    """Return this machine and the hosts that ssh reaches without a password, this machine first.

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
