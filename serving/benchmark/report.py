"""What a benchmark found, as numbers that can be kept."""

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_type_hints

from serving.benchmark.breakdown import Breakdown, StepTimes
from serving.benchmark.histogram import LatencyHistogram
from serving.benchmark.percentiles import LEVELS, mean_interval, percentile
from serving.benchmark.records import SLICE_S, SliceRecord
from serving.benchmark.resources import ServerResources
from serving.benchmark.search import SearchResult
from serving.benchmark.selfcheck import ClientCost, Floor
from workflows.errors import ArtifactError

FORMAT_VERSION = 2
_Noun = TypeVar("_Noun")
_SCALARS = {int, float, str, bool, type(None)}
_NS_PER_MS = 1e6


@dataclass(frozen=True, kw_only=True)
class Load:
    """What was asked of the server.

    Attributes:
        batch_size: rows in each request.
        concurrency: requests in flight in a closed loop; None in an open one.
        rate_per_s: requests per second that an open loop offered; None in a closed one.
        arrivals: constant, poisson, or the file of the schedule; None in a closed loop.
    """

    batch_size: int
    concurrency: int | None = None
    rate_per_s: float | None = None
    arrivals: str | None = None

    @property
    def name(self) -> str:
        """For paths and metrics: rows_16, rows_16/concurrency_8, rows_16/rate_500."""
        rows = f"rows_{self.batch_size}"
        if self.rate_per_s is not None:
            return f"{rows}/rate_{self.rate_per_s:.0f}"
        return rows if self.concurrency == 1 else f"{rows}/concurrency_{self.concurrency}"

    @property
    def words(self) -> str:
        """For reading: rows 16, concurrency 8."""
        return self.name.replace("_", " ").replace("/", ", ")


