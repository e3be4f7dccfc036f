"""The `rankline` command of this environment, the commands that documents show, and what a run has recorded."""

import atexit
import os
import re
import shlex
import signal
import sqlite3
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from tests.harness.commands.cli_server import RANKLINE, CliServer

_SERVER = CliServer()
atexit.register(_SERVER.stop)


def rankline(*arguments: str, cwd: Path, stdin: str | None = None) -> "subprocess.CompletedProcess[str]":
    """Run it to its end in a directory."""
    return _SERVER.run(*arguments, cwd=cwd, stdin=stdin)


def recorded(workplace: Path, query: str) -> list[tuple[str, ...]]:
    """What MLflow's store of a workplace answers; nothing while it is being made."""
    if not (workplace / "work/mlflow.db").exists():
        return []
    with closing(sqlite3.connect(workplace / "work/mlflow.db", timeout=30)) as connection:
        try:
            return connection.execute(query).fetchall()
        except sqlite3.OperationalError:  # no such table yet
            return []


def commands(document: str) -> list[str]:
    """The lines behind a prompt in a document's consoles."""
    blocks = re.findall(r"```console\n(.*?)```", document, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def shortened(command: str, shorter: Mapping[str, str]) -> str:
    """A command of a document with what makes it short in a test, by what it begins with."""
    more = next((more for begin, more in shorter.items() if command.startswith(begin)), "")
    return f"{command} {more}"


def typed(command: str, cwd: Path) -> str:
    """Run a command of a document, which is one of `rankline`, to its end; what it says."""
    program, *arguments = shlex.split(command)
    assert program == "rankline", command
    done = rankline(*arguments, cwd=cwd)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout


def started(command: str, cwd: Path) -> "subprocess.Popen[str]":
    """A command as a person types it, with the programs of this environment; one stream for all that it says."""
    return subprocess.Popen(
        ["bash", "-c", command],
        cwd=cwd,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
            "PATH": f"{RANKLINE.parent}:{os.environ['PATH']}",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@contextmanager
def served(command: str, cwd: Path) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A `rankline serve` as a person types it, on a free port until Ctrl-C, and where its gRPC listens."""
    with started(f"exec {command} --port 0", cwd) as process:
        assert process.stdout is not None
        try:
            said = []
            for line in process.stdout:
                said.append(line)
                if line.startswith("gRPC"):
                    yield process, line.split()[1]
                    break
            else:
                raise AssertionError(f"{command} ended: {''.join(said)}")
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate()
