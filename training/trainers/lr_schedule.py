"""The learning rate schedule, optimizer validation and loss scaling constants shared by both frameworks."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankline.training.config.train import TrainConfig
from rankline.workflows.core.errors import ConfigError

# Gradients below 6e-8 underflow in float16, and the mean over a batch makes them small. Therefore the loss is times a
# scale before the backward pass, and gradients are divided by it in float32. A step with an overflowing gradient is
# skipped and halves the scale; many good ones double it (Micikevicius et al. 2017, "Mixed precision training").
INITIAL_SCALE = 2.0**15
GROWTH_STEPS = 2_000
"""Good steps in a row after which the scale doubles."""

_ONE_RATE = ("sgd", "adagrad", "adam")
"""Optimizers with the same learning rate for tables and all other weights."""


def check_optimizer(name: str, table_lr_scale: float | None, known: Collection[str]) -> None:
    if name not in known:
        raise ConfigError(f"unknown optimizer {name!r}. Available: {', '.join(sorted(known))}.")
    if name in _ONE_RATE and table_lr_scale not in (None, 1):
        raise ConfigError(
            f"optimizer {name!r} does not support table_lr_scale ({table_lr_scale:g}). Remove table_lr_scale, or "
            "use 'lazy_adam' or 'rowwise_adagrad'."
        )


@dataclass(frozen=True, kw_only=True)
class LearningRateSchedule:
    """A learning rate schedule with a linear warm-up from zero, a plateau, and a decay to zero at the end.

    With "quadratic" this is DLRM's original schedule (Naumov et al. 2019; `LRPolicyScheduler` in its code, a polynomial
    decay of power 2).
    """

    num_steps: int
    decay: str = TrainConfig.learning_rate_decay
    warmup_steps: int = TrainConfig.warmup_steps
    decay_start_step: int = TrainConfig.decay_start_step

    @classmethod
    def of(cls, config: TrainConfig, num_steps: int) -> "LearningRateSchedule":
        return cls(
            num_steps=num_steps,
            decay=config.learning_rate_decay,
            warmup_steps=config.warmup_steps,
            decay_start_step=config.decay_start_step,
        )

    @property
    def is_constant(self) -> bool:
        return self.decay == "none" and not self.warmup_steps

    def factor(self, step: Any, ops: Any = np) -> Any:
        """Return the learning rate multiplier in [0, 1] after `step` steps. `step` is a number or float tensor.

        `ops` is the module with `minimum`, `maximum` and `cos` for its type: numpy or tensorflow.
        """
        start = max(self.warmup_steps, self.decay_start_step)
        done = ops.minimum(ops.maximum(step - start, 0.0) / max(self.num_steps - start, 1), 1.0)
        left = _LEFT[self.decay](done, ops)
        return left * ops.minimum(step / max(self.warmup_steps, 1), 1.0) if self.warmup_steps else left


# decay → (completed fraction of the decay, ops of `factor`) → factor on the rate
_LEFT: Mapping[str, Callable[[Any, Any], Any]] = {
    "none": lambda done, ops: 1.0,  # noqa: ARG005
    "linear": lambda done, ops: 1.0 - done,  # noqa: ARG005
    "quadratic": lambda done, ops: (1.0 - done) * (1.0 - done),  # noqa: ARG005
    "cosine": lambda done, ops: (1.0 + ops.cos(math.pi * done)) / 2.0,
}
