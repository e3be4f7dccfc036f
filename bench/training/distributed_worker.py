"""Worker of `bench.training.distributed`: python -m bench.training.distributed_worker DIRECTORY.

`task.json` in the directory names a function in this module and its arguments. Its result is written to RANK.json.
"""

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tensorflow as tf

from rankline.launch.worker import allowed_cpus, share_of
from rankline.recipes import recipe_named
from rankline.training.data.loader.stream import StreamOptions
from rankline.training.distributed.communicator import Communicator, join_world
from rankline.training.distributed.config import WorkersConfig
from rankline.training.distributed.horovod import HorovodWorld
from rankline.training.models.tabular import MLPConfig
from rankline.training.trainers.keras import TensorFlowTrainer
from rankline.workflows.schema.feature_spec import Feature, FeatureSpec

_WARMUP_STEPS = 3
_RECIPE = recipe_named("movielens").train
_ONE_TABLE = replace(
    _RECIPE, model=MLPConfig(hidden=(8,), linear_terms=False, embedding_dim=16), weight_averaging=False
)
_LOOPBACK = "lo"
_TABLE = "id"


def speed(
    world: Communicator, directory: str, batch_size: int, num_steps: int, place: int, num_places: int
) -> dict[str, float]:
    """Return the rows per second that all workers train on together.

    `place` is the index of the first worker among the `num_places` workers that share the machine's cores.
    """
    cores = share_of(allowed_cpus(), rank=place + world.rank, size=num_places) or os.sched_getaffinity(0)
    for thread in Path("/proc/self/task").iterdir():  # later threads inherit it
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cores)
    spec, config = FeatureSpec.read(Path(directory)), replace(_RECIPE, batch_size=batch_size * world.size)
    order: StreamOptions = {"shuffle": True, "seed": 0, "global_rank": world.rank, "global_size": world.size}
    loader = TensorFlowTrainer.batches(Path(directory), spec, "train", batch_size, **order)
    trainer, batches = (
        TensorFlowTrainer(spec, config, num_steps=num_steps, world=world),
        chain.from_iterable(repeat(loader)),
    )
    trainer.share_state()
    for batch in islice(batches, _WARMUP_STEPS):
        trainer.step(*batch)
    world.sum([0.0])  # wait for all workers
    begin, done = time.perf_counter(), 0
    for inputs, labels in islice(batches, num_steps):
        trainer.step(inputs, labels)
        done += int(labels.shape[0])
    return {"rows_per_s": world.sum([done])[0] / (time.perf_counter() - begin)}


def sent(
    world: Communicator, tables: Sequence[tuple[int, int]], num_steps: int, idle_s: float
) -> dict[str, list[dict[str, float]]]:
    whole_tables = _WholeTables(compression=WorkersConfig.compression, timeout_s=WorkersConfig.timeout_s)
    return {
        kind: [_sent_per_step(exchange, size, touched, num_steps, idle_s) for size, touched in tables]
        for kind, exchange in (("sparse", world), ("dense", whole_tables))
    }


class _WholeTables(HorovodWorld):
    """Sends gradients of tables as dense tensors, like `sparse_as_dense` in Horovod."""

    def all_reduce(self, values: Sequence[Any], shapes: Sequence[Sequence[int]], max_rows: int) -> list[Any]:
        return super().all_reduce(values, shapes, max(max_rows, *(shape[0] for shape in shapes if shape)))


def _sent_per_step(
    world: Communicator, num_rows: int, num_touched: int, num_steps: int, idle_s: float
) -> dict[str, float]:
    config = replace(_ONE_TABLE, batch_size=num_touched * world.size)
    trainer = TensorFlowTrainer(_one_table(num_rows), config, num_steps=num_steps, world=world)
    trainer.share_state()
    batch = _lookups(num_rows, num_touched, world.rank)
    for _ in range(_WARMUP_STEPS):
        trainer.step(*batch)
    world.sum([0.0])
    bytes_before, begin = _sent_bytes(), time.perf_counter()
    for _ in range(num_steps):
        trainer.step(*batch)
    elapsed_s, bytes_sent = time.perf_counter() - begin, _sent_bytes() - bytes_before
    world.sum([0.0])
    bytes_before = _sent_bytes()
    time.sleep(idle_s)
    idle_bytes_per_s = (_sent_bytes() - bytes_before) / idle_s
    world.sum([0.0])
    of_all = (bytes_sent - idle_bytes_per_s * elapsed_s) / num_steps
    return {"bytes": of_all / world.size, "step_ms": elapsed_s / num_steps * 1e3}


def _sent_bytes() -> int:
    return psutil.net_io_counters(pernic=True, nowrap=False)[_LOOPBACK].bytes_sent


def _one_table(num_rows: int) -> FeatureSpec:
    return FeatureSpec(
        features=(
            Feature(name=_TABLE, dtype="int64", cardinality=num_rows, embedding_dim=1),  # the model has its own
            Feature(name="label", dtype="float32"),
        ),
        channels={"categorical": (_TABLE,), "label": ("label",)},
    )


def _lookups(num_rows: int, count: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    ids = rng.choice(num_rows, count, replace=False)[:, None]
    return {_TABLE: tf.constant(ids, tf.int64)}, tf.constant(rng.integers(0, 2, (count, 1)), tf.float32)


_TASKS: Mapping[str, Callable[..., Any]] = {task.__name__: task for task in (speed, sent)}


def main(directory: Path) -> None:
    """Run the task in `task.json`, together with the other workers if horovodrun started this process."""
    asked = json.loads((directory / "task.json").read_text(encoding="utf-8"))
    world = join_world()
    with world.propagating_errors():
        found = _TASKS[asked["task"]](world, **asked["arguments"])
    (directory / f"{world.rank}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    finally:
        gc.freeze()  # speeds up exit, as in `rankline`
