"""What trains a model: a class for each framework, and how a run finds it. Importing this file imports neither."""

from importlib import import_module

from training.trainers.base import Trainer
from workflows.trained import PYTORCH, TENSORFLOW, Backend

_TRAINERS = {
    TENSORFLOW.name: ("training.trainers.tensorflow", "TensorFlowTrainer"),
    PYTORCH.name: ("training.trainers.torch", "TorchTrainer"),
}


def trainer_for(backend: Backend) -> type[Trainer]:
    """What trains the models of `backend`; imports its framework."""
    module, name = _TRAINERS[backend.name]
    trainer: type[Trainer] = getattr(import_module(module), name)
    return trainer
