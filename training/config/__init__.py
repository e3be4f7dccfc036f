"""Configuration of a training run. Importing this package does not import a framework."""

from rankline.training.config.train import SessionConfig, TrainConfig
from rankline.training.distributed.config import WorkersConfig

__all__ = ["SessionConfig", "TrainConfig", "WorkersConfig"]
