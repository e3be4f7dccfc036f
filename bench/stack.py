"""stack: what a container costs the server, and how large the images are.

The same export in an image of `rankline image`, asked through its published port, and on a server outside: started one
after the other, then each request once by each way. Needs an engine, and what its images are built on:

    scripts/container-engine.sh sh -c 'scripts/base-images.sh; .venv/bin/python -m bench stack'
"""

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from statistics import median

import numpy as np

from bench.models import make_model, request_rows
from bench.replicas import medians_ms
from bench.report import Report, scratch_directory
from rankline.workspace import Workspace
from serving.client import Client
from serving.ensemble import ExportedEnsemble
from serving.export import export_ensemble
from serving.export_config import ExportConfig
from serving.image import build_image
from serving.ports import Port, choose_ports
from serving.server import EmbeddedServer
from serving.supervise import config_of
from workflows.errors import ServingError

_ROWS = 20_000
_NUM_REQUESTS = 400
_NAME = "rankline-bench-stack"


def run(repeats: int, recipe: str = "movielens") -> Report:
    """Sizes, starts, latencies, and how long a server that was killed is away."""
    with scratch_directory() as directory, ExitStack() as stack:
        workspace = Workspace(recipe=recipe, root=directory / "work", repository=directory / "repository")
        prepared, trained = make_model(workspace, _ROWS)
        ensemble = ExportedEnsemble.load(workspace.ensemble)
        images = {"tensorflow": build_image(ensemble, f"{_NAME}:tensorflow")}
        small = export_ensemble(prepared, trained, directory / "onnx", ExportConfig(engine="onnx"), name=recipe)
        images["onnx"] = build_image(small, f"{_NAME}:onnx")

        starts_s: dict[str, list[float]] = {"process": [], "container": []}
        for _ in range(repeats):
            begin = time.perf_counter()
            with EmbeddedServer(config_of(ensemble)):
                starts_s["process"].append(time.perf_counter() - begin)
            begin = time.perf_counter()
            with _container(images["tensorflow"].tag) as url, _until_it_answers(url, recipe):
                starts_s["container"].append(time.perf_counter() - begin)

        server = stack.enter_context(EmbeddedServer(config_of(ensemble)))
        url = stack.enter_context(_container(images["tensorflow"].tag))
        clients = {
            "process": stack.enter_context(Client(server.endpoints.grpc, recipe)),
            "container": stack.enter_context(_until_it_answers(url, recipe)),
        }
        rows = request_rows(prepared)
        chosen = np.random.default_rng(0).integers(0, len(rows), repeats * _NUM_REQUESTS)
        p50_ms = medians_ms(clients, [rows.slice(int(row), 1) for row in chosen])
        away_s = [_away_s(url, recipe) for _ in range(repeats)]
    results = {side: {"start_s": median(starts_s[side]), "p50_ms": p50_ms[side]} for side in clients}
    results["container"]["killed_to_answer_s"] = max(away_s)
    for engine, image in images.items():
        results[f"image, {engine}"] = {"megabytes": image.num_bytes / 1e6}
    ratios = {
        "start_over_process": results["container"]["start_s"] / results["process"]["start_s"],
        "p50_over_process": p50_ms["container"] / p50_ms["process"],
    }
    return Report(name="stack", results=results, ratios=ratios)


@contextmanager
def _container(tag: str) -> Iterator[str]:
    """A server in a container that starts again when it ends; HOST:PORT."""
    (port,) = choose_ports(Port(name="grpc_port", host="127.0.0.1", number=0))
    options = ["--detach", "--init", "--read-only", "--restart", "unless-stopped", "--name", _NAME]
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


def _away_s(url: str, model: str) -> float:
    """From the server's death until the model answers again."""
    begin = time.perf_counter()
    _docker("exec", _NAME, "sh", "-c", "kill -9 $(pidof tritonserver)")
    with _until_it_answers(url, model):
        return time.perf_counter() - begin


def _docker(*arguments: str) -> None:
    subprocess.run(["docker", *arguments], stdout=subprocess.DEVNULL, check=True)
