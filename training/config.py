"""The choices of a training run. Importing this file imports no framework."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from training.models import MODELS
from training.models.config import ModelConfig, StepConfig, check_not_negative
from training.models.mlp import MLPConfig
from workflows.choices import MOST_SEED, check_at_least, check_choice
from workflows.errors import ConfigError

DECAYS = ("none", "linear", "quadratic", "cosine")
RATE_SCALES = ("none", "linear", "sqrt")
COMPRESSIONS = ("none", "fp16")
HOLDOUTS = ("inner", "valid")
DEVICES = ("auto", "cpu", "cuda")
ROWWISE_TABLE_LR_SCALE = 320.0
"""What `table_lr_scale` is for "rowwise_adagrad" unless it is given: its accumulators shrink the steps."""
_OF_STEPS = (
    "optimizer", "learning_rate", "learning_rate_decay", "warmup_steps", "decay_start_step", "table_lr_scale",
    "weight_decay", "weight_averaging",
)  # fmt: skip
_SLOTS = {"adagrad": 1, "adam": 2, "lazy_adam": 2}
"""What an optimizer remembers of each weight."""
LAG_FACTOR = 10
"""Times `WorkersConfig.timeout_s`, for a worker that answers, but lags."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(StepConfig):
    """What is trained, and how it is fitted.

    Attributes:
        model: architecture, with choices of its own.
        optimizer: update rule; a key of `training.optimizers.OPTIMIZERS`, in PyTorch of
            `training.torch_optimizers.OPTIMIZERS`.
        learning_rate: learning rate at the start.
        learning_rate_decay: "none", or "linear", "quadratic" or "cosine" down to zero at the end of the last epoch.
        warmup_steps: steps in which the learning rate rises linearly from zero, before anything else.
        decay_start_step: step from which the learning rate decays; until then it stays as it is.
        table_lr_scale: multiplies the learning rate of embedding tables. None takes the optimizer's own: 1, but much
            more for "rowwise_adagrad", whose accumulators shrink its steps.
        weight_decay: decoupled (AdamW), on all weights but embedding tables, which have `l2_embedding`.
        weight_averaging: evaluate and export an average of the weights over the run, late ones counting more.
        epochs: passes over the training data, at most.
        early_stopping_patience: stop after so many epochs that are no better on the rows that `epoch_holdout` names (by
            AUC, RMSE or logloss, as the task is), and take the best one; 0 trains all epochs and keeps the last.
        epoch_holdout: rows that choose the epoch. "inner": a fifth of the training part does, then a new model learns
            from all of it for as many epochs, and the validation rows, which chose nothing, are scored once. "valid":
            the validation rows do, in half the time, and their figures flatter.
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
        check_at_least(self, 0, "seed", most=MOST_SEED)
        for name in ("learning_rate", "table_lr_scale"):
            value = getattr(self, name)
            check_choice(self, name, value is None or 0 < value < math.inf, "a finite number above 0")
        check_not_negative(self, "weight_decay")
        check_choice(self, "learning_rate_decay", self.learning_rate_decay in DECAYS, " or ".join(DECAYS))
        check_choice(self, "epoch_holdout", self.epoch_holdout in HOLDOUTS, " or ".join(HOLDOUTS))
        if doubled := _names(self) & _names(self.model):
            raise ConfigError(
                f"model {self.model.name!r} and every run both have {sorted(doubled)}. Rename the model's."
            )

    @property
    def copies_of_weights(self) -> int:
        """How many numbers are held for each weight, at least: itself, what the optimizer remembers, its average."""
        return 1 + _SLOTS.get(self.optimizer, 0) + self.weight_averaging

    @property
    def chooses_inside(self) -> bool:
        """Whether a part of the training rows chooses the epoch."""
        return self.epoch_holdout == "inner" and self.early_stopping_patience > 0 and self.epochs > 1

    @property
    def params(self) -> dict[str, Any]:
        """The choices that the model uses, which MLflow records."""
        unread = () if self.model.framework.learns_in_steps else _OF_STEPS
        return {name: value for name, value in self.to_dict().items() if name not in unread}

    def check_read(self, given: Iterable[str]) -> None:
        """Refuse choices that the model does not use.

        Raises:
            ConfigError: one of `given` is a choice that the model ignores.
        """
        if ignored := sorted(self.to_dict().keys() - self.params.keys() & set(given)):
            raise ConfigError(
                f"model {self.model.name!r} is not fitted in steps and has no use for {', '.join(ignored)}. Leave "
                f"{'it' if len(ignored) == 1 else 'them'} out."
            )

    def with_choices(self, **choices: Any) -> "TrainConfig":
        """The run with other choices, of its own or of its model, by name.

        Raises:
            ConfigError: neither has a choice of that name, or one is out of its range.
        """
        model: ModelConfig = choices.pop("model", self.model)
        if unknown := choices.keys() - _names(self) - _names(model):
            raise ConfigError(
                f"a run of model {model.name!r} has no {', '.join(sorted(unknown))}. It has: "
                f"{', '.join(sorted(_names(self) | _names(model)))}."
            )
        of_model = {name: value for name, value in choices.items() if name in _names(model)}
        of_run = {name: value for name, value in choices.items() if name not in of_model}
        return replace(self, model=replace(model, **of_model), **of_run)

    @classmethod
    def from_dict(cls, choices: Mapping[str, Any]) -> "TrainConfig":
        """What `to_dict` gave, from JSON too, in which tuples are lists.

        Raises:
            ConfigError: it is of a model that does not come with Rankline, or has a choice that is not known.
        """
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in choices.items()
        }
        if (name := given.pop("model")) not in MODELS:  # no code is imported because a file says so
            raise ConfigError(f"the config is for model {name!r}, expected one of {', '.join(sorted(MODELS))}.")
        return cls(model=MODELS[name]()).with_choices(**given)

    def to_dict(self) -> dict[str, Any]:
        """All choices by name, those of the model beside the others: for MLflow, manifests and checkpoints."""
        own = {choice.name: getattr(self, choice.name) for choice in fields(self)}
        return own | {"model": self.model.name} | asdict(self.model)


def _names(config: "TrainConfig | ModelConfig") -> set[str]:
    return {choice.name for choice in fields(config)}


@dataclass(frozen=True, kw_only=True)
class SessionConfig:
    """How a run is carried out. Nothing here changes the model.

    Attributes:
        checkpoint_every: steps between checkpoints, of which the last one is kept; 0 writes none.
        resume: go on from the checkpoint of an interrupted run.
        tensorboard: write losses, metrics and throughput for TensorBoard, beside the model.
        evaluate_train: after each epoch, measure the training rows as well as the validation rows.
        device: "auto" trains on a GPU where the framework sees one, "cuda" refuses to begin without, and "cpu" hides
            them from this process.
        deterministic: let TensorFlow use only kernels that give the same bits in each run, on any device; slower.
        profile_steps: first and last step that TensorBoard's profiler records, e.g. 90,100; implies `tensorboard`.
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


