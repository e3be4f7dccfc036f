"""tracking: what it costs a training to be recorded, and how long verbs that look at 1,000 runs take.

The same model is trained with its runs in a file, on a server, on one that accepts and never answers, and with none at
all. What counts is the time that the training itself spends on recording, and the processor time of the threads that
deliver and sample beside it, which on two cores is the most that they can take from it. A difference of two durations
would be lost in the noise of a machine. What a run waits at its beginning and end does not grow with it, and is told
apart, as is the time of keeping model and files.
"""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from bench.models import prepare_rows
from bench.report import Report, medians_of, scratch_directory
from rankline.recipes import recipe_named
from rankline.ui import serve_pages
from rankline.workspace import Workspace
from serving.ports import Port, choose_ports
from training.config import TrainConfig
from training.observers import Observer
from training.tracking import RunLog, TrackingConfig
from training.tracking.delivery import Deliverer
from training.train import train
from workflows.prepared import PreparedData

_THREADS = ("tracking", "system metrics")
_FIGURES, _FILES = ("log_params", "log_dataset", "log_metrics", "set_tags", "note"), ("log_model", "log_artifact")
_WAITS = ("opened", "finish")
_NUM_RUNS = 1000
_METRICS_OF_A_RUN, _PARAMS_OF_A_RUN = 20, 50


def run(repeats: int, num_rows: int = 100_000, epochs: int = 15, num_runs: int = _NUM_RUNS) -> Report:
    """Train with each store in turn, and look at a store of many runs.

    Args:
        repeats: turns of each side.
        num_rows, epochs: of a training.
        num_runs: of the store that is looked at.
    """
    with scratch_directory() as root, ExitStack() as stack:
        stack.enter_context(_in_directory(root))  # where a server puts the artifacts of its store
        workspace = Workspace(recipe="movielens", root=root / "work", repository=root / "repository")
        recipe = recipe_named(workspace.recipe)
        prepared = prepare_rows(workspace, recipe, num_rows)
        config = replace(recipe.train, epochs=epochs, early_stopping_patience=0)
        server, _ = stack.enter_context(serve_pages(f"sqlite:///{root / 'server.db'}", 0))
        stores = {
            "file": None,
            "server": server,
            "server that never answers": stack.enter_context(_silent()),
            "no server": _nobody(),
        }
        turns = [
            {side: _train(prepared, root / side, config, store) for side, store in stores.items()}
            for _ in range(repeats)
        ]
        results = medians_of(
            {side: {name: [turn[side][name] for turn in turns] for name in turns[0][side]} for side in stores}
        )
        overhead = max(figures["overhead"] for figures in results.values())
        results |= _looks(root / "many", num_runs, repeats)
    slowest = max(results[verb]["seconds"] for verb in _VERBS)
    return Report(
        name="tracking", results=results, ratios={"tracking_overhead": overhead, "looking_at_1000_runs_s": slowest}
    )


@dataclass
class _Clock(Observer):
    """Observes one training.

    Attributes:
        begin, end: of the training, in seconds; of it all between opening the run and publishing.
        threads_s: processor time of the threads beside it.
        spent: seconds in each method that is clocked.
    """

    begin: float = 0.0
    end: float = 0.0
    threads_s: float = 0.0
    spent: dict[str, float] = field(default_factory=dict)

    def observe(self, _: RunLog) -> "list[Observer]":
        """From the first step on."""
        self.begin, self.threads_s = time.perf_counter(), -_beside_s()
        return [self]

    def close(self) -> None:
        self.end = time.perf_counter()
        self.threads_s += _beside_s()

    @contextmanager
    def clocked(self, kind: type, methods: tuple[str, ...]) -> Iterator[None]:
        """Clock methods of a class in the thread that trains, as long as the block lasts."""
        before = {name: getattr(kind, name) for name in methods}
        for name, method in before.items():
            setattr(kind, name, self._clocked(name, method))
        try:
            yield
        finally:
            for name, method in before.items():
                setattr(kind, name, method)

    def _clocked(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            try:
                return method(*arguments, **options)
            finally:
                if threading.current_thread() is threading.main_thread():
                    self.spent[name] = self.spent.get(name, 0.0) + time.perf_counter() - begin

        return call

    def figures(self) -> dict[str, float]:
        """What came out."""
        seconds = self.end - self.begin
        logging, files, waiting = (
            sum(self.spent.get(name, 0.0) for name in names) for names in (_FIGURES, _FILES, _WAITS)
        )
        return {
            "training_s": seconds,
            "overhead": (logging + self.threads_s) / seconds,
            "logging_ms": logging * 1e3,
            "threads_ms": self.threads_s * 1e3,
            "files_s": files,
            "waits_s": waiting,
        }


def _beside_s() -> float:
    """Processor time so far of the threads that deliver and sample."""
    beside = [one.ident for one in threading.enumerate() if one.name in _THREADS]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in beside if ident is not None)


