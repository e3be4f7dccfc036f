"""What all workers of a run must agree on before it begins, and what worker 0 tells the others."""

from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from training.checkpoints import Best, Checkpoint, Position
from training.config import SessionConfig, TrainConfig, WorkersConfig
from training.world import World
from workflows.artifacts import code_fingerprint, versions
from workflows.errors import ConfigError

_CODE = ("workflows", "training")  # what a run is made by
_SHOWN = 3


def check_same(
    world: World,
    config: TrainConfig,
    session: SessionConfig,
    workers: WorkersConfig,
    fingerprint: str,
) -> None:
    """Refuse workers of which one would train something else than the others.

    Args:
        world: the workers.
        config: choices about the run.
        session: how it is carried out.
        workers: how they train together.
        fingerprint: of the prepared data.

    Raises:
        ConfigError: they differ in their options, their code, their packages or their data; the same on all of them.
    """
    if world.size == 1:
        return
    mine = {
        "prepared data": fingerprint[:12],
        "rankline": _version(),
        "code": code_fingerprint(*(Path(__file__).parents[1] / name for name in _CODE)),
        **{name: str(found) for name, found in versions().items() if name in ("tensorflow-cpu", "tensorflow", "numpy")},
        **{
            name: repr(value)
            for choices in (config.to_dict(), asdict(session), asdict(workers))
            for name, value in choices.items()
        },
    }
    expected, *others = world.all_of(mine)
    for rank, got in enumerate(others, start=1):
        if odd := [
            f"{name} {got.get(name)} where worker 0 has {expected.get(name)}"
            for name in sorted({*got, *expected})
            if got.get(name) != expected.get(name)
        ]:
            more = f" and {len(odd) - _SHOWN} more" if len(odd) > _SHOWN else ""
            raise ConfigError(
                f"worker {rank} has {'; '.join(odd[:_SHOWN])}{more}. "
                "Start all workers with the same options, on the same data, code and packages."
            )


def shared_checkpoint(world: World, checkpoint: Checkpoint | None, *, with_best: bool = False) -> Checkpoint | None:
    """The checkpoint that worker 0 has, or None if it has none.

    Worker 0 keeps the arrays; the others get the state through `training.fit.Fit.share_state`.

    Args:
        world: the workers.
        checkpoint: of this one.
        with_best: whether the others get the weights of the best epoch, too, so that each may become worker 0.
    """
    if world.size == 1:
        return checkpoint
    mine = None
    if checkpoint is not None:
        mine = {
            "config": dict(checkpoint.config),
            "fingerprint": checkpoint.fingerprint,
            "run_id": checkpoint.run_id,
            "position": asdict(checkpoint.position),
            "num_batches": checkpoint.num_batches,
            "order": dict(checkpoint.order),
            "best": dict(checkpoint.best.metrics),
        }
    told: Mapping[str, Any] | None = world.all_of(mine)[0]
    if told is None:
        return None
    best = _shared_best(world, checkpoint.best if checkpoint else Best()) if with_best else Best(metrics=told["best"])
    if world.rank == 0:
        return checkpoint
    order = dict(told["order"])
    if "global_rank" in order:  # else the order is one that no loader can take up
        order["global_rank"] = world.rank
    return Checkpoint(
        config=told["config"],
        fingerprint=told["fingerprint"],
        run_id=told["run_id"],
        position=Position(**told["position"]),
        num_batches=told["num_batches"],
        order=order,
        best=best,
        state=checkpoint.state if checkpoint else {},
    )


def _shared_best(world: World, best: Best) -> Best:
    """Worker 0's."""
    told = world.all_of([dict(best.metrics), [(weight.dtype.str, weight.shape) for weight in best.weights]])[0]
    weights = []
    for number, (dtype, shape) in enumerate(told[1]):
        mine = best.weights[number].reshape(-1) if world.rank == 0 else np.empty(0, dtype)
        weights.append(world.gathered(mine).reshape(shape))
    return Best(metrics=told[0], weights=weights)


def _version() -> str:
    try:
        return version("rankline")
    except PackageNotFoundError:
        return "unknown"
