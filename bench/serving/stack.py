"""stack: overhead of a container for the server, image sizes, and requests lost during changes.

The same export runs in an image of `rankline image`, called through its published port, and on a server outside. Both
are started one after the other, then each request is sent to both. "container, no proxy" is the container at its own
address; the difference is Docker's proxy for published ports. Then each repeat makes these changes while clients with
default settings send requests: a new version, a rollback, a broken version, killing tritonserver, and killing its
supervisor. Needs a container engine and the base images:

    scripts/container-engine.sh sh -c 'scripts/base-images.sh; .venv/bin/python -m bench stack'
"""

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

from bench.harness.closed_loop import Asked, asking
from bench.harness.fixtures import make_model, request_rows
from bench.harness.report import Report, scratch_directory
from rankline.recipes.workspace import Workspace
from rankline.serving.client import Client
from rankline.serving.export.config import ExportConfig
from rankline.serving.export.docker_image import build_image
from rankline.serving.export.exporter import export_ensemble
from rankline.serving.repository.ensemble import CONFIG, ExportedEnsemble, before, versions
from rankline.serving.server.embedded import EmbeddedServer
from rankline.serving.server.ports import free_port
from rankline.serving.server.supervisor import config_of
from rankline.workflows.core.errors import ServingError

_ROWS = 20_000
_NUM_REQUESTS = 400
_LOOK_S = 0.05
_STANDS_AFTER_S = 11.0  # Docker doubles its restart delay for containers that die within 10 s
_NAME = "rankline-bench-stack"
_KILLS = {
    "tritonserver": "kill -9 $(pidof tritonserver)",
    "supervisor": "kill -9 $(cat /proc/1/task/1/children)",
}


def run(repeats: int, recipe: str = "movielens", num_rows: int = _ROWS) -> Report:
    with scratch_directory() as directory:
        workspace = Workspace(recipe=recipe, root=directory / "work", repository=directory / "repository")
        prepared, trained = make_model(workspace, num_rows)
        ensemble = ExportedEnsemble.load(workspace.ensemble)
        export = partial(
            export_ensemble, prepared, trained, directory / "onnx", ExportConfig(engine="onnx"), name=recipe
        )
        images = {"tensorflow": build_image(ensemble, f"{_NAME}:tensorflow")}
        images["onnx"] = build_image(export(), f"{_NAME}:onnx")
        sides = _compare(ensemble, images["tensorflow"].tag, request_rows(prepared), repeats)
        asked, away_s = _change(images["onnx"].tag, export, request_rows(prepared).slice(0, 1), repeats)
    results = {side: dict(figures) for side, figures in sides.items()}
    for killed, seconds in away_s.items():
        results["container"][f"{killed}_killed_to_answer_s"] = max(seconds)
    results["under load"] = {"requests": asked.num_answers + len(asked.failures), "failed": len(asked.failures)}
    for engine, image in images.items():
        results[f"image, {engine}"] = {"megabytes": image.num_bytes / 1e6}
    ratios = {
        f"{figure}_over_process": sides["container"][f"{figure}_{unit}"] / sides["process"][f"{figure}_{unit}"]
        for figure, unit in (("start", "s"), ("p50", "ms"))
    }
    ratios["p50_no_proxy_over_process"] = sides["container, no proxy"]["p50_ms"] / sides["process"]["p50_ms"]
    return Report(name="stack", results=results, ratios={**ratios, "requests_failed": float(len(asked.failures))})


def _compare(ensemble: ExportedEnsemble, tag: str, rows: pa.Table, repeats: int) -> dict[str, dict[str, float]]:
    """Return the start time in s and the median latency of a row in ms for each side."""
    starts_s: dict[str, list[float]] = {"process": [], "container": []}
    for _ in range(repeats):
        begin = time.perf_counter()
        with EmbeddedServer(config_of(ensemble)):
            starts_s["process"].append(time.perf_counter() - begin)
        begin = time.perf_counter()
        with _container(tag) as url, _until_it_answers(url, ensemble.name):
            starts_s["container"].append(time.perf_counter() - begin)
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer(config_of(ensemble)))
        url = stack.enter_context(_container(tag))
        inside = _docker("inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", _NAME)
        urls = {"process": server.endpoints.grpc, "container": url, "container, no proxy": f"{inside}:8001"}
        clients = {side: stack.enter_context(_until_it_answers(url, ensemble.name)) for side, url in urls.items()}
        chosen = np.random.default_rng(0).integers(0, len(rows), repeats * _NUM_REQUESTS)
        p50_ms = _medians_ms(clients, [rows.slice(int(row), 1) for row in chosen])
    started = {side: {"start_s": median(seconds)} for side, seconds in starts_s.items()}
    return {side: {**started.get(side, {}), "p50_ms": p50_ms[side]} for side in urls}


