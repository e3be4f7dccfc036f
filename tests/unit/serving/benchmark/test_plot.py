import re
from pathlib import Path

import numpy as np
import pytest

from serving.benchmark.plot import write_plot
from serving.benchmark.report import BatchResult, BenchmarkReport


@pytest.fixture
def report() -> BenchmarkReport:
    return BenchmarkReport(
        model_name="movielens",
        bench=tuple(
            BatchResult.from_samples(size, np.arange(1, 50) * 10_000 * size, elapsed_ns=10**9)
            for size in (1, 64, 16384)
        ),
        num_checked=0,
        max_abs_error=None,
        environment={},
    )


@pytest.mark.parametrize(
    ("suffix", "header"),
    [("png", rb"\x89PNG\r\n\x1a\n"), ("pdf", rb"%PDF-1\."), ("svg", rb"<\?xml [^>]*>\s*<!DOCTYPE svg ")],
)
def test_suffix_says_the_format(report: BenchmarkReport, tmp_path: Path, suffix: str, header: bytes) -> None:
    write_plot(report, tmp_path / f"bench.{suffix}")
    assert re.match(header, (tmp_path / f"bench.{suffix}").read_bytes())


def test_every_batch_size_is_a_tick(report: BenchmarkReport, tmp_path: Path) -> None:
    write_plot(report, tmp_path / "bench.svg")
    labels = (tmp_path / "bench.svg").read_text()  # Matplotlib writes each text as a comment beside its outlines
    for label in ("16,384", "p99", "rows per second", "movielens"):
        assert f"<!-- {label}" in labels
