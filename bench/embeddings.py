"""embeddings: what a training step costs with 10⁶ to 10⁸ rows of embeddings, and with one table or many.

DLRM of the sizes of NVIDIA's Criteo notebook learns with row-wise Adagrad: 26 columns of equal cardinality, 13 numbers,
random ids. They are drawn by a Zipf law, the frequent ids in front as `Categorify` numbers them, or uniformly, the
worst case, in which nearly every lookup misses the processor's caches. "tables" is a step of nothing but lookup,
gradient and update. A side goes through several batches, so that none finds its rows in the caches; sides run in turns,
and figures are medians.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import psutil
import tensorflow as tf
from numpy.typing import NDArray

from bench.report import Report, Turn, median_ratio, take_turns
from rankline.recipes import recipe_named
from training.config import TrainConfig
from training.layers import ScalarDenseFeatures
from training.models.base import embedding_columns
from training.models.config import NetworkConfig
from training.optimizers import make_optimizer
from training.trainers.tensorflow import TensorFlowTrainer
from workflows.feature_spec import Feature, FeatureSpec

SIZES = (1_000_000, 10_000_000, 100_000_000)  # rows of all tables
NETWORK = recipe_named("criteo-dlrm").train.with_choices(linear_terms=False, weight_averaging=False, batch_size=4096)
BATCH_SIZES = (1, 4096, 65_536)  # for one table or many
_CATEGORIES, _NUMBERS = [f"C{n:02}" for n in range(26)], [f"I{n:02}" for n in range(13)]
_NUM_BATCHES = 12
_ZIPF_EXPONENT = 1.1

Batch = tuple[Mapping[str, Any], Any]
Draw = Callable[[np.random.Generator, int, int], NDArray[np.int64]]
"""Generator, number of ids and how many to draw → ids."""


def run(
    repeats: int,
    *,
    sizes: tuple[int, int, int] = SIZES,
    network: TrainConfig = NETWORK,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    turn_s: float = 2.0,
) -> Report:
    """Train with tables of each size in turns.

    Args:
        repeats: turns of each side.
        sizes: rows of all tables; the first and the last are compared, the middle one is for one table or many.
        network: the model, and the rows per step.
        batch_sizes: rows per step for one table or many.
        turn_s: how long a turn is.
    """
    assert isinstance(network.model, NetworkConfig)
    results: dict[str, dict[str, float]] = {}
    sides: dict[str, Turn] = {}
    for size in sizes:
        bytes_before = psutil.Process().memory_info().rss
        trainer = TensorFlowTrainer(_spec(size), network, num_steps=1)
        memory_mb = (psutil.Process().memory_info().rss - bytes_before) / 2**20
        tables = _table_step(trainer.model.get_layer("features"), network)
        for name, draw in _DRAWS.items():
            batches = _batches(size, network.batch_size, draw)
            side = _side(size, name)
            results[side] = {"distinct_rows": _distinct_rows(batches), "memory_mb": memory_mb}
            sides[side] = _turn(trainer.step, batches, turn_s)
            sides[f"{side}, tables"] = _turn(tables, batches, turn_s)
    columns = embedding_columns(_spec(sizes[1]).categorical, network.model)
    for kind, fused in ("1 table", True), ("26 tables", False):
        step = _table_step(ScalarDenseFeatures(columns, fused=fused), network)
        for batch_size in batch_sizes:
            sides[f"{kind}, batch {batch_size:,}"] = _turn(step, _batches(sizes[1], batch_size, _zipf), turn_s)
    rates = take_turns(sides, repeats)
    for side, seconds in rates.items():
        results[side] = {"step_ms": statistics.median(seconds) * 1e3, **results.get(side, {})}
    growth = partial(median_ratio, rates)
    zipf, uniform = ([_side(size, name) for size in (sizes[-1], sizes[0])] for name in _DRAWS)
    ratios = {
        "step_time_growth": growth(*zipf),
        "step_time_growth_uniform": growth(*uniform),
        "tables_growth": growth(*(f"{side}, tables" for side in zipf)),
        "tables_growth_uniform": growth(*(f"{side}, tables" for side in uniform)),
        **{
            f"fused_speedup@{size}": growth(f"26 tables, batch {size:,}", f"1 table, batch {size:,}")
            for size in batch_sizes
        },
    }
    return Report(name="embeddings", results=results, ratios=ratios)


def _side(size: int, draw: str) -> str:
    return f"{size:,} {draw}"


def _spec(num_rows: int) -> FeatureSpec:
    cardinality = num_rows // len(_CATEGORIES)
    return FeatureSpec(
        features=(
            *(Feature(name=name, dtype="int64", cardinality=cardinality, embedding_dim=8) for name in _CATEGORIES),
            *(Feature(name=name, dtype="float32") for name in _NUMBERS),
            Feature(name="label", dtype="float32"),
        ),
        channels={"categorical": tuple(_CATEGORIES), "continuous": tuple(_NUMBERS), "label": ("label",)},
    )


def _zipf(rng: np.random.Generator, num_ids: int, count: int) -> NDArray[np.int64]:
    """The k-th id as often as 1 / k^exponent, by the inverse of the continuous law's distribution."""
    power = 1 - _ZIPF_EXPONENT
    places = (1 + rng.random(count) * ((num_ids + 1) ** power - 1)) ** (1 / power)
    ids: NDArray[np.int64] = np.minimum(places.astype(np.int64) - 1, num_ids - 1)
    return ids


