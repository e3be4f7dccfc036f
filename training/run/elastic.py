"""Restart and resume: how an elastic run goes on when workers die or join, as torchrun does it.

All workers of the run are ended and started again from the last checkpoint: a new generation, which may have another
number of workers. `rankline.launch.elastic` starts the generations; this is what a worker knows of those before its
own.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np

from rankline.training.run.checkpoint import Checkpoint, Reader

GENERATION_VARIABLE = "RANKLINE_GENERATION"
"""In the environment of each worker of an elastic run: its `Generation` as JSON."""

_STEP_COUNTERS = ("/iteration", "/finite_steps")  # what an optimizer and a fit call their number of steps


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One start of all workers of an elastic run.

    Attributes:
        number: of earlier starts.
        run_id: MLflow run that an earlier generation opened.
        has_checkpoint: whether an earlier generation wrote a checkpoint.
        cause: why the last generation ended, as a sentence.
    """

    number: int = 0
    run_id: str | None = None
    has_checkpoint: bool = False
    cause: str = ""

    def to_environment(self) -> dict[str, str]:
        """The variable that its workers get."""
        return {GENERATION_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Generation | None":
        """The generation that a process belongs to; None if it is not a worker of an elastic run."""
        text = environment.get(GENERATION_VARIABLE)
        return cls(**json.loads(text)) if text else None


def resized(checkpoint: Checkpoint, reader: Reader) -> Checkpoint:
    """A checkpoint for another number of workers, at the same share of the epoch.

    The steps are counted as if these workers had taken all of them, so that the decay of the learning rate ends with
    the run. Some rows of this epoch may come twice, and others not at all: each number of workers shares the rows out
    differently.
    """
    checkpoint = replace(checkpoint, order=reader.order)
    if len(reader) == checkpoint.num_batches:
        return checkpoint
    at, num_batches = checkpoint.position, len(reader)
    batch = at.batch * num_batches // checkpoint.num_batches
    step = (at.epoch - 1) * num_batches + batch
    state = {
        name: np.full_like(array, step) if name.endswith(_STEP_COUNTERS) else array
        for name, array in checkpoint.state.items()
    }
    return replace(checkpoint, position=replace(at, step=step, batch=batch), num_batches=num_batches, state=state)
