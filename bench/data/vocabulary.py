"""vocabulary: latency of a single row with vocabularies of different sizes.

Each ensemble has one categorical column with 10⁴ to 10⁷ keys and a model with one embedding per key. The keys are
64-bit numbers far apart, so that each lookup needs the hash. All ensembles run on one machine and are called in turns
over the same client, with a new known key in each request.
"""

import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bench.harness.report import Report, Turn, median_ratio, p50_ms, scratch_directory, take_turns
from rankline.serving.client import Client
from rankline.serving.engines import engine_for
from rankline.serving.export.config import ExportConfig
from rankline.serving.export.triton_version import Served, write_version
from rankline.serving.repository.ensemble import ExportedEnsemble, publish_version
from rankline.serving.server.embedded import EmbeddedServer
from rankline.serving.server.supervisor import config_of
from rankline.workflows.nvt.keys import sorted_distinct
from rankline.workflows.plan import Column, ColumnSpec, KeyIndex, TransformPlan
from rankline.workflows.schema.model_artifact import SAVED_MODEL
from rankline.workflows.schema.tensor_names import PADDED_SIGNATURE, RAGGED_SIGNATURE, SCORE

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
NAME = "vocabulary"
_EMBEDDING_WIDTH = 8
_REQUESTS_PER_TURN = 500


def run(repeats: int) -> Report:
    results: dict[str, dict[str, float]] = {}
    with scratch_directory() as directory, ExitStack() as stack:
        turns: dict[str, Turn] = {}
        for size in SIZES:
            keys = sorted_distinct(np.random.default_rng(size).integers(-(2**62), 2**62, size))
            ensemble = _export(directory / str(size), keys)
            begin = time.perf_counter()
            server = stack.enter_context(EmbeddedServer(config_of(ensemble)))
            side = f"{size:,} keys"
            results[side] = {"load_s": time.perf_counter() - begin}
            turns[side] = partial(_p50_ms, stack.enter_context(Client(server.endpoints.grpc, NAME)), keys)
        latencies_ms = take_turns(turns, repeats)
    for side, medians in latencies_ms.items():
        results[side] = {"p50_ms@1": float(np.median(medians)), **results[side]}
    smallest, *_, largest = turns
    ratios = {"p50_growth_with_vocabulary": median_ratio(latencies_ms, largest, smallest)}
    return Report(name="vocabulary", results=results, ratios=ratios)


def _export(path: Path, keys: np.ndarray[Any, Any]) -> ExportedEnsemble:
    """Export an ensemble that looks up keys, and averages the embedding of each key."""
    plan = TransformPlan(
        inputs=(ColumnSpec(name="key", dtype="int64"),),
        indexes=(KeyIndex.build("key", keys),),
        columns=(Column(name="id", index=0, values=np.arange(len(keys) + 1)),),
    )
    model = tf.Module()
    model.table = tf.Variable(tf.random.normal((len(keys) + 1, _EMBEDDING_WIDTH), seed=0))

    def score(id: Any) -> Any:  # named like the column
        return {SCORE: tf.reduce_mean(tf.gather(model.table, tf.reshape(id, [-1])), axis=1, keepdims=True)}

    signatures = {
        name: tf.function(score).get_concrete_function(id=tf.TensorSpec(shape, tf.int64))
        for name, shape in ((PADDED_SIGNATURE, (None, 1)), (RAGGED_SIGNATURE, (None,)))
    }
    saved_model = path.with_name(f"{path.name}-model")
    tf.saved_model.save(model, str(saved_model), signatures=signatures)
    served = Served(engine=engine_for(SAVED_MODEL), path=saved_model)
    config = ExportConfig(instances=1)
    with publish_version(path, NAME, made_from={}, details={}, keep=config.keep_versions) as new:
        write_version(new.directory, plan, served, config, name=NAME, version=new.number)
    return ExportedEnsemble.load(path)


def _p50_ms(client: Client, keys: np.ndarray[Any, Any]) -> float:
    rng = np.random.default_rng(0)
    requests = iter([client.prepare({"key": [key]}) for key in rng.choice(keys, _REQUESTS_PER_TURN)])
    return p50_ms(lambda: client.infer(next(requests)), _REQUESTS_PER_TURN)