def _uniform(rng: np.random.Generator, num_ids: int, count: int) -> NDArray[np.int64]:
    return rng.integers(0, num_ids, count)


_DRAWS: Mapping[str, Draw] = {"zipf": _zipf, "uniform": _uniform}


def _batches(num_rows: int, batch_size: int, draw: Draw) -> list[Batch]:
    rng = np.random.default_rng(0)
    cardinality = num_rows // len(_CATEGORIES)

    def batch() -> Batch:
        ids = {name: tf.constant(draw(rng, cardinality, batch_size)[:, None]) for name in _CATEGORIES}
        numbers = {name: tf.constant(rng.standard_normal((batch_size, 1), np.float32)) for name in _NUMBERS}
        return {**ids, **numbers}, tf.constant(rng.integers(0, 2, (batch_size, 1)), tf.float32)

    return [batch() for _ in range(_NUM_BATCHES)]


def _distinct_rows(batches: Sequence[Batch]) -> float:
    """Rows of tables that a step touches, on average."""
    return statistics.mean(sum(len(np.unique(inputs[name].numpy())) for name in _CATEGORIES) for inputs, _ in batches)


def _table_step(layer: Any, network: TrainConfig) -> Callable[..., object]:
    """Lookup, gradient of the sum of what was looked up, and update."""
    optimizer = make_optimizer(network.optimizer, learning_rate=network.learning_rate, batch_size=network.batch_size)

    def step(inputs: Mapping[str, Any], labels: Any) -> None:  # noqa: ARG001  (as in `TensorFlowTrainer`)
        with tf.GradientTape() as tape:
            rows = layer(inputs)
        variables = layer.trainable_variables
        optimizer.apply_gradients(list(zip(tape.gradient(rows, variables), variables, strict=True)))

    specs = {
        **{name: tf.TensorSpec((None, 1), tf.int64) for name in _CATEGORIES},
        **{name: tf.TensorSpec((None, 1), tf.float32) for name in _NUMBERS},
    }
    if not layer.built:
        layer.build({name: spec.shape for name, spec in specs.items()})
    optimizer.build(layer.trainable_variables)
    made: Callable[..., object] = tf.function(step, autograph=False).get_concrete_function(
        specs, tf.TensorSpec((None, 1), tf.float32)
    )
    return made


def _turn(step: Callable[..., object], batches: Sequence[Batch], turn_s: float) -> Turn:
    """Seconds per step."""
    endless = cycle(batches)

    def turn() -> float:
        done, begin = 0, time.perf_counter()
        while not done or time.perf_counter() - begin < turn_s:
            step(*next(endless))
            done += 1
        return (time.perf_counter() - begin) / done

    return turn
