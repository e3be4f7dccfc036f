"""soak: the exported ensemble at 70 % of its peak for a long time, to detect errors and growing memory.

Both the peak and the soak use open loops of one-row requests with Poisson arrivals. The peak is the highest rate at
which no queue grows. The rate of a closed loop would be misleading, because its client waits whenever the server falls
behind. Memory is that of the server and its model processes, as the median over the first and over the last tenth of
the time, after one minute in which allocators fill.

One repeat takes six minutes, so the default of five repeats takes half an hour.
"""

import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import psutil

from bench.harness.fixtures import make_demo, peak_per_s
from bench.harness.report import Report, scratch_directory
from rankline.serving.client import Client
from rankline.serving.loadtest.config import LoadConfig
from rankline.serving.loadtest.runner import measure
from rankline.serving.server.embedded import EmbeddedServer
from rankline.serving.server.supervisor import config_of
from rankline.workflows.core.errors import ServingError
from rankline.workflows.core.progress import background_thread

_MINUTES_PER_REPEAT = 6
_SHARE_OF_PEAK = 0.7
_SAMPLE_INTERVAL_S = 1.0
_WARMUP_S = 60.0


def run(repeats: int) -> Report:
    with scratch_directory() as directory:
        prepared, ensemble = make_demo(directory)
        rows = prepared.heldout().select(list(prepared.inputs))
        with EmbeddedServer(config_of(ensemble)) as server, Client(server.endpoints.grpc, ensemble.name) as client:
            expected = client.predict(rows)
            peak = peak_per_s(client, rows, expected)
            rate = int(_SHARE_OF_PEAK * peak)
            results: dict[str, dict[str, float]] = {"peak": {"requests_per_s": peak}}
            warmup = LoadConfig(rate=(rate,), min_duration_s=_WARMUP_S, time_limit_s=_WARMUP_S + 1)
            measure(client, rows, [1], config=warmup, expected=expected)
            bytes_held: list[int] = []
            for minutes in range(_MINUTES_PER_REPEAT, _MINUTES_PER_REPEAT * (repeats + 1), _MINUTES_PER_REPEAT):
                config = LoadConfig(rate=(rate,), min_duration_s=_MINUTES_PER_REPEAT * 60.0, time_limit_s=361.0)
                with _sampled(server.process_ids, bytes_held):
                    report = measure(client, rows, [1], config=config, expected=expected)
                if report.problems:
                    raise ServingError(report.problems[0])
                result = report.bench[0]
                results[f"minute {minutes}"] = {
                    "requests_per_s": result.requests_per_s,
                    "p50_ms": result.value("p50_ms") or float("nan"),
                    "p99_ms": result.value("p99_ms") or float("nan"),
                    "errors": float(sum(result.errors.values())),
                    "unsent": float(result.num_unsent),
                    "memory_mb": statistics.median(bytes_held[-60:]) / 1e6,
                }
    tenth = max(len(bytes_held) // 10, 1)
    begin, end = statistics.median(bytes_held[:tenth]), statistics.median(bytes_held[-tenth:])
    return Report(
        name="soak",
        results=results,
        ratios={
            "memory_growth": end / begin - 1,
            "errors": sum(figures.get("errors", 0.0) for figures in results.values()),
            "p99_ms": max(figures["p99_ms"] for figures in results.values() if "p99_ms" in figures),
            "share_of_peak": statistics.median(f["requests_per_s"] for n, f in results.items() if n != "peak") / peak,
        },
    )


@contextmanager
def _sampled(process_ids: Callable[[], Sequence[int]], bytes_held: list[int]) -> Iterator[None]:
    """Append the memory of the processes to `bytes_held` once per second."""

    def sample(stop: threading.Event) -> None:
        while not stop.wait(_SAMPLE_INTERVAL_S):
            bytes_held.append(sum(psutil.Process(pid).memory_full_info().pss for pid in process_ids()))

    with background_thread(sample):
        yield
