"""What each worker of `test_workers_exact` does: python exact_worker.py DIRECTORY, which has prepared data."""

import gc
import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rankline.training.config.train import SessionConfig, TrainConfig
from rankline.training.distributed.communicator import Communicator, join_world
from rankline.training.distributed.config import WorkersConfig
from rankline.training.models.sequential import DINConfig
from rankline.training.models.tabular import MLPConfig
from rankline.training.run.checkpoint import check_same
from rankline.training.run.observers import Observer
from rankline.training.run.train import train
from rankline.training.tracking import TrackingConfig
from rankline.training.trainers.keras import TensorFlowTrainer
from rankline.workflows.core.errors import ConfigError, DataError
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.schema.feature_spec import FeatureSpec
from tests.e2e.distributed.exact_steps import BATCH_SIZE, L2, take_exact_steps

UNEVEN = (61, 39)
OPTIMIZERS = ("sgd", "adam", "lazy_adam", "rowwise_adagrad")
BASE = TrainConfig(
    model=MLPConfig(hidden=(16, 8), l2_embedding=L2, l2_linear=L2),
    batch_size=BATCH_SIZE,
    learning_rate=0.01,
    weight_decay=0.001,
    warmup_steps=2,
    seed=3,
)
DIN = DINConfig(embedding_dim=6, recency=True, dot_product_features=True, hidden=(8,), l2_embedding=0.01)
CASES: dict[str, tuple[TrainConfig, WorkersConfig]] = {
    **{name: (replace(BASE, optimizer=name), WorkersConfig()) for name in OPTIMIZERS},
    "fp16": (replace(BASE, optimizer="lazy_adam", weight_decay=0.0), WorkersConfig(compression="fp16")),
    "float16": (replace(BASE, optimizer="lazy_adam", precision="float16"), WorkersConfig()),
    # No Adam: a softmax does not mind a bias, whose gradient is rounding, and Adam scales that up.
    "histories": (replace(BASE, model=DIN, optimizer="sgd"), WorkersConfig()),
}
RUN = TrainConfig(
    model=MLPConfig(hidden=(16,), dropout=0.2),
    batch_size=60,
    epochs=2,
    learning_rate=0.01,
    learning_rate_decay="cosine",
    early_stopping_patience=0,
    seed=3,
)
RUN_WORKERS = WorkersConfig(scale_learning_rate="linear")
COPIED_AFTER_STEP = 7
OVERFLOW, LARGE = 2, 2e4


def global_batches(files: Path, spec: FeatureSpec) -> list[Any]:
    """The rows of a few steps of all workers: the last step has fewer."""
    batches = TensorFlowTrainer.batches(files, spec, "train", BATCH_SIZE, shuffle=True, seed=0)
    *whole, (inputs, labels) = list(batches)[:6]
    return [*whole, share((inputs, labels), 0, 37)]


def share(batch: Any, start: int, stop: int) -> Any:
    """Rows of a batch; the values of its lists lie one behind the other."""
    inputs, labels = batch
    found = {}
    for name, tensor in inputs.items():
        if name.endswith("__values"):
            ends = np.cumsum(np.append(0, inputs[name.replace("__values", "__nnzs")].numpy()))
            found[name] = tensor[ends[start] : ends[stop]]
        else:
            found[name] = tensor[start:stop]
    return found, labels[start:stop]


def fitted(directory: Path, name: str, world: Communicator) -> dict[str, dict[str, Any]]:
    """The state of a trainer before training, after steps that are exact, and after others.

    In all of them worker 0 has more rows than worker 1. An optimizer's own case alone takes the exact steps.
    """
    config, files = CASES[name][0], directory / ("histories" if name == "histories" else "prepared")
    spec = FeatureSpec.read(files).for_scoring
    batches = global_batches(files, spec)
    trainer = TensorFlowTrainer(spec, config, num_steps=len(batches), world=world)
    trainer.share_state()
    states = {"before": copied(trainer.state())}
    if name in OPTIMIZERS:
        take_exact_steps(trainer, spec, world)
        states["exact"] = copied(trainer.state())
    for number, (inputs, labels) in enumerate(batches):
        of_first = labels.shape[0] * UNEVEN[0] // sum(UNEVEN)
        if name == "float16" and number == OVERFLOW:  # of the gradients that worker 1 finds
            large = np.where(np.arange(labels.shape[0]) < of_first, 1, LARGE)[:, None].astype(np.float32)
            inputs = {**inputs, "age": inputs["age"] * large}
        rows = (0, labels.shape[0])
        if world.size > 1:
            rows = (0, of_first) if world.rank == 0 else (of_first, labels.shape[0])
        trainer.step(*share((inputs, labels), *rows))
        trainer.average()
    return {**states, "after": copied(trainer.state())}


def copied(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: np.array(value) for name, value in state.items()}


class Copy(Observer):
    """Keeps a checkpoint that later ones would replace."""

    def __init__(self, checkpoint: Path, copy: Path) -> None:
        self._checkpoint, self._copy = checkpoint, copy

    def before_step(self, step: int) -> None:
        if step == COPIED_AFTER_STEP + 1:
            shutil.copytree(self._checkpoint, self._copy)


class Told:
    """Counts reports."""

    count = 0

    def update(self, done: float, total: float, note: str = "") -> None:
        self.count, self.last = self.count + 1, (done, total)


def main(directory: Path) -> None:
    world = join_world(RUN_WORKERS)
    with world.propagating_errors():
        for name, (_, workers) in CASES.items():
            for stage, state in fitted(directory, name, join_world(workers)).items():
                np.savez(directory / f"{name}-{stage}-{world.rank}.npz", **state)
        found: dict[str, Any] = {}
        data, tracking = (
            PreparedData.load(directory / "prepared"),
            TrackingConfig(directory=directory, experiment="two"),
        )
        told, kept = Told(), directory / "checkpoint"
        options: dict[str, Any] = {"tracking": tracking, "world": world, "workers": RUN_WORKERS}
        model = train(
            data,
            directory / "model",
            RUN,
            session=SessionConfig(checkpoint_every=COPIED_AFTER_STEP),
            checkpoint=kept,
            progress=told,
            observers=lambda _: [Copy(kept, directory / "copied")],
            **options,
        )
        found |= {"metrics": model.metrics, "run_id": model.run_id, "reports": told.count}
        session = SessionConfig(checkpoint_every=COPIED_AFTER_STEP, resume=True)
        again = train(data, directory / "again", RUN, session=session, checkpoint=directory / "copied", **options)
        found |= {"resumed_metrics": again.metrics, "resumed_run_id": again.run_id}
        rate = 0.01 * (1 + world.rank)
        try:
            choices = replace(RUN, learning_rate=rate)
            check_same(world, choices, SessionConfig(), RUN_WORKERS, data.manifest.fingerprint)
        except ConfigError as error:
            found["difference"] = str(error)
        (directory / f"found-{world.rank}.json").write_text(json.dumps(found))
        if world.rank == 1:
            raise DataError("rows are spoilt.")
        world.sum([1.0])


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    finally:
        gc.freeze()  # as `rankline` does at its end
