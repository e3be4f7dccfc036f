"""foreign: what notebooks saved, exported by one call, against merlin-systems' export of the same.

Three questions. The workflow and the SavedModel of NVIDIA's TensorFlow notebook, and the same with a LambdaOp on a
served column, which ours runs through NVTabular: both exports of each on one server, asked the same rows over one
connection in turns. And a column of 10⁷ categories against one of 10⁴, from NVTabular 23.8's own save and from a
`graph.json`, as its main branch writes it.
"""

import json
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
            "foreign_p50_growth_with_vocabulary": max(growth.values()),
            **{f"foreign_p50_growth_with_vocabulary_{name}": value for name, value in growth.items()},
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


def _growth(
    directory: Path, vocabularies: Sequence[int], repeats: int
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """p50 of one row with the larger vocabulary over that with the smaller, for each format; and the figures."""
    asked: dict[str, tuple[ExportedEnsemble, npt.NDArray[Any]]] = {}
    for size in vocabularies:
        place = directory / str(size)
        place.mkdir()
        keys = np.random.default_rng(size).choice(2**40, size, replace=False)
        _save_workflow(keys, place / "pickle")
        _save_as_graph(place / "pickle", place / "graph")
        _save_model(size, place / "model")
        sample = pa.table({"key": keys[:: max(size // 4_096, 1)]})
        for kind in ("pickle", "graph"):
            name, output, source = f"{kind}_{size}", place / f"{kind}-ensemble", place / kind
            ensemble = export_foreign(place / "model", sample, output, ExportConfig(), name=name, workflow=source)
            asked[_side(kind, size)] = ensemble, keys
    served = ServerConfig(repositories=tuple(ensemble.path for ensemble, _ in asked.values()))
    with EmbeddedServer(served) as server, ExitStack() as stack:
        turns: dict[str, Turn] = {}
        for side, (ensemble, keys) in asked.items():
            client = stack.enter_context(Client(server.endpoints.grpc, ensemble.name))
            turns[side] = turn_of(client, keys)
        rates = take_turns(turns, repeats)
    smaller, larger = vocabularies
    growth = {name: median_ratio(rates, _side(name, larger), _side(name, smaller)) for name in ("pickle", "graph")}
    return growth, {side: {"p50_ms@1": float(np.median(values))} for side, values in rates.items()}


def _side(name: str, size: int) -> str:
    return f"{'workflow.pkl' if name == 'pickle' else 'graph.json'}, {size:,} categories"


def _save_workflow(keys: np.ndarray[Any, Any], directory: Path) -> None:
    with quiet_nvtabular():
        graph = ["key"] >> ops.Categorify(out_path=str(directory.with_name("scratch")))
        nvt.Workflow(graph).fit(nvt.Dataset(pd.DataFrame({"key": keys}))).save(str(directory))


def _save_as_graph(saved: Path, directory: Path) -> None:
    """The same workflow in the format of NVTabular's main branch: nodes as JSON, and the vocabulary beside them."""
    (found,) = saved.rglob("unique.key.parquet")
    vocabulary = directory / "artifacts" / "node_1" / "categories" / found.name
    vocabulary.parent.mkdir(parents=True)
    pq.write_table(pq.read_table(found), vocabulary)

    def column(tags: Sequence[str] = ()) -> list[dict[str, Any]]:
        dtype = {"name": "int64", "element_type": "int", "element_size": 64, "signed": True}
        return [
            {"name": "key", "tags": list(tags), "properties": {}, "dtype": dtype, "is_list": False, "is_ragged": False}
        ]

    selector = {"names": ["key"], "tags": []}
    common: dict[str, Any] = {"dependency_ids": [], "input_schema": column()}
    nodes = [
        {
            "id": 0,
            "op_class": "merlin.dag.ops.selection.SelectionOp",
            "op_params": {"selector": selector},
            "op_state": {},
            "parent_ids": [],
            "selector": selector,
            "output_schema": column(),
            **common,
        },
        {
            "id": 1,
            "op_class": "nvtabular.ops.categorify.Categorify",
            "op_params": {
                "freq_threshold": 0, "cat_cache": "host", "dtype": None, "on_host": True, "encode_type": "joint",
                "name_sep": "_", "search_sorted": False, "num_buckets": None, "max_size": 0, "single_table": False,
                "cardinality_memory_limit": None, "split_out": 1, "split_every": 8,
            },
            "op_state": {"categories": [{"key": ["key"], "path": f"categories/{found.name}"}], "storage_name": {}},
            "parent_ids": [0],
            "selector": selector,
            "output_schema": column(["Tags.CATEGORICAL"]),
            **common,
        },
    ]  # fmt: skip
    document = {"format_version": 1, "output_node_id": 1, "nodes": nodes}
    (directory / "graph.json").write_text(json.dumps(document))
    (directory / "metadata.json").write_text((saved / "metadata.json").read_text())


def _save_model(num_keys: int, directory: Path) -> None:
    """An embedding for each category, as a plain module."""
    import tensorflow as tf

    model = tf.Module()
    model.table = tf.Variable(tf.random.normal((num_keys + 3, _EMBEDDING_WIDTH), seed=0))

    def score(key: Any) -> Any:
        return {"score": tf.reduce_mean(tf.gather(model.table, key[:, 0]), axis=1, keepdims=True)}

    function = tf.function(score, input_signature=[tf.TensorSpec((None, 1), tf.int64, "key")])
    tf.saved_model.save(model, str(directory), signatures={"serving_default": function})
