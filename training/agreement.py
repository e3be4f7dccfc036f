"""What all workers of a run must agree on before it begins, and what worker 0 shares with the others."""

from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from training.checkpoints import Best, Checkpoint, Position
from training.config import SessionConfig, TrainConfig, WorkersConfig
from training.world import World
from workflows.artifacts import code_fingerprint, versions
from workflows.errors import ConfigError
from workflows.words import listed

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
    expected, *others = world.all_gather_object(mine)
    for rank, got in enumerate(others, start=1):
        if odd := [
            f"{name} {got.get(name)} where worker 0 has {expected.get(name)}"
            for name in sorted({*got, *expected})
            if got.get(name) != expected.get(name)
        ]:
            raise ConfigError(
                f"worker {rank} has {listed(odd, _SHOWN, '; ')}. "
                "Start all workers with the same options, on the same data, code and packages."
            )


def shared_checkpoint(world: World, checkpoint: Checkpoint | None) -> Checkpoint | None:
    """The checkpoint that worker 0 has, or None if it has none.

    Worker 0 keeps the arrays; the others get the state through `training.trainers.base.Trainer.share_state`.
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
            "chosen": dict(checkpoint.chosen),
        }
    shared: Mapping[str, Any] | None = world.all_gather_object(mine)[0]
    if shared is None or world.rank == 0:
        return checkpoint
    order = dict(shared["order"])
    if "global_rank" in order:  # else the order is one that no loader can take up
        order["global_rank"] = world.rank
    return Checkpoint(
        config=shared["config"],
        fingerprint=shared["fingerprint"],
        run_id=shared["run_id"],
        position=Position(**shared["position"]),
        num_batches=shared["num_batches"],
        order=order,
        best=Best(metrics=shared["best"]),
        state={},
        chosen=shared["chosen"],
    )


def _version() -> str:
    try:
        return version("rankline")
    except PackageNotFoundError:
        return "unknown"
