"""scaling: latency against request rate, on one core and on all of them, and what a million scores cost.

Requests have one row, and arrive at random times (Poisson) whether or not earlier ones are answered. The knee is the
rate with the highest ratio of rate to median latency (Kleinrock 1979, "Power and deterministic rules of thumb for
probabilistic problems in computer communications"): beyond it, latency grows faster than throughput. On one core, the
server runs on the first core and the client on the others; otherwise both use all of them.
"""

import math
import os
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager

import pyarrow as pa

from bench.harness.fixtures import make_demo, peak_per_s
from bench.harness.report import Report, medians_of, scratch_directory
from bench.harness.scaling_curve import Results, cores_in, cores_in_words, knee
from rankline.serving.client import Client
from rankline.serving.loadtest.config import LoadConfig
from rankline.serving.loadtest.report.report import LoadResult
from rankline.serving.loadtest.runner import measure
from rankline.serving.loadtest.runs import Load
from rankline.serving.repository.ensemble import ExportedEnsemble
from rankline.serving.server.embedded import EmbeddedServer
from rankline.serving.server.supervisor import config_of
from rankline.workflows.core.machine import num_cores

_SHARES = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 1.0)  # of the peak
_LARGE = 1024
_DOLLARS_PER_CORE_HOUR = 0.045  # a usual price of one core of a general-purpose cloud machine


def run(repeats: int, *, seconds: float = 4.0) -> Report:
    turns: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    peaks: dict[int, float] = {}
    with scratch_directory() as directory:
        prepared, ensemble = make_demo(directory)
        rows = prepared.heldout().select(list(prepared.inputs))
        for _ in range(repeats):
            for cores in sorted({1, num_cores()}):
                with _served(ensemble, cores) as client:
                    for result in _measured(client, rows, cores, peaks, seconds):
                        is_open = result.rate_per_s is not None
                        own = turns[f"{cores_in_words(cores)}, {result.load.words}"]
                        own["rows_per_s"].append(result.rows_per_s)
                        for name in ("p50_ms", "p99_ms") if is_open else ():
                            own[name].append(result.value(name) or math.nan)
    results = medians_of(turns)
    return Report(name="scaling", results=results, ratios=_ratios(results))


def _measured(
    client: Client, rows: pa.Table, cores: int, peaks: dict[int, float], seconds: float
) -> Iterator[LoadResult]:
    """Measure one-row requests at each rate, then large requests. All turns use the same rates."""
    expected = client.predict(rows)
    if cores not in peaks:
        peaks[cores] = peak_per_s(client, rows, expected, seconds)
    rates = tuple(int(peaks[cores] * share) for share in _SHARES)
    offered = LoadConfig(rate=rates, arrivals="poisson", min_duration_s=seconds, time_limit_s=4 * seconds)
    yield from measure(client, rows, [1], config=offered, expected=expected).bench
    large = LoadConfig(concurrency=(2 * cores,), min_duration_s=seconds)
    yield from measure(client, rows, [_LARGE], config=large, expected=expected).bench


@contextmanager
def _served(ensemble: ExportedEnsemble, cores: int) -> Iterator[Client]:
    every = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        with _limited(every[:cores]):
            server = stack.enter_context(EmbeddedServer(config_of(ensemble)))
        stack.enter_context(_limited(every[cores:] or every))
        yield stack.enter_context(Client(server.endpoints.grpc, ensemble.name))


@contextmanager
def _limited(cores: Collection[int]) -> Iterator[None]:
    """Let this process use only some cores, and processes that it starts."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _ratios(results: Results) -> dict[str, float]:
    ratios = {}
    for cores in cores_in(results):
        at_knee, on = knee(results, cores), "1_core" if cores == 1 else f"{cores}_cores"
        load = Load(batch_size=_LARGE, concurrency=2 * cores)
        large = results[f"{cores_in_words(cores)}, {load.words}"]
        ratios[f"knee_requests_per_s_{on}"] = at_knee["rows_per_s"]
        if "p99_ms" in at_knee:
            ratios[f"knee_p99_ms_{on}"] = at_knee["p99_ms"]
        for rows, own in ((1, at_knee), (_LARGE, large)):
            hours = cores * 1e6 / own["rows_per_s"] / 3600
            ratios[f"cents_per_million_scores_{on}@{rows}"] = 100 * hours * _DOLLARS_PER_CORE_HOUR
    return ratios
