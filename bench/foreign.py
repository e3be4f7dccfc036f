"""foreign: what notebooks saved, exported by one call, against merlin-systems' export of the same.

Three questions. The workflow and the SavedModel of NVIDIA's TensorFlow notebook, and the same with a LambdaOp on a
served column, which ours runs through NVTabular: both exports of each on one server, asked the same rows over one
connection in turns. And a column of 10⁷ categories against one of 10⁴.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bench import notebook
from bench.report import Report, Turn, median_ratio, scratch_directory, take_turns
from bench.sides import asks, check_same_scores, laid_out, laid_out_for_merlin, latencies
from bench.vocabulary import turn_of
from serving.benchmark.connections import connect
from serving.client import Client
from serving.ensemble import ExportedEnsemble
from serving.export_config import ExportConfig
from serving.foreign.export import export_foreign
from serving.server import EmbeddedServer, ServerConfig
from workflows.upstream import nvt, ops, quiet_nvtabular

OURS, MERLIN = "rankline", "merlin-systems"
UNCOMPILED, MERLIN_LAMBDA = "rankline, uncompiled", "merlin-systems, LambdaOp"
VOCABULARIES = (10_000, 10_000_000)
BATCH_SIZES = (1, 1_024)
_FUNCTIONS = "rankline_bench_functions"
NOTEBOOKS = {
    "foreign": (OURS, MERLIN, "", ExportConfig()),
    "uncompiled": (UNCOMPILED, MERLIN_LAMBDA, f"{_FUNCTIONS}:decades", ExportConfig(uncompiled="LambdaOp")),
}
"""Name of the ratio → both sides, the function of the `LambdaOp`, and how ours is exported."""
_EMBEDDING_WIDTH = 8


def run(
    repeats: int,
    *,
    num_rows: int = 200_000,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    vocabularies: Sequence[int] = VOCABULARIES,
    turn_s: float = 1.0,
) -> Report:
    """Export each both ways and measure them in turns.

    Args:
        repeats: turns of each side.
        num_rows: of generated ratings.
        batch_sizes: rows per request.
        vocabularies: categories of the smaller and of the larger column.
        turn_s: how long a turn is.
    """
    with scratch_directory() as directory:
        results = _notebooks(directory, repeats, num_rows, batch_sizes, turn_s)
        growth, figures = _growth(directory, vocabularies, repeats)
    p50 = f"p50_ms@{batch_sizes[0]}"
    return Report(
        name="foreign",
        results={**results, **figures},
        ratios={
            **{
                f"{name}_p50_vs_merlin": results[theirs][p50] / results[ours][p50]
                for name, (ours, theirs, *_) in NOTEBOOKS.items()
            },
            "foreign_p50_growth_with_vocabulary": growth,
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
    """A package with a function, which says by an entry point that it may be called; on the path as if installed."""
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


def _growth(directory: Path, vocabularies: Sequence[int], repeats: int) -> tuple[float, dict[str, dict[str, float]]]:
    """p50 of one row with the larger vocabulary over that with the smaller, and the figures."""
    asked: dict[str, tuple[ExportedEnsemble, npt.NDArray[Any]]] = {}
    for size in vocabularies:
        place = directory / str(size)
        place.mkdir()
        keys = np.random.default_rng(size).choice(2**40, size, replace=False)
        _save_workflow(keys, place / "workflow")
        _save_model(size, place / "model")
        sample = pa.table({"key": keys[:: max(size // 4_096, 1)]})
        output, source = place / "ensemble", place / "workflow"
        ensemble = export_foreign(place / "model", sample, output, ExportConfig(), name=f"of_{size}", workflow=source)
        asked[_side(size)] = ensemble, keys
    served = ServerConfig(repositories=tuple(ensemble.path for ensemble, _ in asked.values()))
    with EmbeddedServer(served) as server, ExitStack() as stack:
        turns: dict[str, Turn] = {}
        for side, (ensemble, keys) in asked.items():
            client = stack.enter_context(Client(server.endpoints.grpc, ensemble.name))
            turns[side] = turn_of(client, keys)
        rates = take_turns(turns, repeats)
    smaller, larger = vocabularies
    growth = median_ratio(rates, _side(larger), _side(smaller))
    return growth, {side: {"p50_ms@1": float(np.median(values))} for side, values in rates.items()}


def _side(size: int) -> str:
    return f"{size:,} categories"


def _save_workflow(keys: np.ndarray[Any, Any], directory: Path) -> None:
    with quiet_nvtabular():
        graph = ["key"] >> ops.Categorify(out_path=str(directory.with_name("scratch")))
        nvt.Workflow(graph).fit(nvt.Dataset(pd.DataFrame({"key": keys}))).save(str(directory))


def _save_model(num_keys: int, directory: Path) -> None:
    """An embedding for each category, as a plain module."""
    import tensorflow as tf

    model = tf.Module()
    model.table = tf.Variable(tf.random.normal((num_keys + 3, _EMBEDDING_WIDTH), seed=0))

    def score(key: Any) -> Any:
        return {"score": tf.reduce_mean(tf.gather(model.table, key[:, 0]), axis=1, keepdims=True)}

    function = tf.function(score, input_signature=[tf.TensorSpec((None, 1), tf.int64, "key")])
    tf.saved_model.save(model, str(directory), signatures={"serving_default": function})
