"""Restart and resume of elastic runs, modeled on torchrun.

When a worker dies or joins, all workers stop and start again from the last checkpoint as a new generation, possibly
with another number of workers. `rankline.launch.elastic` starts the generations; this module is the workers' side.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np

from rankline.training.run.checkpoint import Checkpoint, Reader

GENERATION_VARIABLE = "RANKLINE_GENERATION"
"""Environment variable with the `Generation` as JSON, set for each worker of an elastic run."""

_STEP_COUNTERS = ("/iteration", "/finite_steps")  # name suffixes of the optimizer's and the trainer's step counters


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One start of all workers of an elastic run.

    Attributes:
        number: number of earlier starts.
        run_id: MLflow run that an earlier generation opened.
        has_checkpoint: whether an earlier generation wrote a checkpoint.
        cause: why the last generation ended, as a sentence.
    """

    number: int = 0
    run_id: str | None = None
    has_checkpoint: bool = False
    cause: str = ""

    def to_environment(self) -> dict[str, str]:
        return {GENERATION_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Generation | None":
        """Return the generation of this process, or None outside an elastic run."""
        text = environment.get(GENERATION_VARIABLE)
        return cls(**json.loads(text)) if text else None


def resized(checkpoint: Checkpoint, reader: Reader) -> Checkpoint:
    """Convert a checkpoint to another number of workers, at the same fraction of the epoch.

    Steps are converted as if these workers had run from the start, so that the learning rate decays to the end of the
    run. Some rows of this epoch may be read twice and others not at all, because each number of workers splits the rows
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
