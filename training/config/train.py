"""Configuration of a training run. Importing this module does not import a framework."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from rankline.training.models import MODELS
from rankline.training.models.config import ModelConfig, StepConfig, check_not_negative
from rankline.training.models.tabular import MLPConfig
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.validation import MAX_SEED, check_at_least, check_choice

DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class SessionConfig:
    """Options for how a run is executed. None of them changes the model.

    Attributes:
        checkpoint_every: steps between checkpoints; only the latest is kept. 0 disables checkpoints.
        resume: continue an interrupted run from its checkpoint.
        tensorboard: write losses, metrics and throughput for TensorBoard, next to the model.
        evaluate_train: after each epoch, compute metrics on the training rows as well as the validation rows.
        device: "auto" trains on a GPU if the framework finds one, "cuda" fails without a GPU, and "cpu" hides GPUs from
            this process.
        deterministic: restrict TensorFlow to kernels that produce the same bits in every run, on any device; slower.
        profile_steps: first and last step that TensorBoard's profiler records, such as 90,100; implies `tensorboard`.
    """

    checkpoint_every: int = 0
    resume: bool = False
    tensorboard: bool = False
    evaluate_train: bool = False
    device: str = DEVICES[0]
    deterministic: bool = False
    profile_steps: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_at_least(self, 0, "checkpoint_every")
        check_choice(self, "device", self.device in DEVICES, " or ".join(DEVICES))
        if self.profile_steps and not (
            len(self.profile_steps) == 2 and 1 <= self.profile_steps[0] <= self.profile_steps[1]
        ):
            raise ConfigError(
                f"profile_steps is {self.profile_steps}, expected two steps in ascending order, such as 90,100."
            )


DECAYS = ("none", "linear", "quadratic", "cosine")
HOLDOUTS = ("inner", "valid")
ROWWISE_TABLE_LR_SCALE = 320.0
"""Default `table_lr_scale` of "rowwise_adagrad", whose accumulators shrink the steps."""
_OF_STEPS = (
    "optimizer", "learning_rate", "learning_rate_decay", "warmup_steps", "decay_start_step", "table_lr_scale",
    "weight_decay", "weight_averaging",
)  # fmt: skip
_OF_EPOCHS = ("epochs", "early_stopping_patience", "epoch_holdout", "batch_size")
_SLOTS = {"adagrad": 1, "adam": 2, "lazy_adam": 2}
"""Optimizer → number of values it stores per weight."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(StepConfig):
    """The model to train and how to train it.

    Attributes:
        model: architecture, which has options of its own.
        optimizer: update rule; a key of `rankline.training.trainers.keras_optimizers.OPTIMIZERS`, or for PyTorch of
            `rankline.training.trainers.torch_optimizers.OPTIMIZERS`.
        learning_rate: initial learning rate.
        learning_rate_decay: "none", or "linear", "quadratic" or "cosine" decay to zero at the end of the last epoch.
        warmup_steps: steps at the start of training in which the learning rate rises linearly from zero.
        decay_start_step: step at which the learning rate starts to decay; it is constant before.
        table_lr_scale: factor on the learning rate of embedding tables. None uses the optimizer's default: 1, but much
            more for "rowwise_adagrad", whose accumulators shrink its steps.
        weight_decay: decoupled weight decay (AdamW) of all weights except embedding tables, which use `l2_embedding`.
        weight_averaging: evaluate and export a running average of the weights in which later weights count more.
        epochs: maximum number of passes over the training data.
        early_stopping_patience: stop after this many epochs without improvement on the rows that `epoch_holdout`
            selects (by AUC, RMSE or logloss, depending on the task) and keep the best epoch; 0 trains all epochs and
            keeps the last.
        epoch_holdout: rows that select the best epoch. "inner": a fifth of the training rows selects it, then a new
            model trains on all training rows for that many epochs, and the validation rows, which selected nothing,
            are scored once. "valid": the validation rows select it, which takes half the time, but their metrics are
            optimistic.
        seed: seed of the initial weights, the order of rows, and dropout.
    """

    model: ModelConfig = field(default_factory=MLPConfig)
    optimizer: str = "rowwise_adagrad"
    learning_rate: float = 1e-3
    learning_rate_decay: str = "none"
    warmup_steps: int = 0
    decay_start_step: int = 0
    table_lr_scale: float | None = None
    weight_decay: float = 0.0
    weight_averaging: bool = True
    epochs: int = 4
    early_stopping_patience: int = 1
    epoch_holdout: str = HOLDOUTS[0]
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "epochs")
        check_at_least(self, 0, "warmup_steps", "decay_start_step", "early_stopping_patience")
        check_at_least(self, 0, "seed", maximum=MAX_SEED)
        for name in ("learning_rate", "table_lr_scale"):
            value = getattr(self, name)
            check_choice(self, name, value is None or 0 < value < math.inf, "a finite number above 0")
        check_not_negative(self, "weight_decay")
        check_choice(self, "learning_rate_decay", self.learning_rate_decay in DECAYS, " or ".join(DECAYS))
        check_choice(self, "epoch_holdout", self.epoch_holdout in HOLDOUTS, " or ".join(HOLDOUTS))
        if doubled := _names(self) & _names(self.model):
            raise ConfigError(
                f"model {self.model.name!r} has options {sorted(doubled)}, which are also training options. Rename "
                "them in the model."
            )

    @property
    def copies_of_weights(self) -> int:
        """The minimum number of in-memory values per weight: the weight, the optimizer's state and the average."""
        return 1 + _SLOTS.get(self.optimizer, 0) + self.weight_averaging

    @property
    def num_epochs(self) -> int:
        """The maximum number of passes over the training data; 1 for a model that learns all rows at once."""
        return self.epochs if self.model.framework.learns_in_epochs else 1

    @property
    def patience(self) -> int:
        return self.early_stopping_patience if self.model.framework.learns_in_epochs else 0

    @property
    def chooses_inside(self) -> bool:
        """Whether the best epoch is selected on a holdout of the training rows."""
        return self.epoch_holdout == "inner" and self.patience > 0 and self.num_epochs > 1

    @property
    def params(self) -> dict[str, Any]:
        """The options that the model uses, as recorded in MLflow."""
        framework = self.model.framework
        unread = {
            *(() if framework.learns_in_steps else _OF_STEPS),
            *(() if framework.learns_in_epochs else _OF_EPOCHS),
        }
        return {name: value for name, value in self.to_dict().items() if name not in unread}

    def check_read(self, given: Iterable[str]) -> None:
        """Raise `ConfigError` if the model ignores one of the options in `given`."""
        if ignored := sorted(self.to_dict().keys() - self.params.keys() & set(given)):
            raise ConfigError(
                f"model {self.model.name!r} does not use {', '.join(ignored)}. Omit "
                f"{'it' if len(ignored) == 1 else 'them'}."
            )

    def with_choices(self, **choices: Any) -> "TrainConfig":
        """Return a copy with the given options replaced, whether they belong to the run or to its model."""
        model: ModelConfig = choices.pop("model", self.model)
        if unknown := choices.keys() - _names(self) - _names(model):
            raise ConfigError(
                f"unknown training option {', '.join(sorted(unknown))} for model {model.name!r}. Available: "
                f"{', '.join(sorted(_names(self) | _names(model)))}."
            )
        of_model = {name: value for name, value in choices.items() if name in _names(model)}
        of_run = {name: value for name, value in choices.items() if name not in of_model}
        return replace(self, model=replace(model, **of_model), **of_run)

    @classmethod
    def from_dict(cls, choices: Mapping[str, Any]) -> "TrainConfig":
        """Create a config from the output of `to_dict`, even after a JSON round trip, which turns tuples into lists."""
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in choices.items()
        }
        if (name := given.pop("model")) not in MODELS:  # a file must not cause an import of arbitrary code
            raise ConfigError(f"the config is for model {name!r}, expected one of {', '.join(sorted(MODELS))}.")
        return cls(model=MODELS[name]()).with_choices(**given)

    def to_dict(self) -> dict[str, Any]:
        """Return all options by name, including the model's, for MLflow, manifests and checkpoints."""
        own = {choice.name: getattr(self, choice.name) for choice in fields(self)}
        return own | {"model": self.model.name} | asdict(self.model)


def _names(config: "TrainConfig | ModelConfig") -> set[str]:
    return {choice.name for choice in fields(config)}
