"""promotion: time until a new version is active, and the number of requests that fail in the meantime.

One server receives requests without pause while versions are promoted and rolled back. Then a second server follows the
alias in MLflow's registry from its own repository. Each repeat consists of four turns of each kind.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from mlflow import MlflowClient

from bench.harness.closed_loop import Asked, asking
from bench.harness.fixtures import make_model, request_rows
from bench.harness.report import Report, scratch_directory
from rankline.api import pipeline
from rankline.recipes import recipe_named
from rankline.recipes.workspace import Workspace
from rankline.registry.activation import make_active, register
from rankline.registry.alias_follower import Alias, AliasFollower
from rankline.runs.store import CHAMPION
from rankline.serving.client import ClientConfig
from rankline.serving.export.config import ExportConfig
from rankline.serving.repository.ensemble import ExportedEnsemble, before, versions
from rankline.serving.server.embedded import EmbeddedServer
from rankline.serving.server.supervisor import Supervisor, config_of
from rankline.terminal.console import Stages
from rankline.workflows.core.progress import background_thread

_TURNS = 4  # per repeat
_ROWS_OF_A_REQUEST = 16
_LOOK_EVERY_S = 0.005
_BETWEEN_S = 0.2  # load between turns


@dataclass
class _Served:
    supervisor: Supervisor
    asked: Asked

    def seconds_until(self, version: int, move: Callable[[], object]) -> float:
        """Return the time from the start of `move` until `version` is active."""
        time.sleep(_BETWEEN_S)
        begin = time.perf_counter()
        move()
        while self.supervisor.serving.version != version:
            time.sleep(_LOOK_EVERY_S)
        return time.perf_counter() - begin


def run(repeats: int, num_rows: int = 20_000) -> Report:
    with scratch_directory() as root:
        workspace = Workspace(recipe="movielens", root=root / "work", repository=root / "repository")
        rows = _two_versions(workspace, num_rows)
        uri = ExportedEnsemble.load(workspace.ensemble).tracking_uri
        path, turns = workspace.ensemble, range(repeats * _TURNS)
        first, second = versions(path)
        for ensemble in (first, second):
            register(ensemble, uri)
        seconds: dict[str, list[float]] = {"promote": [], "rollback": [], "follow": []}
        with _under_load(path, rows) as beside:
            for _ in turns:
                seconds["promote"].append(beside.seconds_until(2, lambda: make_active(second)))
                seconds["rollback"].append(beside.seconds_until(1, lambda: make_active(before(path), is_urgent=True)))
        with _following(uri, root / "elsewhere" / "movielens") as elsewhere, _under_load(elsewhere, rows) as away:
            client = MlflowClient(tracking_uri=uri)
            for turn in turns:
                version = 2 - turn % 2
                move = _alias_mover(client, version)
                seconds["follow"].append(away.seconds_until(version, move))
    served = {"promote": beside, "rollback": beside, "follow": away}
    return Report(name="promotion", results=_results(seconds, served), ratios=_ratios(seconds, [beside, away]))


def _two_versions(workspace: Workspace, num_rows: int) -> pa.Table:
    prepared, _ = make_model(workspace, num_rows, small_layers=True)
    with Stages(["export"]) as stages:
        recipe = recipe_named(workspace.recipe)
        pipeline.export(recipe, ExportConfig(), prepared, workspace, stages, promote=False)
    return request_rows(prepared).slice(0, _ROWS_OF_A_REQUEST)


def _alias_mover(client: MlflowClient, version: int) -> Callable[[], None]:
    """Return a function that moves the alias as MLflow's UI does; registered numbers equal version numbers."""
    return lambda: client.set_registered_model_alias("movielens", CHAMPION, str(version))


@contextmanager
def _following(uri: str, path: Path) -> Iterator[Path]:
    follower = AliasFollower(Alias("movielens", CHAMPION), path, uri, lambda _: None)
    follower.follow()
    with background_thread(follower.run):
        yield path


@contextmanager
def _under_load(path: Path, rows: pa.Table) -> Iterator[_Served]:
    """Run a server that switches to new versions, and clients that send requests without pause."""
    ensemble = ExportedEnsemble.load(path)
    with EmbeddedServer(config_of(ensemble)) as server:
        supervisor = Supervisor(server, ensemble, follow_versions=True, report=lambda _: None)
        config = ClientConfig(retry_lost=False)
        with background_thread(supervisor.run), asking(server.endpoints.grpc, ensemble.name, rows, config) as asked:
            yield _Served(supervisor, asked)


def _results(seconds: Mapping[str, Sequence[float]], served: Mapping[str, _Served]) -> dict[str, dict[str, float]]:
    return {
        side: {
            "turns": len(values),
            "median_s": statistics.median(values),
            "max_s": max(values),
            "requests": served[side].asked.num_answers,
        }
        for side, values in seconds.items()
    }


def _ratios(seconds: Mapping[str, Sequence[float]], served: Sequence[_Served]) -> dict[str, float]:
    return {
        "failed_requests": sum(len(one.asked.failures) for one in served),
        "slowest_rollback_s": max(seconds["rollback"]),
        "slowest_follow_s": max(seconds["follow"]),
    }
