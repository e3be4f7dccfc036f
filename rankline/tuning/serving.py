"""Search of `rankline tune --slo` for the serving configuration with the highest throughput under a latency bound.

Each configuration is an MLflow run. Its parent is the run of the search, whose parent is the run that trained the
model. The model repository stays unchanged until the best configuration is known.
"""

import json
import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mlflow import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID
from rich.console import Console
from rich.markup import escape

from rankline.recipes import Recipe
from rankline.recipes.workspace import REPOSITORY
from rankline.runs.store import ending_run
from rankline.scoring.backends import server_for
from rankline.serving.client import Client
from rankline.serving.engines import Engine, engine_for, engines_for
from rankline.serving.export.config import ExportConfig
from rankline.serving.export.exporter import CheckedExport, checked, exportable_of
from rankline.serving.loadtest.config import LoadConfig, Slo
from rankline.serving.loadtest.generator.worker_pool import STOPPED, Workers
from rankline.serving.loadtest.measurement import Bench, ScoreCheck, taken_columns
from rankline.serving.loadtest.rate import kept_up, measure_rate
from rankline.serving.loadtest.report.report import LoadResult
from rankline.serving.loadtest.runner import check_batch_sizes
from rankline.serving.loadtest.runs import Load
from rankline.serving.loadtest.serving_config import VARIED, Measure, Reading, Trial, name_of, search, space
from rankline.serving.loadtest.stats.percentiles import samples_needed
from rankline.serving.loadtest.summary import number
from rankline.terminal.commands import command, options_of
from rankline.terminal.console import print_table, show
from rankline.training.tracking import TrackingConfig, quiet
from rankline.training.tracking.upload import client_of, experiment_id
from rankline.workflows.core.errors import MissingExtraError, ServerError, ServingError
from rankline.workflows.core.machine import num_cores
from rankline.workflows.core.progress import Progress
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.schema.model_artifact import TrainedModel
from rankline.workflows.storage.artifacts import write_whole

_EVIDENCE = "serving.json"


@dataclass(frozen=True, kw_only=True)
class ServingTuned:
    """The result of a search for a serving configuration.

    Attributes:
        recipe: the recipe's argument on the command line.
        tried: all tried configurations, the best first.
        num_left: number of configurations that were not tried.
        run_id: MLflow run of the search, the parent of the configurations' runs.
        command: command that exports the best configuration.
    """

    recipe: str
    slo: str
    batch_size: int
    tried: Sequence[Trial]
    num_left: int
    run_id: str
    command: str

    @property
    def best(self) -> Trial:
        return self.tried[0]

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "tried": [one.to_dict() for one in self.tried]}

    def print(self, console: Console) -> None:
        label = self.slo.partition("=")[0].strip()
        last = [one.last for one in self.tried]
        configs = [one.config for one in self.tried]
        columns = {
            "engine": [str(config.engine) for config in configs],
            "steps": ["" if config.fused is None else "one" if config.fused else "two" for config in configs],
            "instances": [number(config.instances) for config in configs],
            "threads": [number(config.threads) for config in configs],
            "delay": [f"{config.batch_delay_ms:g} ms" if config.batch_delay_ms else "" for config in configs],
            "requests/s": [_outcome(one) for one in self.tried],
            f"{label} ms": [number(one.value_ms) if one else "–" for one in last],
            "at": [_load_of(one) for one in last],
            "MB": [number(one.memory_bytes and one.memory_bytes / 1e6) for one in self.tried],
        }
        print_table(console, {name: [escape(cell) for cell in cells] for name, cells in columns.items()})
        for one in self.tried:
            if one.failure:
                show(console, escape(f"{name_of(one.config)} failed: {one.failure}"))


