"""The choices of a training run. Importing them imports no framework."""

from rankline.training.config.session import SessionConfig
from rankline.training.config.train import TrainConfig
from rankline.training.distributed.config import WorkersConfig

__all__ = ["SessionConfig", "TrainConfig", "WorkersConfig"]
