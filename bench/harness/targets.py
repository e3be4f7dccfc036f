"""Targets of the benchmarks, for their tables and docs/project/benchmarks.md."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Bound:
    sign: str
    value: float

    @classmethod
    def parse(cls, text: str) -> "Bound":
        sign, value = text.split()
        return cls(sign, float(value))

    def __str__(self) -> str:
        return f"{self.sign} {self.value:g}"

    def holds(self, reached: float) -> bool:
        return bool({"≥": operator.ge, "≤": operator.le}[self.sign](reached, self.value))

    def margin(self, reached: float) -> float:
        """Return how many times better than the target a value is; below 1, it misses the target."""
        better, worse = (reached, self.value) if self.sign == "≥" else (self.value, reached)
        return better / worse if worse > 0 else float("inf")  # growth may be negative


_ASKED: Mapping[str, Mapping[str, str]] = {
    "serving": {
        "p50_vs_merlin": "≥ 60",
        "concurrent_vs_merlin": "≥ 300",
        "p50_over_native_identity": "≤ 2",
        "onnx_p50_over_native_identity": "≤ 1.5",
        "concurrent_over_native_identity": "≥ 0.6",
        "throughput_over_in_process": "≥ 0.95",
        "memory_vs_python": "≤ 0.5",
    },
    "serving-criteo-dlrm": {
        "p50_vs_merlin": "≥ 12",
        "p50_over_floor": "≤ 1.3",
        "throughput_over_in_process": "≥ 0.9",
    },
    "serving-amazon-sim": {
        "p50_vs_merlin": "≥ 25",
        "p50_over_floor": "≤ 1.3",
        "throughput_over_in_process": "≥ 0.9",
    },
    "serving-movielens-history": {"p50_over_plain": "≤ 1.5"},
    "serving-movielens-next": {"p50_over_plain": "≤ 1.5"},
    "wide": {"export_s": "≤ 60", "export_growth_over_columns": "≤ 1", "client_p50_ms": "≤ 5"},
    "vocabulary": {"p50_growth_with_vocabulary": "≤ 1.2", "second_instance": "≤ 0.02"},
    "loader": {
        "vs_merlin": "≥ 50",
        "vs_tfrecord": "≥ 9",
        "vs_arrow_decode": "≥ 0.6",
        "peak_memory_over_buffer": "≤ 3",
        "first_batch_s": "≤ 0.5",
        "scale_spread": "≤ 0.15",
    },
    "training": {"vs_step_alone": "≥ 0.95", "vs_seed_path": "≥ 5"},
    "training-criteo-dlrm": {
        "vs_tfrecord": "≥ 5",
        "amp_auc_difference": "≤ 0.001",
        "vs_step_alone": "≥ 0.95",
    },
    "training-amazon-sim": {"vs_tfrecord": "≥ 1.3"},
    "client": {"agreement": "≥ 0.9"},
    "soak": {"memory_growth": "≤ 0.03", "errors": "≤ 0", "p99_ms": "≤ 5"},
    "prepare": {"prepare_vs_pandas": "≥ 1.5"},
    "embeddings": {"step_time_growth": "≤ 1.2"},
    "sequences": {"candidates_vs_rows": "≥ 3"},
    "distributed": {
        "weights_difference": "≤ 1e-6",
        "two_workers_speedup": "≥ 1.8",
    },
    "etl": {"etl_speedup": "≥ 1.7"},
    "tables": {
        "prepare_vs_criteo_reader": "≥ 0.9",
        "lightgbm_p50_over_identity": "≤ 1.6",
    },
    "stack": {"start_over_process": "≤ 1.3", "p50_over_process": "≤ 1.15", "requests_failed": "≤ 0"},
    "foreign": {
        "foreign_p50_vs_merlin": "≥ 12",
        "uncompiled_p50_vs_merlin": "≥ 1",
    },
    "quality": {"recall_vs_best_peer": "≥ 1", "ndcg_vs_best_peer": "≥ 1"},
    "promotion": {"failed_requests": "≤ 0", "slowest_rollback_s": "≤ 2", "slowest_follow_s": "≤ 10"},
    "tracking": {"looking_at_1000_runs_s": "≤ 2"},
    "tune": {"tuned_over_exhaustive": "≥ 0.95"},
}
"""Mapping from report name to ratio to target. Some are no longer measured, but still in docs/project/benchmarks.md."""


def figures_of(name: str, recipe: str | None = None, own: str | None = None) -> str:
    """Return the name of a report: the benchmark's name, with the recipe if it is not the benchmark's default."""
    return name if recipe in (None, own) else f"{name}-{recipe}"


def asked(figures: str) -> dict[str, Bound]:
    return {ratio: Bound.parse(text) for ratio, text in _ASKED.get(figures, {}).items()}
