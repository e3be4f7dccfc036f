"""Configuration of a training run. Importing this package does not import a framework."""

from rankline.training.config.session import SessionConfig
from rankline.training.config.train import TrainConfig
from rankline.training.distributed.config import WorkersConfig

__all__ = ["SessionConfig", "TrainConfig", "WorkersConfig"]
