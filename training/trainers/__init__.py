"""Trainers, one per framework. Importing this package does not import a framework."""

from importlib import import_module

from rankline.training.models.frameworks import Framework
from rankline.training.trainers.base import Trainer


def trainer_for(framework: Framework) -> type[Trainer]:
    framework.require(feature="training")
    module, name = framework.trainer.split(":")
    trainer: type[Trainer] = getattr(import_module(module), name)
    return trainer
