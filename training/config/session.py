"""Options of a run that do not change the model."""

from dataclasses import dataclass

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.validation import check_at_least, check_choice

DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class SessionConfig:
    """How a run is carried out. No option here changes the model.

    Attributes:
        checkpoint_every: steps between checkpoints; only the latest is kept. 0 disables checkpoints.
        resume: continue an interrupted run from its checkpoint.
        tensorboard: write losses, metrics and throughput for TensorBoard, next to the model.
        evaluate_train: after each epoch, compute metrics on the training rows as well as the validation rows.
        device: "auto" trains on a GPU if the framework finds one, "cuda" fails without a GPU, and "cpu" hides GPUs from
            this process.
        deterministic: restrict TensorFlow to kernels that produce the same bits in every run, on any device; slower.
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
