"""What each worker of `test_split_tables` does: python split_worker.py DIRECTORY, which has prepared data."""

import gc
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.system.exact_steps import BATCH_SIZE, L2, take_exact_steps
from tests.system.exact_worker import copied, share
from training.config import SessionConfig, TrainConfig, WorkersConfig
from training.join import join_world
from training.models.din import DINConfig
from training.models.mlp import MLPConfig
from training.observers import Observer
from training.splitting import Splitting, splitting
from training.table_parts import TablePart
from training.tracking import TrackingConfig
from training.train import train
from training.trainers.tensorflow import TensorFlowTrainer
from training.world import World
from workflows.feature_spec import FeatureSpec

UNEVEN = (61, 39)
BASE = TrainConfig(
    model=MLPConfig(hidden=(16, 8), l2_embedding=L2),
    batch_size=BATCH_SIZE,
    learning_rate=0.01,
    weight_decay=0.001,
    seed=3,
)
DIN = DINConfig(embedding_dim=6, recency=True, dot_product_features=True, hidden=(8,), l2_embedding=0.01)
HISTORIES = replace(BASE, model=DIN, weight_averaging=False)
# No Adam for histories: a softmax does not mind a bias, whose gradient is rounding, and Adam scales that up.
CASES: dict[str, tuple[str, TrainConfig]] = {
    "lists": ("prepared", replace(BASE, optimizer="rowwise_adagrad")),
    "fused": ("scalars", replace(BASE, optimizer="adam")),
    "histories": ("histories", replace(HISTORIES, optimizer="sgd")),
    "float16": ("scalars", replace(BASE, optimizer="lazy_adam", precision="float16")),
}
EXACT = ("lists", "fused")
OVERFLOW, LARGE = 2, 2e4
RUN = TrainConfig(
    model=MLPConfig(hidden=(16,)), batch_size=50, epochs=3, learning_rate=0.01, early_stopping_patience=2, seed=3
)
RUN_WORKERS = WorkersConfig(split_tables_share=1e-9)
CHECKPOINT_EVERY = 7


def spec_of(directory: Path, name: str) -> FeatureSpec:
    """What the model of a case learns from; "scalars" are the rows of "prepared" without their lists."""
    data = CASES[name][0]
    spec = FeatureSpec.read(directory / data.replace("scalars", "prepared")).for_scoring
    if data == "scalars":
        spec = replace(spec, channels={**spec.channels, "categorical": ("userId", "movieId")})
    return spec


def fitted(directory: Path, name: str, world: World) -> tuple[dict[str, dict[str, Any]], list[int]]:
    """The state of a trainer with split tables before training, after steps that are exact, and after others.

    Its tables are whole; in all steps worker 0 has more rows than worker 1. Also how many rows of each split table, and
    of what goes with it, this worker has.
    """
    data, config = CASES[name]
    spec, files = spec_of(directory, name), directory / data.replace("scalars", "prepared")
    batches = list(TensorFlowTrainer.batches(files, spec, "train", BATCH_SIZE, shuffle=True, seed=0))[:5]
    with splitting(Splitting(world=world, above_bytes=0)):
        trainer = TensorFlowTrainer(spec, config, num_steps=len(batches), world=world)
    trainer.share_state()
    sizes = [len(kept.rows) for kept in trainer.state().values() if isinstance(kept, TablePart)]
    states = {"before": whole(trainer)}
    if name in EXACT:
        take_exact_steps(trainer, spec, world)
        states["exact"] = whole(trainer)
    for number, (inputs, labels) in enumerate(batches):
        num_rows = labels.shape[0] - number  # and fewer in each step
        of_first = num_rows * UNEVEN[0] // sum(UNEVEN)
        if name == "float16" and number == OVERFLOW:  # of the gradients that worker 1 finds
            large = np.where(np.arange(labels.shape[0]) < of_first, 1, LARGE)[:, None].astype(np.float32)
            inputs = {**inputs, "age": inputs["age"] * large}
        rows = (0, num_rows)
        if world.size > 1:
            rows = (0, of_first) if world.rank == 0 else (of_first, num_rows)
        trainer.step(*share((inputs, labels), *rows))
        trainer.average()
    return {**states, "after": whole(trainer)}, sizes


def whole(trainer: TensorFlowTrainer) -> dict[str, Any]:
    """Its state with whole tables; all workers have to call this."""
    return copied(
        {
            name: np.concatenate(list(kept.blocks())) if isinstance(kept, TablePart) else kept
            for name, kept in trainer.state().items()
        }
    )


class Copy(Observer):
    """Keeps a checkpoint that later ones would replace."""

    def __init__(self, checkpoint: Path, copy: Path, after_step: int) -> None:
        self._checkpoint, self._copy, self._after_step = checkpoint, copy, after_step

    def before_step(self, step: int) -> None:
        if step == self._after_step + 1:
            shutil.copytree(self._checkpoint, self._copy)


def run(directory: Path, name: str, world: World, *, epochs: int = RUN.epochs, resume: bool = False) -> Any:
    """A run with split tables; it keeps checkpoints, one of the second epoch, or goes on from that."""
    place = directory / ("copied" if resume else f"{name}-checkpoint")
    after_step = 4 * CHECKPOINT_EVERY

    def observers(_: Any) -> list[Observer]:
        return [] if resume else [Copy(place, directory / "copied", after_step)]

    return train(
        directory / "prepared",
        directory / name,
        replace(RUN, epochs=epochs),
        session=SessionConfig(checkpoint_every=CHECKPOINT_EVERY, resume=resume),
        tracking=TrackingConfig(directory=directory, experiment=name),
        checkpoint=place,
        observers=observers,
        world=world,
        workers=RUN_WORKERS,
    )


def main(directory: Path) -> None:
    world = join_world(RUN_WORKERS)
    with world.propagating_errors():
        for name in CASES:
            states, sizes = fitted(directory, name, world)
            for stage, state in states.items():
                np.savez(directory / f"{name}-{stage}-{world.rank}.npz", **state)
            np.save(directory / f"{name}-num_rows-{world.rank}.npy", sizes)
        metrics = run(directory, "model", world).metrics
        resumed = run(directory, "resumed", world, resume=True).metrics
        (directory / f"found-{world.rank}.json").write_text(json.dumps({"metrics": metrics, "resumed": resumed}))


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    finally:
        gc.freeze()  # as `rankline` does at its end
