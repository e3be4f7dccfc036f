"""The choices of `export`, light to import: the command line makes its options from them."""

import os
from collections.abc import Collection
from dataclasses import dataclass, replace

from rankline.workflows.core.validation import check_choice

NATIVE, PYTHON = BACKENDS = ("native", "python")
WIDE = 200
"""Raw columns from which a table counts as wide; see `rankline.serving.export.relay`."""


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """How an ensemble is served.

    Attributes:
        engine: what runs the model, such as onnx; an unknown name lists those that take the model. By default
            the framework that trained it.
        backend: native runs workflow and model inside Triton, without Python, where both that form and the machine that
            serves allow it; python runs each step in processes of Python.
        uncompiled: operators of the workflow that have no compiled form, such as LambdaOp, separated by commas: the
            whole workflow then runs through NVTabular, which takes some milliseconds for a row.
        fused: run workflow and model as one step, which saves a fifth of the latency of few rows, and half where they
            run in Python; else as two. By default one, but two where rows lack values: Triton runs requests together
            that have the same inputs, and a missing value is an input more, which the model no longer sees. A table of
            200 columns or more is one step in any case, since each tensor between two steps costs time.
        max_batch_size: most rows of one request. Where rows hold candidates and a history: most candidates of all rows,
            16,384 at most, for 32,768 would take 5 GB of memory.
        max_list_length: most values of one list of a request, and most candidates of one row.
        instances: copies of each step that run side by side, in Python each in a process; 0 for one per four cores.
        threads: threads that one operation of the model may use; 0 to share the cores among the instances.
        batch_delay_ms: how long a request may wait for others that the model then scores with it; by default it waits
            for nothing but an instance.
        max_queue_size: requests that may wait for a step; the next one is refused at once. 0 for any number. With a
            limit, Triton 24.10 keeps one request in some hundreds waiting for 500 ms.
        queue_timeout_ms: how long a request may wait for a step before it is refused, 0 for any time; same effect.
        keep_versions: how many versions stay on disk, at least the new one and the one before.
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
        for name, least in _AT_LEAST.items():
            check_choice(self, name, not getattr(self, name) < least, f"at least {least}")

    def most_rows(self, *, with_candidates: bool) -> int:
        """Most rows of one request, or most candidates of all its rows."""
        return min(self.max_batch_size, _MOST_CANDIDATES) if with_candidates else self.max_batch_size

    def settled(self, optional: Collection[str], num_columns: int) -> "ExportConfig":
        """Return these choices with `fused` decided.

        Args:
            optional: raw columns that a request may leave out.
            num_columns: all raw columns.
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


_MOST_CANDIDATES = 16_384
_AT_LEAST = {
    "max_batch_size": 1,
    "max_list_length": 1,
    "instances": 0,
    "threads": 0,
    "batch_delay_ms": 0,
    "max_queue_size": 0,
    "queue_timeout_ms": 0,
    "keep_versions": 2,
}


def num_cores() -> int:
    return len(os.sched_getaffinity(0))
