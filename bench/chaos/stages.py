"""Kills publishers, exporters and servers at random moments under load, and checks that nothing is lost or left behind.

    python -m bench.chaos.stages --kills 50

A server that follows versions serves clients throughout, and is restarted when it ends, as by a service manager. After
each kill, every artifact must load completely, in its old or new version. At the end, after one undisturbed run of each
stage, no files or processes of the killed ones may remain.
"""

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.harness.fixtures import make_model
from bench.harness.report import scratch_directory
from rankline.recipes.workspace import Workspace
from rankline.serving.client import Client, ClientConfig
from rankline.serving.repository.ensemble import ExportedEnsemble, versions
from rankline.serving.server.ports import LOOPBACK, choose_ports, free_port
from rankline.serving.triton.step import MANIFEST_PARAMETER, check_step
from rankline.workflows.core.errors import RanklineError, ServerError, ServingError
from rankline.workflows.core.progress import background_thread
from rankline.workflows.storage.artifacts import load_manifest

KINDS = ("publisher", "exporter", "server")
_NUM_CLIENTS = 2
_RESTART_TIMEOUT_S = 120.0  # time limit for a restarted server to respond
_LOOK_S = 0.02
_SHARE = 0.8  # of an undisturbed run, so that most are still running when killed
_PUBLISH = """
import sys
from pathlib import Path
from rankline.workflows.storage.artifacts import publish
with publish(Path(sys.argv[1]), "thing") as staging:
    for number in range(20):
        (staging / f"{number}.bin").write_bytes(bytes([number]) * 2_000_000)
"""


@dataclass
class Seen:
    """Observations of the clients."""

    answers: int = 0  # number of responses
    wrong: int = 0  # responses with scores that are not probabilities
    outages_s: list[float] = field(default_factory=list)  # from a client's last response before an error to its next


class Server:
    """Runs `rankline serve --watch`, and restarts it whenever it ends."""

    def __init__(self, program: str, workspace: Workspace, log: Path) -> None:
        port = _port()
        self.url = f"{LOOPBACK}:{port}"
        repository = ["--repository", str(workspace.repository)]
        self._command = [program, "serve", workspace.recipe, *repository, "--port", str(port), "--watch"]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def processes(self) -> list[psutil.Process]:
        """Return the program, its cleanup process, and tritonserver."""
        with contextlib.suppress(psutil.Error):
            if self._process is not None:
                own = psutil.Process(self._process.pid)
                return [own, *own.children(recursive=True)]
        return []

    def keep_up(self, stop: threading.Event) -> None:
        with self._log.open("ab") as log:
            while not stop.is_set():
                self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
                while self._process.poll() is None and not stop.wait(_LOOK_S):
                    pass
                self._process.terminate()
                self._process.wait()


def _port() -> int:
    """Return a free port whose neighbors are free too."""
    while True:
        port = free_port()
        with contextlib.suppress(ServerError):
            choose_ports(before=port - 1, port=port, after=port + 1)
            return port


@contextlib.contextmanager
def _asking(url: str, ensemble: ExportedEnsemble, rows: dict[str, list[int]]) -> Iterator[Seen]:
    """Run clients that send requests without pause and do not retry."""
    seen = Seen()

    def ask(stop: threading.Event) -> None:
        last_s, has_failed = time.monotonic(), False
        with Client(url, ensemble.name, ClientConfig(timeout_s=10, retry_lost=False)) as client:
            while not stop.is_set():
                try:
                    scores = client.predict(rows)
                    seen.wrong += not ((scores > 0) & (scores < 1)).all()
                    seen.answers += 1
                    if has_failed:
                        seen.outages_s.append(time.monotonic() - last_s)
                    last_s, has_failed = time.monotonic(), False
                except ServingError:
                    has_failed = True
                    time.sleep(_LOOK_S)

    with contextlib.ExitStack() as stack:
        for _ in range(_NUM_CLIENTS):
            stack.enter_context(background_thread(ask))
        yield seen


