"""The learning rate over a run, by one formula for both frameworks."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankline.training.config.train import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A linear warm-up from zero, a plateau, and a decay to zero at the end of the run.

    With "quadratic" it is the schedule that DLRM was published with (Naumov et al. 2019; `LRPolicyScheduler` of its
    code, a polynomial decay of power 2).

    Attributes:
        decay: one of `rankline.training.config.train.DECAYS`.
        warmup_steps: steps in which the rate rises.
        decay_start_step: step from which it falls; the end of the warm-up if that is later.
    """

    num_steps: int
    decay: str = TrainConfig.learning_rate_decay
    warmup_steps: int = TrainConfig.warmup_steps
    decay_start_step: int = TrainConfig.decay_start_step

    @classmethod
    def of(cls, config: TrainConfig, num_steps: int) -> "Schedule":
        return cls(
            num_steps=num_steps,
            decay=config.learning_rate_decay,
            warmup_steps=config.warmup_steps,
            decay_start_step=config.decay_start_step,
        )

    @property
    def is_constant(self) -> bool:
        """The rate is the same in all steps."""
        return self.decay == "none" and not self.warmup_steps

    def factor(self, step: Any, ops: Any = np) -> Any:
        """What the learning rate is multiplied by, in [0, 1].

        Args:
            step: steps taken so far, 0 in the first one; a number, or a floating-point tensor.
            ops: module with `minimum`, `maximum` and `cos` for it: numpy or tensorflow.
        """
        start = max(self.warmup_steps, self.decay_start_step)
        done = ops.minimum(ops.maximum(step - start, 0.0) / max(self.num_steps - start, 1), 1.0)
        left = _LEFT[self.decay](done, ops)
        return left * ops.minimum(step / max(self.warmup_steps, 1), 1.0) if self.warmup_steps else left


# decay → (share of it that is done, see `factor`) → what is left of the rate
_LEFT: Mapping[str, Callable[[Any, Any], Any]] = {
    "none": lambda done, ops: 1.0,  # noqa: ARG005
    "linear": lambda done, ops: 1.0 - done,  # noqa: ARG005
    "quadratic": lambda done, ops: (1.0 - done) * (1.0 - done),  # noqa: ARG005
    "cosine": lambda done, ops: (1.0 + ops.cos(math.pi * done)) / 2.0,
}