@dataclass(frozen=True, kw_only=True)
class LoadResult:
    """One measurement. In an open loop latency counts from the scheduled time, in a closed loop from sending.

    Attributes:
        batch_size, concurrency, rate_per_s, arrivals: see `Load`.
        duration_s: of the measurement, warm-up excluded.
        num_requests: requests that were answered without an error and whose latency is counted.
        num_due: requests that were to be sent.
        num_unsent: of these, how many could not be sent before the measurement ended.
        num_repeated: of these, how many had rows that had been sent before.
        errors: gRPC status → requests that ended with it.
        requests_per_s, rows_per_s: answered by the wall clock.
        rows_per_s_interval: lower and upper bound at 95 % confidence; None where the run was too short for it.
        mean_ms, max_ms: latency; None when nothing was answered or the client was the bottleneck.
        p50_ms, p90_ms, p95_ms, p99_ms, p999_ms: percentiles of latency; None when withheld.
        intervals_ms: percentile → lower and upper bound at 95 % confidence; None where the samples give no bound.
        withheld: percentile → why it is not stated.
        is_stable: the last three windows agreed.
        lag_mean_ms, lag_p99_ms: how late requests were sent; None in a closed loop.
        client_cpu_ms: the client's processor time for one request.
        client_busiest: share of a core that its busiest process used.
        server: what the server's processes used; None when they cannot be seen.
        breakdown: where the mean latency went; None when the server's statistics are not about our requests.
        problem: what is wrong with this measurement; empty if nothing is.
        is_cut_short: it ended before its time, by Ctrl-C or with the connection to the server.
        histogram: all latencies, nanoseconds, in HdrHistogram's compressed form.
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
    requests_per_s: float
    rows_per_s: float
    rows_per_s_interval: tuple[float, float] | None
    mean_ms: float | None
    p50_ms: float | None
    p90_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    p999_ms: float | None
    max_ms: float | None
    intervals_ms: Mapping[str, tuple[float | None, float | None]]
    withheld: Mapping[str, str]
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
    def from_slices(
        cls,
        load: Load,
        slices: Sequence[SliceRecord],
        *,
        is_stable: bool,
        server: ServerResources | None = None,
        breakdown: Breakdown | None = None,
        problem: str = "",
        is_refused: bool = False,
        is_cut_short: bool = False,
    ) -> "LoadResult":
        """Sum up a run.

        Args:
            load: what was asked.
            slices: what was counted, at least one.
            is_stable: the last three windows agreed.
            server: what the server used.
            breakdown: where the time went.
            problem: what is wrong.
            is_refused: so wrong that latency is not stated.
            is_cut_short: it ended before its time, by Ctrl-C or with the connection to the server.
        """
        whole = SliceRecord.merged(slices)
        duration_s = len(slices) * SLICE_S
        found = {name: percentile([record.latency for record in slices], level) for name, level in LEVELS.items()}
        is_shown = whole.latency.total > 0 and not is_refused
        shown = {name: _ms(p.value_ns) if is_shown else None for name, p in found.items()}
        cost = client_cost(slices)
        return cls(
            **asdict(load),
            duration_s=duration_s,
            num_requests=whole.latency.total,
            num_due=whole.num_due,
            num_unsent=whole.num_unsent,
            num_repeated=whole.num_repeated,
            errors=dict(whole.errors),
            requests_per_s=whole.num_answered / duration_s,
            rows_per_s=whole.num_answered * load.batch_size / duration_s,
            rows_per_s_interval=mean_interval([record.num_answered * load.batch_size / SLICE_S for record in slices]),
            mean_ms=whole.latency.mean_ns / _NS_PER_MS if is_shown else None,
            max_ms=whole.latency.max_ns / _NS_PER_MS if is_shown else None,
            p50_ms=shown["p50"],
            p90_ms=shown["p90"],
            p95_ms=shown["p95"],
            p99_ms=shown["p99"],
            p999_ms=shown["p999"],
            intervals_ms={
                name: (_ms(p.low_ns), _ms(p.high_ns)) for name, p in found.items() if is_shown and not p.withheld
            },
            withheld={
                name: problem if is_refused else p.withheld for name, p in found.items() if is_refused or p.withheld
            },
            is_stable=is_stable,
            lag_mean_ms=cost.lag_mean_ms,
            lag_p99_ms=_ms(whole.lag.at_rank(-(-whole.lag.total * 99 // 100))) if whole.lag.total else None,
            client_cpu_ms=cost.cpu_ms,
            client_busiest=cost.busiest,
            server=server,
            breakdown=breakdown,
            problem=problem,
            is_cut_short=is_cut_short,
            histogram=whole.latency.encode().decode(),
        )

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "LoadResult":
        """What one entry of `BenchmarkReport.to_dict` says, read back.

        Raises:
            KeyError, TypeError, ValueError: it says something else.
        """
        server, breakdown, bounds = document["server"], document["breakdown"], document["rows_per_s_interval"]
        return _noun(
            cls,
            document,
            rows_per_s_interval=bounds and _pair(bounds),
            intervals_ms={name: _pair(pair) for name, pair in document["intervals_ms"].items()},
            server=server and _noun(ServerResources, server),
            breakdown=breakdown
            and _noun(
                Breakdown,
                breakdown,
                steps={name: _noun(StepTimes, times) for name, times in breakdown["steps"].items()},
            ),
        )

    @property
    def load(self) -> Load:
        """What was asked."""
        return Load(**{column.name: getattr(self, column.name) for column in fields(Load)})

    def latencies(self) -> LatencyHistogram:
        """All of them."""
        return LatencyHistogram.decode(self.histogram.encode())


@dataclass(frozen=True, kw_only=True)
class BenchmarkReport:
    """Measurements of one model.

    Attributes:
        model_name: what was asked.
        bench: one result per load.
        num_checked: scores returned under load that were compared with the expected ones.
        max_abs_error: largest difference among them; None when none were compared.
        environment: versions, CPU and how the load was made.
        floors: the client against a model that returns its input; empty when the server has none.
        slo: the bound that was searched for, in words.
        searches: batch size → what the search came to.
        problem: why there is less than was asked for; empty if there is not.
        format_version: of this document.
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
    format_version: int = FORMAT_VERSION

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything for which the run should not count as passed."""
        found = [f"{result.load.name}: {result.problem}" for result in self.bench if self._has_problem(result)]
        return (*found, *([self.problem] if self.problem else []))

    def _has_problem(self, result: LoadResult) -> bool:
        """A search tries rates that are too high; of those that failed, only the lowest says something about it."""
        if not result.problem or self.slo is None or result.is_cut_short:
            return bool(result.problem)
        search = (self.searches or {}).get(result.batch_size)
        failed_per_s = None if search is None else search.failed_per_s
        return failed_per_s is not None and result.rate_per_s == round(failed_per_s, 1)

    def to_dict(self) -> dict[str, Any]:
        """Plain values under the names of the fields; `bench` has one entry per load."""
        return asdict(self)

    @classmethod
    def from_dict(cls, document: Any, source: str) -> "BenchmarkReport":
        """What `to_dict` gave, read back; more than that is passed over, so `rankline run --json` is read too.

        Args:
            document: plain values.
            source: where they come from, for messages.

        Raises:
            ArtifactError: it is no report, or one of another format version.
        """
        if not isinstance(document, Mapping) or "format_version" not in document or "bench" not in document:
            raise ArtifactError(f"{source} is no report of a benchmark. `rankline bench --json FILE` writes one.")
        if (found := document["format_version"]) != FORMAT_VERSION:
            raise ArtifactError(
                f"{source} has format version {found}, this Rankline reads {FORMAT_VERSION}. Measure it again."
            )
        try:
            searches = document["searches"]
            return _noun(
                cls,
                document,
                bench=tuple(LoadResult.from_dict(entry) for entry in document["bench"]),
                floors=tuple(_noun(Floor, floor) for floor in document["floors"]),
                searches=searches and {int(size): _noun(SearchResult, found) for size, found in searches.items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ArtifactError(
                f"{source} is a damaged report ({type(error).__name__}: {error}). Measure it again."
            ) from None

    @classmethod
    def read(cls, path: Path) -> "BenchmarkReport":
        """Read what `to_json` wrote.

        Raises:
            ArtifactError: there is no such file, it is no report, or one of another format version.
        """
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ArtifactError(f"there is no {path}. Give a file that `rankline bench --json FILE` wrote.") from None
        except ValueError as error:  # no JSON, or no text at all
            raise ArtifactError(f"{path} is no report of a benchmark, for it is no JSON: {error}") from None
        return cls.from_dict(document, str(path))

    def to_json(self) -> str:
        """`to_dict` as the text of a JSON document."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def to_csv(self) -> str:
        """One line per load under a header: all single figures, and the bounds of each percentile."""
        text = io.StringIO()
        lines = [_flat(result) for result in self.bench]
        writer = csv.DictWriter(text, list(dict.fromkeys(name for line in lines for name in line)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        return text.getvalue()

    def histograms(self) -> dict[str, str]:
        """Name of a file → its text, for HdrHistogram's tools: one for each load.

        A search tries a rate more than once; from the second time on, the name ends with how many times it was.
        """
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


def client_cost(slices: Sequence[SliceRecord]) -> ClientCost:
    """What the client needed for a run."""
    whole = SliceRecord.merged(slices)
    duration_ns = len(slices) * SLICE_S * 1e9
    return ClientCost(
        cpu_ms=sum(whole.cpu_ns.values()) / max(whole.num_answered, 1) / _NS_PER_MS,
        busiest=max(whole.cpu_ns.values(), default=0) / duration_ns,
        send_ms=whole.send_ns / max(whole.num_due, 1) / _NS_PER_MS,
        lag_mean_ms=whole.lag.mean_ns / _NS_PER_MS if whole.lag.total else None,
        held_mean_ms=whole.held_ns / max(whole.lag.total, 1) / _NS_PER_MS,
    )


def _flat(result: LoadResult) -> dict[str, Any]:
    figures = asdict(result)
    nested = ("errors", "rows_per_s_interval", "intervals_ms", "withheld", "server", "breakdown", "histogram")
    bounds = {
        f"{name}_{side}_ms": bound
        for name in LEVELS
        for side, bound in zip(("low", "high"), result.intervals_ms.get(name, (None, None)), strict=True)
    }
    rows_low_per_s, rows_high_per_s = result.rows_per_s_interval or (None, None)
    server = asdict(result.server) if result.server else {}
    return {
        **{name: value for name, value in figures.items() if name not in nested},
        **bounds,
        "rows_low_per_s": rows_low_per_s,
        "rows_high_per_s": rows_high_per_s,
        "num_errors": sum(result.errors.values()),
        "server_cpu_cores": server.get("cpu_cores"),
        "server_memory_bytes": server.get("memory_bytes"),
    }


def _ms(value_ns: int | None) -> float | None:
    return None if value_ns is None else value_ns / _NS_PER_MS


def _noun(kind: type[_Noun], document: Mapping[str, Any], **read: Any) -> _Noun:
    """A dataclass from plain values; `read` has the fields that are not plain."""
    values = {column.name: document[column.name] for column in fields(kind) if column.name not in read}  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    for name, value in values.items():
        kinds = set(get_args(hints[name])) if isinstance(hints[name], UnionType) else {hints[name]}
        fitting = kinds | {int} if float in kinds else kinds
        if kinds <= _SCALARS and type(value) not in fitting:
            raise TypeError(f"{name} is {value!r}")
    return kind(**values, **read)


def _pair(bounds: Any) -> tuple[Any, Any]:
    low, high = bounds
    if not {type(low), type(high)} <= {int, float, type(None)}:
        raise TypeError(f"bounds are {bounds!r}")
    return low, high
