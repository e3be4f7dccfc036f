"""Exports, serves and measures configurations of a trained model."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rankline.scoring.backends import server_for
from rankline.serving.client import Client
from rankline.serving.export.config import ExportConfig
from rankline.serving.export.exporter import CheckedExport, checked, exportable_of
from rankline.serving.loadtest.config import LoadConfig, Slo
from rankline.serving.loadtest.generator.worker_pool import STOPPED, Workers
from rankline.serving.loadtest.measurement import Bench, ScoreCheck
from rankline.serving.loadtest.rate import kept_up, measure_rate
from rankline.serving.loadtest.report.report import LoadResult
from rankline.serving.loadtest.runs import Load
from rankline.serving.loadtest.serving_config import Measure, Reading
from rankline.serving.loadtest.stats.percentiles import samples_needed
from rankline.workflows.core.errors import ServerError
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.schema.model_artifact import TrainedModel

_LOAD = LoadConfig(warmup_s=0.3, window_s=0.5, min_duration_s=1.0, time_limit_s=10.0, timeout_s=3.0)
_MOST_ROWS = 20_000  # pool of rows for requests; scored once per configuration


class Trials:
    """Serves and measures configurations of a model, one at a time, each exported to its own directory."""

    def __init__(
        self, prepared: PreparedData, trained: TrainedModel, *, name: str, slo: Slo, batch_size: int, log_path: Path
    ) -> None:
        self._exportable = exportable_of(prepared, trained)
        self._rows = prepared.heldout().slice(0, _MOST_ROWS)
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
        """Serve a configuration, and yield a function that measures it."""
        with ExitStack() as stack:
            directory = Path(stack.enter_context(TemporaryDirectory(prefix="rankline-tune-")))
            ensemble = self._in_engine(config).publish(directory / self._name, config, name=self._name)
            # One server per configuration, because TensorFlow fixes its threads when a process loads its first model.
            server = stack.enter_context(server_for(ensemble.path, log_path=self._log_path))
            client = stack.enter_context(Client(server.url, self._name))
            names = [column.name for column in client.schema.columns if column.name in self._rows.column_names]
            rows = self._rows.select(names)
            check = ScoreCheck(client.predict(rows), client.schema.outputs, _LOAD.tolerance, version=ensemble.version)
            bench = stack.enter_context(Bench(client, rows, _LOAD, self._workers, check, server.process_ids))
            yield lambda rate_per_s, duration_s: self._measure(bench, rate_per_s, duration_s)

    def _in_engine(self, config: ExportConfig) -> CheckedExport:
        """Return the export converted and compared for an engine, once for all its configurations."""
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
        """Return the target's percentile, or None with too few requests. Client delays are part of the latency."""
        num_requests, level = result.num_requests, self._slo.level
        if num_requests < samples_needed(level):
            return None
        return result.latencies().at_rank(math.ceil(num_requests * level)) / 1e6