def _train(prepared: PreparedData, directory: Path, config: TrainConfig, server: str | None) -> dict[str, float]:
    clock = _Clock()
    tracking = TrackingConfig(directory=directory, experiment="tracking", server=server)
    with clock.clocked(RunLog, (*_FIGURES, *_FILES)), clock.clocked(Deliverer, _WAITS):
        train(prepared, directory / "model", config, tracking=tracking, observers=clock.observe)
    return clock.figures()


@contextmanager
def _silent() -> Iterator[str]:
    """Address of what accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def _nobody() -> str:
    """Address at which nobody listens."""
    (port,) = choose_ports(Port())
    return f"http://127.0.0.1:{port}"


@contextmanager
def _in_directory(directory: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)


_VERBS: Mapping[str, Callable[[list[str]], list[str]]] = {
    "runs": lambda _: ["runs"],
    "runs, all": lambda ids: ["runs", "--limit", str(len(ids))],
    "compare": lambda ids: ["compare", *ids[:2]],
}
"""What is typed, of the ids of the runs."""


def _looks(directory: Path, num_runs: int, repeats: int) -> dict[str, dict[str, float]]:
    """Seconds, and processor seconds, of a process that looks at many runs."""
    ids = _many_runs(directory, num_runs)
    environment = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    results = {}
    for verb, typed in _VERBS.items():
        command = [str(Path(sys.executable).with_name("rankline")), *typed(ids), "--work-dir", str(directory)]
        start = partial(subprocess.run, command, check=True, capture_output=True, env=environment)
        _took(start)  # what it imports is in the page cache from then on
        took = [_took(start) for _ in range(repeats)]
        results[verb] = {
            "seconds": median(seconds for seconds, _ in took),
            "cpu_s": median(cpu_s for _, cpu_s in took),
        }
    return results


def _took(command: Callable[[], object]) -> tuple[float, float]:
    """Seconds, and processor seconds of what it starts."""
    begin, before = time.perf_counter(), os.times()
    command()
    after = os.times()
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - begin, cpu_s


def _many_runs(directory: Path, num_runs: int) -> list[str]:
    directory.mkdir()
    client = MlflowClient(tracking_uri=f"sqlite:///{directory / 'mlflow.db'}")
    experiment = client.create_experiment("movielens", artifact_location=(directory / "mlartifacts").as_uri())
    ids = []
    for number in range(num_runs):
        run_id = client.create_run(experiment, run_name=f"mlp, seed {number}").info.run_id
        metrics = [Metric(f"model/valid_{name}", number / num_runs, number, 1) for name in range(_METRICS_OF_A_RUN - 1)]
        params = [Param(f"choice_{name}", str(number)) for name in range(_PARAMS_OF_A_RUN)]
        client.log_batch(run_id, [*metrics, Metric("model/valid_auc", 0.7, number, 1)], params)
        client.set_terminated(run_id)
        ids.append(run_id)
    return ids