@dataclass(frozen=True, kw_only=True)
class WorkersConfig:
    """How several processes train one model together.

    Attributes:
        workers: processes that train; each reads its share of the rows.
        min_workers: fewest that an elastic run goes on with; 0 for a run that ends when a worker dies.
        max_workers: most that an elastic run takes in; 0 for a run that ends when a worker dies.
        global_batch_size: rows per step of all workers together, which must divide it; 0 for `batch_size` rows each.
        scale_learning_rate: "linear" multiplies the learning rate by the rows per step of all workers over
            `batch_size`, "sqrt" by the root of that; best with `warmup_steps`. "none" leaves it.
        compression: "fp16" exchanges float16 in place of float32: of tables, and of weights of some size.
        commit_every: steps between two checkpoints of an elastic run, unless checkpoint_every says; what came after the
            last one is lost with a worker.
        timeout_s: seconds to wait for a worker that does not answer. One that answers, but lags, has ten times as
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
                f"min_workers is {self.min_workers}, workers {self.workers}, max_workers {self.max_workers}: expected "
                "1 ≤ min_workers ≤ workers ≤ max_workers, or 0 for both to end the run when a worker dies."
            )

    @property
    def is_elastic(self) -> bool:
        """Whether the run goes on without a worker that dies."""
        return self.max_workers > 0

    def of_world(self, config: TrainConfig, size: int) -> TrainConfig:
        """The choices of the whole run of `size` workers, of which `config` has those of one.

        Returns:
            Its `batch_size` is the rows per step of all workers, and its learning rate is scaled.

        Raises:
            ConfigError: the workers do not divide the global batch.
        """
        batch_size = self.global_batch_size or config.batch_size * size
        if batch_size % size:
            raise ConfigError(
                f"global_batch_size is {batch_size}, which {size} workers do not divide. Use "
                f"{max(batch_size // size, 1) * size}."
            )
        growth = batch_size / config.batch_size
        factor = {"none": 1.0, "linear": growth, "sqrt": math.sqrt(growth)}[self.scale_learning_rate]
        return replace(config, batch_size=batch_size, learning_rate=config.learning_rate * factor)