def measure(kills: int, seed: int = 0) -> dict[str, object]:
    rng, counts = random.Random(seed), Counter[str]()
    with scratch_directory() as directory:
        workspace = Workspace(recipe="movielens", root=directory, repository=directory / "ours")
        prepared, _ = make_model(workspace)
        rows = {
            name: column[:3] for name, column in prepared.heldout().select(list(prepared.inputs)).to_pydict().items()
        }
        ensemble, artifact = ExportedEnsemble.load(workspace.ensemble), directory / "artifact"
        publisher = [sys.executable, "-c", _PUBLISH, str(artifact)]
        program = str(Path(sys.executable).with_name("rankline"))
        places = ["--work-dir", str(directory), "--repository", str(workspace.repository)]
        exporter = [program, "export", "movielens", *places, "--keep-versions", "2"]
        commands = {"publisher": publisher, "exporter": exporter}
        usual_s = {kind: _duration_s(command) for kind, command in commands.items()}
        server = Server(program, workspace, directory / "server.log")
        with background_thread(server.keep_up):
            _wait_for(server, ensemble, rows)
            with _asking(server.url, ensemble, rows) as seen:
                for number in range(kills):
                    kind = KINDS[number % len(KINDS)]
                    if kind == "server":
                        _kill_server(server, rng)
                        _wait_for(server, ensemble, rows)
                    else:
                        counts[kind] += _start_and_kill(commands[kind], rng.uniform(0, _SHARE * usual_s[kind]))
                    _check(workspace.ensemble, artifact)
                for command in commands.values():
                    _duration_s(command)
                _check(workspace.ensemble, artifact)
                _wait_for(server, ExportedEnsemble.load(workspace.ensemble), rows)
            pids = [process.pid for process in server.processes()]
        hidden = (workspace.ensemble.glob(".export-*"), directory.glob(".*.rankline-*"))
        left = [str(path) for paths in hidden for path in paths]
        left += [f"process {pid}" for pid in pids if psutil.pid_exists(pid)]
        left += [str(path) for path in Path(tempfile.gettempdir()).glob("rankline-server-*") if _is_of_nobody(path)]
        return {
            "kills": kills,
            "killed_at_work": dict(counts),
            "answers": seen.answers,
            "wrong_answers": seen.wrong,
            "outages": len(seen.outages_s),
            "longest_outage_s": max(seen.outages_s, default=0.0),
            "left_behind": left,
            "versions": [version.version for version in versions(workspace.ensemble)],
        }


def _duration_s(command: list[str]) -> float:
    begin = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    return time.monotonic() - begin


def _start_and_kill(command: list[str], after_s: float) -> bool:
    """Start a command and kill it; return whether it was still running when it was killed."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        process.wait(after_s)
        return False
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return True


def _kill_server(server: Server, rng: random.Random) -> None:
    """Kill a random process of the server: the program, its cleanup process, or tritonserver."""
    with contextlib.suppress(psutil.Error):
        rng.choice(server.processes()).kill()


def _wait_for(server: Server, ensemble: ExportedEnsemble, rows: dict[str, list[int]]) -> None:
    deadline_s = time.monotonic() + _RESTART_TIMEOUT_S
    while True:
        try:
            with Client(server.url, ensemble.name, timeout_s=2) as client:
                client.predict(rows)
            return
        except ServingError as error:
            if time.monotonic() > deadline_s:
                raise RanklineError(f"the server has not responded for {_RESTART_TIMEOUT_S:g} s: {error}") from None
            time.sleep(_LOOK_S)


def _check(repository: Path, artifact: Path) -> None:
    load_manifest(artifact, "thing")
    ExportedEnsemble.load(repository)
    for version in versions(repository):
        for step in version.steps:
            manifest = version.step_config(step).parameters[MANIFEST_PARAMETER].string_value
            check_step(repository / step, manifest)


def _is_of_nobody(home: Path) -> bool:
    """Whether the process that created a server's home directory has exited."""
    return not psutil.pid_exists(int(home.name.split("-")[2]))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.chaos.stages", description="Kills stages and servers.")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(json.dumps(measure(options.kills, options.seed), indent=2))


if __name__ == "__main__":
    main()
