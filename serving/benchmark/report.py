"""What a benchmark found, as numbers that can be kept."""

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

_NS_PER_MS = 1e6
_NS_PER_S = 1e9


@dataclass(frozen=True, kw_only=True)
class BatchResult:
    """Requests of one batch size.

    Attributes:
        batch_size: rows in each request.
        num_requests: requests measured; a p99 of fewer than a few hundred says little.
        mean_ms, p50_ms, p90_ms, p95_ms, p99_ms, max_ms: time from sending a request to having its scores.
        rows_per_s: rows scored by the wall clock.
    """

    batch_size: int
    num_requests: int
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    rows_per_s: float

    @classmethod
    def from_samples(cls, batch_size: int, latency_ns: npt.NDArray[np.int64], elapsed_ns: int) -> "BatchResult":
        """Sum up raw latencies.

        Args:
            batch_size: rows in each request.
            latency_ns: [num_requests]
            elapsed_ns: wall-clock time that all of them took.
        """
        p50, p90, p95, p99 = np.percentile(latency_ns, (50, 90, 95, 99)) / _NS_PER_MS
        return cls(
            batch_size=batch_size,
            num_requests=len(latency_ns),
            mean_ms=float(latency_ns.mean() / _NS_PER_MS),
            p50_ms=float(p50),
            p90_ms=float(p90),
            p95_ms=float(p95),
            p99_ms=float(p99),
            max_ms=float(latency_ns.max() / _NS_PER_MS),
            rows_per_s=batch_size * len(latency_ns) / (elapsed_ns / _NS_PER_S),
        )


@dataclass(frozen=True, kw_only=True)
class BenchmarkReport:
    """One closed-loop run over several batch sizes.

    Attributes:
        model_name: what was asked.
        bench: one result per batch size.
        num_checked: scores returned under load that were compared with the expected ones.
        max_abs_error: largest difference among them; None when none were compared.
        environment: versions, CPU and how the load was made.
    """

    model_name: str
    bench: tuple[BatchResult, ...]
    num_checked: int
    max_abs_error: float | None
    environment: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Plain values under the names of the fields; `bench` has one entry per batch size."""
        return asdict(self)

    def to_json(self) -> str:
        """`to_dict` as the text of a JSON document."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def to_csv(self) -> str:
        """One line per batch size under a header."""
        text = io.StringIO()
        writer = csv.DictWriter(text, [column.name for column in fields(BatchResult)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(result) for result in self.bench)
        return text.getvalue()