def tune_serving(
    recipe: Recipe,
    prepared: PreparedData,
    trained: TrainedModel,
    *,
    slo: str,
    batch_size: int,
    only: Collection[str],
    time_limit_s: float,
    tracking: TrackingConfig,
    directory: Path,
    log_path: Path,
    progress: Progress,
    repository: Path = REPOSITORY,
) -> ServingTuned:
    """Search for the serving configuration with the highest request rate that meets a latency target such as p99=10ms.

    The recipe's `serving` is the first configuration; only the fields in `only` are varied.
    """
    target = Slo.parse(slo)
    check_batch_sizes([batch_size], recipe.serving.max_rows(with_candidates=bool(prepared.candidates)))
    engines = available_engines(trained, recipe.serving.engine)
    configs = space(recipe.serving, engines, target.bound_ms, num_cores(), only)
    with quiet():
        log = _Log(client_of(tracking.uri), tracking, trained, slo)
    with (
        ending_run(log.client, log.run_id),
        Trials(prepared, trained, name=recipe.name, slo=target, batch_size=batch_size, log_path=log_path) as trials,
    ):
        tried = search(configs, trials.serve, time_limit_s=time_limit_s, keep=log.keep, progress=progress)
        _check_reached(slo, tried)
        words = ["export", recipe.called, *_options(tried[0].config)]
        tuned = ServingTuned(
            recipe=recipe.called,
            slo=slo,
            batch_size=batch_size,
            tried=tried,
            num_left=len(configs) - len(tried),
            run_id=log.run_id,
            command=command(*words, work_dir=tracking.directory, repository=repository),
        )
        directory.mkdir(parents=True, exist_ok=True)
        write_whole(directory / _EVIDENCE, (json.dumps(tuned.to_dict(), indent=2) + "\n").encode())
        log.end(tuned, directory / _EVIDENCE)
    progress.update(1, 1, f"{tuned.best.rate_per_s:,.0f} requests/s by {name_of(tuned.best.config)}")
    return tuned


def _options(config: ExportConfig) -> list[str]:
    values = {name: getattr(config, name) for name in VARIED}
    values |= {name: value for name, value in asdict(config).items() if value != getattr(ExportConfig, name)}
    return options_of({name: value for name, value in values.items() if value is not None})


def available_engines(trained: TrainedModel, wanted: str | None) -> list[Engine]:
    first = engine_for(trained.format, wanted)
    first.require(feature=f"serving {trained.path}")
    found = [first]
    for engine in engines_for(trained.format).values():
        try:
            engine.require(feature="comparing engines")
        except MissingExtraError:
            continue
        if engine is not first:
            found.append(engine)
    return found


def _check_reached(slo: str, tried: Sequence[Trial]) -> None:
    """Raise `ServingError` if no configuration met the target, stating the best latency or the first failure."""
    if tried[0].rate_per_s is not None:
        return
    reached = [(one.value_ms, one.rate_per_s, name_of(of.config)) for of in tried if (one := of.last) and one.value_ms]
    if not reached:
        raise ServingError(f"no configuration could be measured. First failure: {tried[-1].failure or 'no responses'}")
    value_ms, rate_per_s, name = min(reached, key=lambda one: one[0])
    load = f"at {rate_per_s:,.0f} requests/s" if rate_per_s else "with one request at a time"
    raise ServingError(
        f"no configuration meets {slo}, so nothing was exported. The best configuration ({name}) reached "
        f"{value_ms:.3g} ms {load}. Raise the bound."
    )


class _Log:
    def __init__(self, client: MlflowClient, tracking: TrackingConfig, trained: TrainedModel, slo: str) -> None:
        self.client, self._trained = client, trained
        self._experiment = experiment_id(client, tracking)
        self._has_model = bool(trained.run_id) and trained.tracking_uri == tracking.uri
        tags = {MLFLOW_PARENT_RUN_ID: trained.run_id} if self._has_model else {}
        self.run_id = str(client.create_run(self._experiment, run_name=f"tune serving, {slo}", tags=tags).info.run_id)
        self._runs: dict[ExportConfig, str] = {}

    def keep(self, tried: Trial) -> None:
        with quiet():
            run_id = self._runs.get(tried.config)
            if run_id is None:
                run = self.client.create_run(
                    self._experiment, run_name=name_of(tried.config), tags={MLFLOW_PARENT_RUN_ID: self.run_id}
                )
                self._runs[tried.config] = run_id = str(run.info.run_id)
                for name in VARIED:
                    self.client.log_param(run_id, name, getattr(tried.config, name))
            for name, value in _figures(tried).items():
                self.client.log_metric(run_id, name, value)
            self.client.set_tag(
                run_id, "outcome", tried.failure or ("dropped" if tried.rate_per_s is None else "measured")
            )
            self.client.set_terminated(run_id, "FAILED" if tried.failure else "FINISHED")

    def end(self, tuned: ServingTuned, evidence: Path) -> None:
        with quiet():
            for name, value in _figures(tuned.best).items():
                self.client.log_metric(self.run_id, name, value)
            self.client.set_tag(self.run_id, "command", tuned.command)
            for run_id in (self.run_id, *([self._trained.run_id] if self._has_model else [])):
                self.client.log_artifact(run_id, str(evidence), "tune")