def _medians_ms(clients: Mapping[str, Client], batches: Sequence[pa.Table]) -> dict[str, float]:
    """Return the median latency of each client over the batches, after the first tenth as warm-up."""
    latencies_ns: dict[str, list[int]] = {side: [] for side in clients}
    for batch in batches:
        for side, client in clients.items():
            request = client.prepare(batch)
            begin = time.perf_counter_ns()
            client.infer(request)
            latencies_ns[side].append(time.perf_counter_ns() - begin)
    return {side: float(np.median(values[len(values) // 10 :])) / 1e6 for side, values in latencies_ns.items()}


def _change(
    tag: str, export: Callable[[], ExportedEnsemble], rows: pa.Table, repeats: int
) -> tuple[Asked, dict[str, list[float]]]:
    """Export, roll back, break and kill under load, with a repository mounted into the container."""
    ensemble = export()
    path, name = ensemble.path, ensemble.name
    path.parent.chmod(0o755)  # for the container's user 1000
    away_s: dict[str, list[float]] = {killed: [] for killed in _KILLS}
    with _container(tag, "--volume", f"{path}:/models:ro") as url:
        while not _num_logged(" is active"):
            time.sleep(_LOOK_S)
        with asking(url, name, rows) as asked:
            for number in range(repeats):
                if number:
                    time.sleep(_STANDS_AFTER_S)
                _until_logged(" is active", export)
                _until_logged(" is active", lambda: before(path).activate())
                _until_logged(" cannot be served", lambda: _break_newest(path))
                before(path).activate()
                for killed, script in _KILLS.items():
                    away_s[killed].append(_away_s(url, name, script))
    return asked, away_s


def _break_newest(path: Path) -> None:
    """Flip a byte in the newest version's model, and make the version active."""
    newest = versions(path)[-1]
    model = path / newest.steps[-1] / "1/model.onnx"
    content = bytearray(model.read_bytes())
    content[len(content) // 2] ^= 0xFF
    model.write_bytes(content)
    config = path / newest.name / str(newest.version) / CONFIG
    (path / newest.name / CONFIG).write_bytes(config.read_bytes())


def _until_logged(words: str, change: Callable[[], object]) -> None:
    """Make a change, and wait until the container has logged `words` once more."""
    before_change = _num_logged(words)
    change()
    while _num_logged(words) == before_change:
        time.sleep(_LOOK_S)


def _num_logged(words: str) -> int:
    return _docker("logs", _NAME, error=subprocess.STDOUT).count(words)


@contextmanager
def _container(tag: str, *options: str) -> Iterator[str]:
    """Run a server in a container that restarts when it ends, and yield its HOST:PORT."""
    port = free_port()
    options = (*options, "--detach", "--init", "--read-only", "--restart", "unless-stopped", "--name", _NAME)
    _docker("run", *options, "--publish", f"127.0.0.1:{port}:8001", tag)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        _docker("rm", "--force", _NAME)


def _until_it_answers(url: str, model: str) -> Client:
    while True:
        with suppress(ServingError):
            return Client(url, model)
        time.sleep(0.02)


def _away_s(url: str, model: str, script: str) -> float:
    """Return the time from a process's death until the model responds again."""
    begin = time.perf_counter()
    with suppress(subprocess.CalledProcessError):  # the shell may end with the container
        _docker("exec", _NAME, "sh", "-c", script)
    with _until_it_answers(url, model):
        return time.perf_counter() - begin


def _docker(*arguments: str, error: int | None = None) -> str:
    done = subprocess.run(["docker", *arguments], stdout=subprocess.PIPE, stderr=error, text=True, check=True)
    return done.stdout.strip()
