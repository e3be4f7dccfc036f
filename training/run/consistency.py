"""Checks that all workers of a run agree before it starts, and sharing of worker 0's checkpoint."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import rankline
from rankline.training.config.session import SessionConfig
from rankline.training.config.train import TrainConfig
from rankline.training.distributed.communicator import World
from rankline.training.distributed.config import WorkersConfig
from rankline.training.run.checkpoint import Checkpoint
from rankline.training.tracking import rankline_version
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.formatting import listed
from rankline.workflows.storage.artifacts import code_fingerprint, versions

_CODE = ("workflows", "training")  # the packages whose code affects a run
_SHOWN = 3


def check_same(
    world: World,
    config: TrainConfig,
    session: SessionConfig,
    workers: WorkersConfig,
    fingerprint: str,
) -> None:
    """Raise `ConfigError` if the workers differ in options, data, code or package versions."""
    if world.size == 1:
        return
    mine = {
        "prepared data": fingerprint[:12],
        "rankline": rankline_version(),
        "code": code_fingerprint(*(Path(rankline.__file__).with_name(name) for name in _CODE)),
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
    """Return worker 0's checkpoint on all workers, or None if it has none.

    Only worker 0 has the arrays; `rankline.training.trainers.base.Trainer.share_state` sends the state to the others.
    """
    if world.size == 1:
        return checkpoint
    mine = checkpoint and (checkpoint.header | {"state": []}, checkpoint.fingerprint)
    shared: tuple[dict[str, Any], str] | None = world.all_gather_object(mine)[0]
    if shared is None or world.rank == 0:
        return checkpoint
    header, fingerprint = shared
    if "global_rank" in header["order"]:  # absent if the loader cannot restore an order
        header["order"]["global_rank"] = world.rank
    return Checkpoint.of(header, fingerprint, state=(), best=())