def _figures(tried: Trial) -> dict[str, float]:
    last = tried.last
    figures = {
        "slo/rate_per_s": tried.rate_per_s,
        "slo/percentile_ms": last.value_ms if last else None,
        "slo/memory_bytes": tried.memory_bytes,
    }
    return {name: value for name, value in figures.items() if value is not None}


def _outcome(tried: Trial) -> str:
    if tried.failure:
        return "failed"
    return "dropped" if tried.rate_per_s is None else f"{tried.rate_per_s:,.0f}"


def _load_of(reading: Reading | None) -> str:
    if reading is None:
        return "–"
    return f"{reading.rate_per_s:,.0f}" if reading.rate_per_s else "idle"


_LOAD = LoadConfig(warmup_s=0.3, window_s=0.5, min_duration_s=1.0, time_limit_s=10.0, timeout_s=3.0)
_MAX_ROWS = 20_000  # pool of rows for requests; scored once per configuration


class Trials:
    """A context manager that serves and benchmarks exported configurations of a model, one at a time."""

    def __init__(
        self, prepared: PreparedData, trained: TrainedModel, *, name: str, slo: Slo, batch_size: int, log_path: Path
    ) -> None:
        self._exportable = exportable_of(prepared, trained)
        self._rows = prepared.heldout().slice(0, _MAX_ROWS)
        self._name, self._slo, self._batch_size, self._log_path = name, slo, batch_size, log_path
        self._checked: dict[str | None, CheckedExport] = {}
        self._stack = ExitStack()
        self._workers = Workers(_LOAD.processes)

    def __enter__(self) -> "Trials":
        self._stack.enter_context(self._workers)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    @contextmanager
    def serve(self, config: ExportConfig) -> Iterator[Measure]:
        with ExitStack() as stack:
            directory = Path(stack.enter_context(TemporaryDirectory(prefix="rankline-tune-")))
            ensemble = self._in_engine(config).publish(directory / self._name, config, name=self._name)
            # One server per configuration, because TensorFlow fixes its threads when a process loads its first model.
            server = stack.enter_context(server_for(ensemble.path, log_path=self._log_path))
            client = stack.enter_context(Client(server.url, self._name))
            rows = taken_columns(client, self._rows)
            check = ScoreCheck(client.predict(rows), client.schema.outputs, _LOAD.tolerance, version=ensemble.version)
            bench = stack.enter_context(Bench(client, rows, _LOAD, self._workers, check, server.process_ids))
            yield lambda rate_per_s, duration_s: self._measure(bench, rate_per_s, duration_s)

    def _in_engine(self, config: ExportConfig) -> CheckedExport:
        if config.engine not in self._checked:
            self._checked[config.engine] = self._stack.enter_context(checked(self._exportable, config))
        return self._checked[config.engine]

    def _measure(self, bench: Bench, rate_per_s: float | None, duration_s: float) -> Reading:
        if rate_per_s is None:
            result = bench.measure(Load(batch_size=self._batch_size, concurrency=1), _LOAD)
        else:
            config = replace(_LOAD, min_duration_s=duration_s)
            result = measure_rate(bench, self._batch_size, rate_per_s, self._slo, config)
        if result.is_cut_short:
            if STOPPED in result.problem:  # the load generator has consumed the Ctrl-C
                raise KeyboardInterrupt
            raise ServerError(result.problem)
        value_ms = self._percentile_ms(result)
        holds = value_ms is not None and value_ms <= self._slo.bound_ms
        return Reading(
            rate_per_s=rate_per_s,
            answered_per_s=result.requests_per_s,
            holds=holds and (rate_per_s is None or kept_up(result, self._slo)),
            value_ms=value_ms,
            memory_bytes=result.server.memory_bytes if result.server else None,
        )

    def _percentile_ms(self, result: LoadResult) -> float | None:
        """Return the target percentile of the latency in ms, client delays included, or None for too few requests."""
        num_requests, level = result.num_requests, self._slo.level
        if num_requests < samples_needed(level):
            return None
        return result.latencies().at_rank(math.ceil(num_requests * level)) / 1e6
