"""tune: throughput of the configuration that `rankline tune --slo` finds, against an exhaustive search.

The tuner searches with its default settings. Then every configuration is measured for as long as the tuner measures its
finalists. Both winners are measured again in turns, so that luck during a search does not count.
"""

import statistics
import time

from bench.harness.fixtures import make_model
from bench.harness.report import Report, scratch_directory
from rankline.recipes import recipe_named
from rankline.recipes.workspace import Workspace
from rankline.serving.export.config import ExportConfig
from rankline.serving.loadtest.config import Slo
from rankline.serving.loadtest.serving_config import LONG, Effort, Trial, space, try_config
from rankline.training.tracking import TrackingConfig
from rankline.tuning.serving import Trials, available_engines, tune_serving
from rankline.workflows.core.errors import ServingError
from rankline.workflows.core.machine import num_cores
from rankline.workflows.core.progress import SILENT

_SLO = "p99=10ms"
_VARIED = ("engine", "fused", "instances", "threads")  # with delays, an exhaustive search takes three times as long
_TIME_LIMIT_S = 900.0


def run(
    repeats: int,
    num_rows: int = 50_000,
    slo: str = _SLO,
    varied: tuple[str, ...] = _VARIED,
    time_limit_s: float = _TIME_LIMIT_S,
    effort: Effort = LONG,
) -> Report:
    with scratch_directory() as root:
        workspace = Workspace(recipe="movielens", root=root / "work", repository=root / "repository")
        recipe = recipe_named(workspace.recipe)
        prepared, trained = make_model(workspace, num_rows)
        target = Slo.parse(slo)
        begin = time.perf_counter()
        tuned = tune_serving(
            recipe,
            prepared,
            trained,
            slo=slo,
            batch_size=1,
            only=varied,
            time_limit_s=time_limit_s,
            tracking=TrackingConfig(directory=workspace.root, experiment=recipe.name),
            directory=workspace.tuning,
            log_path=workspace.log,
            progress=SILENT,
        )
        seconds = {"tuner": time.perf_counter() - begin}
        configs = space(recipe.serving, available_engines(trained, None), target.bound_ms, num_cores(), varied)
        with Trials(prepared, trained, name=recipe.name, slo=target, batch_size=1, log_path=workspace.log) as trials:
            begin = time.perf_counter()
            found = [try_config(config, trials.serve, effort) for config in configs]
            seconds["exhaustive"] = time.perf_counter() - begin
            winners = {"tuner": tuned.best.config, "exhaustive": _best(found)}
            rates: dict[str, list[float]] = {side: [] for side in winners}
            for _ in range(repeats):
                for side, config in winners.items():
                    rates[side].append(try_config(config, trials.serve, effort).rate_per_s or 0.0)
    tried = {"tuner": tuned.tried, "exhaustive": found}
    results = {
        side: {
            "requests_per_s": statistics.median(rates[side]),
            "search_s": seconds[side],
            "configurations": len(tried[side]),
            "measurements": sum(len(one.readings) for one in tried[side]),
            **{name: float(value) for name in varied if isinstance(value := getattr(config, name), bool | int | float)},
            "is_onnx": float(config.engine == "onnx"),
        }
        for side, config in winners.items()
    }
    ratio = statistics.median(rates["tuner"]) / statistics.median(rates["exhaustive"])
    ratios = {"tuned_over_exhaustive": ratio, "time_over_exhaustive": seconds["tuner"] / seconds["exhaustive"]}
    return Report(name="tune", results=results, ratios=ratios)


def _best(tried: list[Trial]) -> ExportConfig:
    best = max(tried, key=lambda one: one.rate_per_s or 0.0)
    if best.rate_per_s is None:
        raise ServingError(f"no configuration meets the target. The first one: {tried[0].last}.")
    return best.config
