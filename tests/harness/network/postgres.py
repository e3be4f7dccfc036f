"""PostgreSQL from Debian's packages, for as long as a test wants it."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from tests.harness.process.waiting import wait_until

PROGRAMS = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)
"""Where they are; None where they are not installed."""
_USER = "postgres"  # whom the packages make: root may not run it


@contextmanager
def postgres() -> Iterator[str]:
    """A server with an empty database, reached through a socket that its user and root can enter.

    Yields:
        Its URI, for SQLAlchemy.
    """
    assert PROGRAMS is not None
    directory = Path(mkdtemp(prefix="rankline-postgres-"))  # pytest's own is closed to other users
    as_user = []
    if os.getuid() == 0:
        shutil.chown(directory, _USER, _USER)
        as_user = ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups"]
    data = directory / "data"
    making = [PROGRAMS / "initdb", "--pgdata", data, "--username=mlflow", "--auth=trust", "--no-sync"]
    subprocess.run([*as_user, *map(str, making)], check=True, capture_output=True, cwd=directory)
    running = [PROGRAMS / "postgres", "-D", data, "-k", directory, "-c", "listen_addresses=", "-c", "fsync=off"]
    with (directory / "log").open("wb") as log:
        server = subprocess.Popen([*as_user, *map(str, running)], stdout=log, stderr=log, cwd=directory)
    asking = [PROGRAMS / "pg_isready", "--host", directory, "--username=mlflow"]
    try:
        wait_until(lambda: subprocess.run([*map(str, asking)], capture_output=True).returncode == 0)
        yield f"postgresql+psycopg2://mlflow@/postgres?host={directory}"
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(directory)
