"""Configuration of training with multiple processes."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.validation import check_at_least, check_choice

if TYPE_CHECKING:
    from rankline.training.config.train import TrainConfig

RATE_SCALES = ("none", "linear", "sqrt")
COMPRESSIONS = ("none", "fp16")
LAG_FACTOR = 10
"""Factor on `WorkersConfig.timeout_s` for a worker that responds but lags."""


@dataclass(frozen=True, kw_only=True)
class WorkersConfig:
    """Settings for training one model with multiple processes.

    Attributes:
        workers: number of training processes; each reads its share of the rows.
        min_workers: minimum number of workers of an elastic run; 0 for a run that ends when a worker dies.
        max_workers: maximum number of workers of an elastic run; 0 for a run that ends when a worker dies.
        global_batch_size: rows per step of all workers together, a multiple of the number of workers; 0 for
            `batch_size` rows per worker.
        scale_learning_rate: "linear" multiplies the learning rate by the rows per step of all workers divided by
            `batch_size`, "sqrt" by the square root of this ratio; best with `warmup_steps`. "none" keeps it.
        compression: "fp16" exchanges float16 instead of float32, for tables and larger weights.
        commit_every: steps between checkpoints of an elastic run, unless checkpoint_every is set; if a worker dies,
            steps since the last checkpoint are lost.
        timeout_s: seconds to wait for a worker that does not respond. A worker that responds but lags has ten times as
            long.
    """

    workers: int = 1
    min_workers: int = 0
    max_workers: int = 0
    global_batch_size: int = 0
    scale_learning_rate: str = "none"
    compression: str = "none"
    commit_every: int = 500
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        check_at_least(self, 1, "workers", "commit_every")
        check_at_least(self, 0, "min_workers", "max_workers", "global_batch_size")
        check_choice(self, "scale_learning_rate", self.scale_learning_rate in RATE_SCALES, " or ".join(RATE_SCALES))
        check_choice(self, "compression", self.compression in COMPRESSIONS, " or ".join(COMPRESSIONS))
        check_choice(self, "timeout_s", 1 <= self.timeout_s < math.inf, "a finite number of at least 1")
        if (self.min_workers or self.max_workers) and not 1 <= self.min_workers <= self.workers <= self.max_workers:
            raise ConfigError(
                f"min_workers is {self.min_workers}, workers is {self.workers} and max_workers is {self.max_workers}, "
                "expected 1 ≤ min_workers ≤ workers ≤ max_workers. To stop the run when a worker exits, set both "
                "limits to 0."
            )

    @property
    def is_elastic(self) -> bool:
        return self.max_workers > 0

    def of_world(self, config: "TrainConfig", size: int) -> "TrainConfig":
        """Return `config` with the total batch size of `size` workers and the learning rate scaled as configured."""
        batch_size = self.global_batch_size or config.batch_size * size
        if batch_size % size:
            raise ConfigError(
                f"global_batch_size is {batch_size}, expected a multiple of the number of workers ({size}), such as "
                f"{max(batch_size // size, 1) * size}."
            )
        growth = batch_size / config.batch_size
        factor = {"none": 1.0, "linear": growth, "sqrt": math.sqrt(growth)}[self.scale_learning_rate]
        return replace(config, batch_size=batch_size, learning_rate=config.learning_rate * factor)
