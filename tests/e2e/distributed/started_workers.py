"""Real Horovod workers on this machine, without the seconds that horovodrun takes to start them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a worker ended, and all that it printed."""

    exit_code: int
    output: str


@contextmanager
def started(script: Path, *arguments: object, size: int = 2) -> Iterator[list["subprocess.Popen[str]"]]:
    """Processes of a script, each of which finds the others through a rendezvous of horovodrun's own."""
    pytest.importorskip("horovod", reason="Horovod is not installed: make horovod")
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars
    from horovod.runner.http.http_server import RendezvousServer

    server, slots = RendezvousServer(), get_host_assignments(parse_hosts(f"localhost:{size}"), size)
    shared = create_run_env_vars("127.0.0.1", ["lo"], str(server.start()))
    server.init(slots)
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "TF_INTRAOP", "TF_INTEROP", "TF_NUM_INTRAOP")}
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), *map(str, arguments)],
            env={**os.environ, **threads, **quiet, **shared, **create_slot_env_vars(slot)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for slot in slots
    ]
    try:
        yield processes
    finally:
        for process in processes:
            with process:  # closes its pipe and waits for it
                process.kill()
        server.stop()
        server._httpd.server_close()  # which `stop` leaves open


def ended(processes: list["subprocess.Popen[str]"]) -> list[Ended]:
    """How they end."""
    outputs = [process.communicate()[0] for process in processes]
    return [
        Ended(exit_code=process.returncode, output=output) for process, output in zip(processes, outputs, strict=True)
    ]
