"""Options of `export`. The module is cheap to import, since the command line derives its options from it."""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from numbers import Real

from rankline.workflows.core.machine import num_cores
from rankline.workflows.core.validation import check_at_least, check_choice

NATIVE, PYTHON = BACKENDS = ("native", "python")
WIDE = 200
"""Number of raw columns from which a table counts as wide; see `rankline.serving.export.triton_version.relay`."""


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """Options that determine how an ensemble is exported and served.

    Attributes:
        engine: engine that runs the model, such as onnx; an unknown name lists the engines that can run the model. By
            default the framework that trained it.
        backend: "native" runs workflow and model inside Triton without Python, if both have a native form and the
            serving machine has the native backends; "python" runs each step in Python processes.
        uncompiled: comma-separated operators of the workflow that have no compiled form, such as LambdaOp. The whole
            workflow then runs through NVTabular, which takes a few milliseconds per row.
        fused: run workflow and model as one step instead of two. This saves a fifth of the latency of small requests,
            and half when they run in Python. By default one step, but two if rows have missing values: Triton batches
            requests with the same inputs, and a missing value adds an input that the model step does not see. A table
            of 200 columns or more always defaults to one step, since each tensor between two steps costs time.
        max_batch_size: maximum number of rows in one request. For rows with candidates and a history: maximum number of
            candidates over all rows, at most 16,384, since 32,768 would need 5 GB of memory.
        max_list_length: maximum number of values in one list of a request, and of candidates in one row.
        instances: number of parallel copies of each step, each in its own process in Python; 0 for one per four cores.
        threads: number of threads that one operation of the model may use; 0 to share the cores among the instances.
        batch_delay_ms: how long a request may wait to be batched with others; by default requests wait only for a free
            instance.
        max_queue_size: number of requests that may wait for a step; further requests are rejected immediately. 0 for no
            limit. With a limit, Triton 24.10 delays one request in several hundred by 500 ms.
        queue_timeout_ms: how long a request may wait for a step before it is rejected; 0 for no limit. A limit has the
            same effect on Triton 24.10.
        keep_versions: number of versions to keep on disk, at least the new one and the previous one.
    """

    engine: str | None = None
    backend: str = NATIVE
    uncompiled: str = ""
    fused: bool | None = None
    max_batch_size: int = 65_536
    max_list_length: int = 10_000
    instances: int = 0
    threads: int = 0
    batch_delay_ms: float = 0.0
    max_queue_size: int = 0
    queue_timeout_ms: float = 0.0
    keep_versions: int = 3

    def __post_init__(self) -> None:
        check_choice(self, "backend", self.backend in BACKENDS, " or ".join(BACKENDS))
        check_choice(self, "uncompiled", isinstance(self.uncompiled, str), "names separated by commas")
        for name, least in _AT_LEAST.items():
            check_at_least(self, least, name)
        for name in ("batch_delay_ms", "queue_timeout_ms"):
            number = getattr(self, name)
            check_choice(
                self, name, isinstance(number, Real) and 0 <= float(number) < math.inf, "a number of at least 0"
            )

    def max_rows(self, *, with_candidates: bool) -> int:
        """Return the maximum number of rows per request. If `with_candidates`, return the maximum number of candidates
        over all rows of a request.
        """
        return min(self.max_batch_size, _MAX_CANDIDATES) if with_candidates else self.max_batch_size

    def with_resolved_layout(self, optional: Collection[str], num_columns: int) -> "ExportConfig":
        """Return the config, with a default for `fused` if it is None.

        Args:
            optional: raw columns that a request may leave out.
        """
        return self if self.fused is not None else replace(self, fused=not optional or num_columns >= WIDE)

    @property
    def uncompiled_operators(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.uncompiled.split(",") if name.strip())

    @property
    def num_instances(self) -> int:
        return self.instances or max(num_cores() // 4, 1)

    @property
    def num_threads(self) -> int:
        return self.threads or max(num_cores() // self.num_instances, 1)


_MAX_CANDIDATES = 16_384
_AT_LEAST = {
    "max_batch_size": 1,
    "max_list_length": 1,
    "instances": 0,
    "threads": 0,
    "max_queue_size": 0,
    "keep_versions": 2,
}
