"""foreign: artifacts saved by notebooks, exported with a single call, against merlin-systems' export.

The subjects are the workflow and the SavedModel of NVIDIA's TensorFlow notebook, and the same with a LambdaOp on a
served column, which Rankline runs through NVTabular. Both exports of each run on one server and receive the same rows
over one connection, in turns.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow.parquet as pq

from bench.harness.interleaved import asks, check_same_scores, laid_out, laid_out_for_merlin, latencies
from bench.harness.report import Report, scratch_directory
from bench.peers import notebook
from rankline.serving.export.config import ExportConfig
from rankline.serving.importers.export import export_foreign
from rankline.serving.loadtest.generator.worker_pool import connect
from rankline.serving.server.embedded import EmbeddedServer, ServerConfig

OURS, MERLIN = "rankline", "merlin-systems"
UNCOMPILED, MERLIN_LAMBDA = "rankline, uncompiled", "merlin-systems, LambdaOp"
BATCH_SIZES = (1, 1_024)
_FUNCTIONS = "rankline_bench_functions"
NOTEBOOKS = {
    "foreign": (OURS, MERLIN, "", ExportConfig()),
    "uncompiled": (UNCOMPILED, MERLIN_LAMBDA, f"{_FUNCTIONS}:decades", ExportConfig(uncompiled="LambdaOp")),
}
"""Mapping from prefix of the ratio to both sides, the function of the LambdaOp, and Rankline's export config."""


def run(
    repeats: int,
    *,
    num_rows: int = 200_000,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    turn_s: float = 1.0,
) -> Report:
    with scratch_directory() as directory:
        results = _notebooks(directory, repeats, num_rows, batch_sizes, turn_s)
    p50 = f"p50_ms@{batch_sizes[0]}"
    return Report(
        name="foreign",
        results=results,
        ratios={
            f"{name}_p50_vs_merlin": results[theirs][p50] / results[ours][p50]
            for name, (ours, theirs, *_) in NOTEBOOKS.items()
        },
    )


def _notebooks(
    directory: Path, repeats: int, num_rows: int, batch_sizes: Sequence[int], turn_s: float
) -> dict[str, dict[str, float]]:
    results: dict[str, dict[str, float]] = {}
    package = directory / "package"
    with _installed(package):
        for name, (ours, theirs, function, config) in NOTEBOOKS.items():
            place = directory / name
            place.mkdir()
            notebook.make(place, num_rows, function, path=package)
            rows = pq.read_table(place / "rows.parquet").combine_chunks()
            export_foreign(place / "model", rows, place / "ours", config, name="ours", workflow=place / "workflow")
            notebook.export_with_merlin(place, place / "merlin")
            served = ServerConfig(repositories=(place / "ours", place / "merlin"))
            with EmbeddedServer(served) as server, closing(connect("http2", server.endpoints.grpc)) as connection:
                requests = laid_out(server.endpoints.grpc, "ours", rows, batch_sizes)
                sides = {
                    ours: asks(connection, requests),
                    theirs: asks(connection, laid_out_for_merlin(rows, requests)),
                }
                check_same_scores(sides, batch_sizes[-1])
                results |= latencies(sides, batch_sizes, repeats, turn_s)
    return results


@contextmanager
def _installed(directory: Path) -> Iterator[None]:
    """Put a package with a function on the import path, as if installed, with an entry point that allows calling it."""
    about = directory / f"{_FUNCTIONS}-1.0.dist-info"
    about.mkdir(parents=True)
    (directory / f"{_FUNCTIONS}.py").write_text("def decades(column):\n    return (column // 10).astype('float32')\n")
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {_FUNCTIONS}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[rankline.functions]\ndecades = {_FUNCTIONS}:decades\n")
    sys.path.insert(0, str(directory))
    try:
        yield
    finally:
        sys.path.remove(str(directory))
