"""MLflow's UI for a store, in a child process."""

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from rankline.serving.server.ports import choose_ports
from rankline.workflows.core.errors import ServingError
from rankline.workflows.core.tracking_uri import with_credentials

_START_S = 120.0
_STOP_S = 10.0
_LOOK_EVERY_S = 0.5


@contextmanager
def serve_pages(uri: str, port: int) -> Iterator[tuple[str, Callable[[threading.Event], None] | None]]:
    """Start MLflow's server for a store on the loopback interface, and stop it when the block ends.

    Yields:
        The address of the pages, and a function that waits for an event. The function is None if the store is a server,
        which has its own pages.

    Raises:
        ServerError: the port is taken.
        ServingError: the server does not start, or ends unexpectedly.
    """
    if uri.startswith(("http://", "https://")):
        yield uri.rstrip("/"), None
        return
    port = choose_ports(port=port)["port"]
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "ui", "--port", str(port), "--workers", "1"]
    environment = {
        **os.environ,
        "MLFLOW_BACKEND_STORE_URI": with_credentials(uri),  # process arguments are visible to all users
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # starts processes that are not needed here
    }
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        _wait_until_up(process, address)
        yield address, partial(_wait, process)
    finally:
        for kind in (signal.SIGTERM, signal.SIGKILL):  # for its session, since it has child processes
            with suppress(ProcessLookupError):
                os.killpg(process.pid, kind)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)


def _wait_until_up(process: "subprocess.Popen[bytes]", address: str) -> None:
    limit = time.monotonic() + _START_S
    while time.monotonic() < limit:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise ServingError(f"MLflow's server did not come up within {_START_S:g} s, or ended with {process.poll()}.")


def _wait(process: "subprocess.Popen[bytes]", stop: threading.Event) -> None:
    while not stop.wait(_LOOK_EVERY_S):
        if process.poll() is not None:
            raise ServingError(f"MLflow's server ended with status {process.returncode}.")
