"""What trains a model: a class for each framework, and how a run finds it. Importing this file imports neither."""

from importlib import import_module

from training.frameworks import TENSORFLOW, Framework
from training.trainers.base import Trainer
from workflows.errors import PINNED
from workflows.extras import require


def trainer_for(framework: Framework) -> type[Trainer]:
    """What trains the models of a framework, which is imported."""
    require(framework.module, feature="training", extra=framework.extra)
    if framework is TENSORFLOW:
        require("tf_keras", feature="training with TensorFlow", extra=PINNED)
    module, name = framework.trainer.split(":")
    trainer: type[Trainer] = getattr(import_module(module), name)
    return trainer
