"""What trains a model: a class for each framework, and how a run finds it. Importing this file imports neither."""

from importlib import import_module

from rankline.training.models.frameworks import Framework
from rankline.training.trainers.base import Trainer


def trainer_for(framework: Framework) -> type[Trainer]:
    """What trains the models of a framework, which is imported."""
    framework.require(feature="training")
    module, name = framework.trainer.split(":")
    trainer: type[Trainer] = getattr(import_module(module), name)
    return trainer
