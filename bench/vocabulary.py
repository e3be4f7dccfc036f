"""vocabulary: what a larger vocabulary costs when one row is served, and what it takes to load.

Ensembles of one categorical column with 10⁴ to 10⁷ keys, 64-bit numbers far apart, so that every one is found by its
hash, and a model with one embedding per key. All are on one machine at a time, asked in turns over the same client;
a fresh key, known to the vocabulary, for each request.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tensorflow as tf

from bench.report import Report, Turn, median_ratio, scratch_directory, take_turns
from serving.client import Client
from serving.engines import engine_for
from serving.ensemble import ExportedEnsemble, publish_version
from serving.export_config import ExportConfig
from serving.plan import Column, ColumnSpec, KeyIndex, TransformPlan
from serving.server import EmbeddedServer
from serving.supervise import config_of
from serving.version import Served, write_version
from workflows.distinct import sorted_distinct
from workflows.tensor_names import PADDED_SIGNATURE, RAGGED_SIGNATURE, SCORE
from workflows.trained import SAVED_MODEL

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
NAME = "vocabulary"
_EMBEDDING_WIDTH = 8
_REQUESTS_PER_TURN = 500
_KEYS_TO_READ_ALL_PAGES = 2_000_000  # drawn at random; a page holds at least 512 entries


def run(repeats: int) -> Report:
    """Serve each vocabulary, and the largest once more with two instances."""
    results: dict[str, dict[str, float]] = {}
    with scratch_directory() as directory, ExitStack() as stack:
        turns: dict[str, Turn] = {}
        for size in SIZES:
            keys = sorted_distinct(np.random.default_rng(size).integers(-(2**62), 2**62, size))
            ensemble = _export(directory / str(size), keys, instances=1)
            server, figures = stack.enter_context(_served(ensemble, keys))
            results[_side(size)] = figures
            turns[_side(size)] = turn_of(stack.enter_context(Client(server.endpoints.grpc, NAME)), keys)
        rates = take_turns(turns, repeats)
        for side, latencies_ms in rates.items():
            results[side] = {"p50_ms@1": float(np.median(latencies_ms)), **results[side]}
        two = _export(directory / "two", keys, instances=2)
        _, figures = stack.enter_context(_served(two, keys))
        results[f"{_side(SIZES[-1])}, two instances"] = figures
    one, two_instances = results[_side(SIZES[-1])], figures
    return Report(
        name="vocabulary",
        results=results,
        ratios={
            "p50_growth_with_vocabulary": median_ratio(rates, _side(SIZES[-1]), _side(SIZES[0])),
            "second_instance": two_instances["server_mb"] / one["server_mb"] - 1,
        },
    )


def _side(size: int) -> str:
    return f"{size:,} keys"


def _export(path: Path, keys: np.ndarray[Any, Any], *, instances: int) -> ExportedEnsemble:
    """An ensemble that looks keys up, and their embeddings by what is found."""
    plan = TransformPlan(
        inputs=(ColumnSpec(name="key", dtype="int64"),),
        indexes=(KeyIndex.build("key", keys),),
        columns=(Column(name="id", index=0, values=np.arange(len(keys) + 1)),),
    )
    model = tf.Module()
    model.table = tf.Variable(tf.random.normal((len(keys) + 1, _EMBEDDING_WIDTH), seed=0))

    def score(id: Any) -> Any:  # the column's name
        return {SCORE: tf.reduce_mean(tf.gather(model.table, tf.reshape(id, [-1])), axis=1, keepdims=True)}

    signatures = {
        name: tf.function(score).get_concrete_function(id=tf.TensorSpec(shape, tf.int64))
        for name, shape in ((PADDED_SIGNATURE, (None, 1)), (RAGGED_SIGNATURE, (None,)))
    }
    saved_model = path.with_name(f"{path.name}-model")
    tf.saved_model.save(model, str(saved_model), signatures=signatures)
    served = Served(engine=engine_for(SAVED_MODEL), path=saved_model)
    config = ExportConfig(instances=instances)
    with publish_version(path, NAME, made_from={}, details={}, keep=config.keep_versions) as new:
        write_version(new.directory, plan, served, config, name=NAME, version=new.number)
    return ExportedEnsemble.load(path)


@contextmanager
def _served(
    ensemble: ExportedEnsemble, keys: np.ndarray[Any, Any]
) -> Iterator[tuple[EmbeddedServer, dict[str, float]]]:
    """A server of an ensemble, and what it took: seconds to be ready, and its memory.

    Memory is the proportional set size, once every page of the vocabulary has been read: what is shared counts in equal
    parts, so that a sum counts it once.
    """
    begin = time.perf_counter()
    with EmbeddedServer(config_of(ensemble)) as server:
        figures = {"load_s": time.perf_counter() - begin}
        with Client(server.endpoints.grpc, NAME) as client:
            client.predict({"key": np.random.default_rng(0).choice(keys, _KEYS_TO_READ_ALL_PAGES)})
        processes = map(psutil.Process, server.process_ids())
        figures["server_mb"] = sum(process.memory_full_info().pss for process in processes) / 1e6
        yield server, figures


def turn_of(client: Client, keys: np.ndarray[Any, Any]) -> Turn:
    """A turn that asks for known keys of the column `key`, one per request, and gives the median latency in ms."""
    rng = np.random.default_rng(0)

    def turn() -> float:
        requests = [client.prepare({"key": [key]}) for key in rng.choice(keys, _REQUESTS_PER_TURN)]
        latencies_ns = []
        for request in requests:
            begin = time.perf_counter_ns()
            client.infer(request)
            latencies_ns.append(time.perf_counter_ns() - begin)
        return float(np.median(latencies_ns)) / 1e6

    return turn
