"""Turns that measure training, or its data loading, in rows per second."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import tensorflow as tf

from bench.harness.report import Turn
from rankline.training.config.train import TrainConfig
from rankline.training.data.open_split import tensorflow_loader
from rankline.training.trainers.keras import TensorFlowTrainer
from rankline.workflows.core.machine import freed_memory_kept
from rankline.workflows.schema.feature_spec import FeatureSpec

WARMUP_STEPS = 3
"""Steps before each turn that compile and fill caches."""


def with_loader(directory: Path, spec: FeatureSpec, config: TrainConfig, turn_s: float) -> Turn:
    loader = tensorflow_loader(directory, spec, "train", config.batch_size, shuffle=True, seed=0)
    return _turns(spec, config, endless(loader), turn_s)


def one_batch(directory: Path, spec: FeatureSpec, config: TrainConfig, turn_s: float) -> Turn:
    """Return a turn that repeats the same step on a single batch, without a loader."""
    loader = tensorflow_loader(directory, spec, "train", config.batch_size, shuffle=True, seed=0)
    return _turns(spec, config, repeat(next(iter(loader))), turn_s)


def products(trainer: TensorFlowTrainer, batch_size: int, turn_s: float) -> Turn:
    """Return a turn with only the matrix products of a step's dense layers, forward and backward.

    No input pipeline can be faster than these.
    """
    kernels = [weight for weight in trainer.model.trainable_weights if weight.name.endswith("kernel:0")]
    ins, outs = ([tf.random.normal((batch_size, weight.shape[side])) for weight in kernels] for side in (0, 1))

    @tf.function  # type: ignore[untyped-decorator]
    def multiply() -> Any:
        return [
            (x @ kernel, tf.matmul(x, gradient, transpose_a=True), tf.matmul(gradient, kernel, transpose_b=True))
            for x, gradient, kernel in zip(ins, outs, kernels, strict=True)
        ]

    def work() -> int:
        multiply()
        return batch_size

    return partial(rate_of, work, turn_s)


def _turns(spec: FeatureSpec, config: TrainConfig, batches: Iterator[Any], turn_s: float) -> Turn:
    return partial(train_for, TensorFlowTrainer(spec, config, num_steps=1), batches, turn_s)


def train_for(trainer: TensorFlowTrainer, batches: Iterator[Any], turn_s: float) -> float:
    for inputs, labels in islice(batches, WARMUP_STEPS):
        trainer.step(inputs, labels)

    def learn() -> int:
        inputs, labels = next(batches)
        trainer.step(inputs, labels)
        return int(labels.shape[0])

    return rate_of(learn, turn_s)


def read_for(batches: Iterator[Any], turn_s: float) -> float:
    return rate_of(lambda: int(next(batches)[1].shape[0]), turn_s)


def rate_of(work: Callable[[], int], turn_s: float) -> float:
    """Repeat `work` for the length of a turn, and return the sum of its results per second."""
    with freed_memory_kept():  # as in training runs
        done, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < turn_s:
            done += work()
        return done / (time.perf_counter() - begin)


def endless(batches: Any) -> Iterator[Any]:
    return chain.from_iterable(repeat(batches))
