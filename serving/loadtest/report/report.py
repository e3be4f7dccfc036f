"""The report of a benchmark, with its JSON and CSV formats."""

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from rankline.serving.loadtest.runs import Floor, Load, Run, SearchResult
from rankline.serving.loadtest.server_breakdown import Breakdown, ServerResources
from rankline.serving.loadtest.stats.counters import LatencyHistogram
from rankline.serving.loadtest.stats.metrics import METRICS, measure_all
from rankline.serving.loadtest.stats.percentiles import Estimate
from rankline.workflows.core.errors import ArtifactError

FORMAT_VERSION = 2


@dataclass(frozen=True, kw_only=True)
class LoadResult:
    """The benchmark result for one load.

    Attributes:
        batch_size, concurrency, rate_per_s, arrivals: see `Load`.
        duration_s: duration of the measurement, without warm-up.
        num_requests: requests answered without an error, whose latency is counted.
        num_due: requests that were due.
        num_unsent: due requests that could not be sent before the measurement ended.
        num_repeated: due requests with rows that had been sent before.
        errors: gRPC status → number of requests that failed with it.
        metrics: name in `METRICS` → estimate.
        is_stable: whether the last three windows agreed.
        lag_mean_ms: mean delay of sending after the scheduled time; None in a closed loop.
        lag_p99_ms: 99th percentile of this delay.
        client_cpu_ms: CPU time of the client per request.
        client_busiest: fraction of a core used by the client's busiest process.
        server: resources used by the server's processes; None if they are not accessible.
        breakdown: breakdown of the mean latency; None if the server's statistics do not describe our requests.
        problem: problem of this measurement; empty if there is none.
        is_cut_short: whether the measurement ended early, by Ctrl-C or a connection failure.
        histogram: all latencies in nanoseconds, in HdrHistogram's compressed format.
    """

    batch_size: int
    concurrency: int | None
    rate_per_s: float | None
    arrivals: str | None
    duration_s: float
    num_requests: int
    num_due: int
    num_unsent: int
    num_repeated: int
    errors: Mapping[str, int]
    metrics: Mapping[str, Estimate]
    is_stable: bool
    lag_mean_ms: float | None
    lag_p99_ms: float | None
    client_cpu_ms: float
    client_busiest: float
    server: ServerResources | None
    breakdown: Breakdown | None
    problem: str
    is_cut_short: bool
    histogram: str

    @classmethod
    def of_run(
        cls,
        run: Run,
        *,
        is_stable: bool,
        server: ServerResources | None = None,
        breakdown: Breakdown | None = None,
        problem: str = "",
        is_refused: bool = False,
        is_cut_short: bool = False,
    ) -> "LoadResult":
        """Create the result of a run. If `is_refused`, withhold latencies and record `problem` as the reason."""
        whole, cost = run.whole, run.client_cost
        return cls(
            **asdict(run.load),
            duration_s=run.duration_s,
            num_requests=whole.latency.total,
            num_due=whole.num_due,
            num_unsent=whole.num_unsent,
            num_repeated=whole.num_repeated,
            errors=dict(whole.errors),
            metrics=measure_all(run, refusal=problem if is_refused else ""),
            is_stable=is_stable,
            lag_mean_ms=cost.lag_mean_ms,
            lag_p99_ms=whole.lag.at_rank(-(-whole.lag.total * 99 // 100)) / 1e6 if whole.lag.total else None,
            client_cpu_ms=cost.cpu_ms,
            client_busiest=cost.busiest,
            server=server,
            breakdown=breakdown,
            problem=problem,
            is_cut_short=is_cut_short,
            histogram=whole.latency.encode().decode(),
        )

    @property
    def load(self) -> Load:
        return Load(**{column.name: getattr(self, column.name) for column in fields(Load)})

    @property
    def requests_per_s(self) -> float:
        return self.value("requests_per_s") or 0.0

    @property
    def rows_per_s(self) -> float:
        return self.value("rows_per_s") or 0.0

    def value(self, name: str) -> float | None:
        return self.metrics[name].value

    def latencies(self) -> LatencyHistogram:
        return LatencyHistogram.decode(self.histogram.encode())

    def to_dict(self) -> dict[str, Any]:
        """Convert to a dict of built-in types. Metrics are top-level keys, and latency intervals and reasons for
        withheld metrics are nested dicts.
        """
        plain = asdict(self)
        del plain["metrics"]
        found = [(METRICS[name], estimate) for name, estimate in self.metrics.items()]
        bounded = [(metric, (value.low, value.high)) for metric, value in found if metric.has_interval]
        return {
            **plain,
            **{metric.name: estimate.value for metric, estimate in found},
            "intervals_ms": {
                metric.key: pair
                for metric, pair in bounded
                if metric.is_latency and self.metrics[metric.name].value is not None
            },
            **{
                f"{metric.name}_interval": None if pair == (None, None) else pair
                for metric, pair in bounded
                if not metric.is_latency
            },
            "withheld": {metric.key: estimate.reason for metric, estimate in found if estimate.reason},
        }


@dataclass(frozen=True, kw_only=True)
class BenchmarkReport:
    """Measurements of one model.

    Attributes:
        model_name: name of the model.
        bench: one result per load.
        num_checked: number of scores under load that were compared with the expected scores.
        max_abs_error: largest difference from an expected score, relative above 1; None if no scores were compared.
        environment: versions, CPU, kind of load, and the command line.
        floors: measurements of the client with a model that returns its input; empty if the server has none.
        slo: latency target of the searches, as text.
        searches: batch size → result of the search.
        problem: why the report is incomplete; empty if it is complete.
        busy: load of the machine before the measurements; empty if it was idle.
        version: version of the ensemble; None if unknown.
        quality: metrics of the model by name.
        format_version: version of the document format.
    """

    model_name: str
    bench: tuple[LoadResult, ...]
    num_checked: int
    max_abs_error: float | None
    environment: Mapping[str, str]
    floors: tuple[Floor, ...] = ()
    slo: str | None = None
    searches: Mapping[int, SearchResult] | None = None
    problem: str = ""
    busy: str = ""
    version: int | None = None
    quality: Mapping[str, float] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    @property
    def problems(self) -> tuple[str, ...]:
        """All reasons to count the run as failed."""
        found = [f"{result.load.name}: {result.problem}" for result in self.bench if self._has_problem(result)]
        found += [
            f"rows_{size}: no tested rate met {self.slo}"
            for size, search in (self.searches or {}).items()
            if search.rate_per_s is None
        ]
        return (*found, *([self.problem] if self.problem else []))

    def _has_problem(self, result: LoadResult) -> bool:
        """Whether a result's problem counts as a failure. A search tries rates that are too high, so only the rate that
        it found counts, or its lowest failed rate if it found none.
        """
        if not result.problem or self.slo is None or result.is_cut_short:
            return bool(result.problem)
        search = (self.searches or {}).get(result.batch_size)
        rate_per_s = None if search is None else search.rate_per_s or search.failed_per_s
        return rate_per_s is not None and result.rate_per_s == round(rate_per_s, 1)

    def to_dict(self) -> dict[str, Any]:
        return asdict(replace(self, bench=())) | {"bench": [result.to_dict() for result in self.bench]}

    @classmethod
    def from_dict(cls, document: Any, source: str) -> "BenchmarkReport":
        """Create a report from the output of `to_dict`. Extra keys are ignored, so `rankline run`'s JSON also works.

        `source` is the origin of the document, for messages.

        Raises:
            ArtifactError: the document is not a report, or has another format version.
        """
        if not isinstance(document, Mapping) or "format_version" not in document or "bench" not in document:
            raise ArtifactError(f"{source} is not a benchmark report. Write one with `rankline bench --json FILE`.")
        if (found := document["format_version"]) != FORMAT_VERSION:
            raise ArtifactError(
                f"{source} has format version {found}, expected {FORMAT_VERSION}. Run the benchmark again."
            )
        from pydantic import TypeAdapter, ValidationError  # import takes half a second

        try:
            bench = [{**entry, "metrics": _estimates(entry)} for entry in document["bench"]]
            # The JSON of `rankline run` also contains means over seeds here.
            quality = {
                name: value for name, value in document.get("quality", {}).items() if isinstance(value, int | float)
            }
            plain = json.dumps({**document, "bench": bench, "quality": quality})
            return TypeAdapter(cls).validate_json(plain, strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
        raise ArtifactError(f"{source} is a damaged report ({reason}). Run the benchmark again.")

    @classmethod
    def read(cls, path: Path) -> "BenchmarkReport":
        """Read a report file written by `to_json`, raising the same errors as `from_dict`."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ArtifactError(
                f"{path} does not exist. Pass a file written by `rankline bench --json FILE`."
            ) from None
        except ValueError as error:  # not JSON, or not text
            raise ArtifactError(f"{path} is not a benchmark report because it is not valid JSON: {error}") from None
        return cls.from_dict(document, str(path))

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def to_csv(self) -> str:
        """Return CSV with a header and one row per load, including the bounds of each confidence interval."""
        text = io.StringIO()
        lines = [_flat(result) for result in self.bench]
        writer = csv.DictWriter(text, list(dict.fromkeys(name for line in lines for name in line)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        return text.getvalue()

    def histograms(self) -> dict[str, str]:
        """Return one HdrHistogram log per measurement, keyed by file name. Repeats of a load get numbered names."""
        files: dict[str, str] = {}
        times: Counter[str] = Counter()
        for result in self.bench:
            name = result.load.name.replace("/", "_")
            times[name] += 1
            files[f"{name}_{times[name]}.hdr" if times[name] > 1 else f"{name}.hdr"] = result.latencies().to_log(
                [f"{self.model_name}, {result.load.name}, latency in nanoseconds, maxima in milliseconds"],
                result.duration_s,
            )
        return files


def _flat(result: LoadResult) -> dict[str, Any]:
    figures = result.to_dict()
    nested = {"errors", "server", "breakdown", "intervals_ms", "withheld", "histogram"}
    server = figures["server"] or {}
    bounded = [(metric, result.metrics[metric.name]) for metric in METRICS.values() if metric.has_interval]
    return {
        **{name: value for name, value in figures.items() if name not in nested and not name.endswith("_interval")},
        **{
            name: bound
            for metric, found in bounded
            for name, bound in zip(metric.bound_names, (found.low, found.high), strict=True)
        },
        "num_errors": sum(result.errors.values()),
        "server_cpu_cores": server.get("cpu_cores"),
        "server_memory_bytes": server.get("memory_bytes"),
    }


def _estimates(entry: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, metric in METRICS.items():
        if name not in entry:
            found[name] = {"reason": "the report predates this metric"}
            continue
        bounds = entry["intervals_ms"].get(metric.key) if metric.is_latency else entry.get(f"{name}_interval")
        low, high = bounds or (None, None)
        reason = entry["withheld"].get(metric.key, "")
        found[name] = {"value": entry[name], "low": low, "high": high, "reason": reason}
    return found
