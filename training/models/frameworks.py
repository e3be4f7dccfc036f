"""The frameworks that train models, light to import."""

from dataclasses import dataclass

from rankline.workflows.core.errors import PINNED
from rankline.workflows.core.optional_packages import require
from rankline.workflows.schema.model_artifact import ONNX, SAVED_MODEL, TORCH_SCRIPT


@dataclass(frozen=True, kw_only=True)
class Framework:
    """What trains a model.

    Attributes:
        name: for messages and records.
        format: of the models that it writes, see `TrainedModel.format`.
        trainer: `module:class` of its `rankline.training.trainers.base.Trainer`.
        module: Python module of the framework.
        extra: extra in pyproject.toml that brings it.
        pinned: modules from packages of the group `PINNED` that it also needs.
        learns_in_steps: whether each step changes the model and its loss; if not, they change at the end of an epoch.
    """

    name: str
    format: str
    trainer: str
    module: str
    extra: str
    pinned: tuple[str, ...] = ()
    learns_in_steps: bool = True

    def require(self, *, feature: str) -> None:
        """Refuse to go on if the framework is not installed; nothing is imported.

        Raises:
            MissingExtraError: it is not installed.
            RanklineError: it is TensorFlow, of another version or twice.
        """
        require(self.module, feature=feature, extra=self.extra)
        for module in self.pinned:
            require(module, feature=feature, extra=PINNED)


TENSORFLOW = Framework(
    name="tensorflow",
    format=SAVED_MODEL,
    trainer="rankline.training.trainers.keras:TensorFlowTrainer",
    module="tensorflow",
    extra="cpu",
    pinned=("tf_keras",),
)
PYTORCH = Framework(
    name="pytorch",
    format=TORCH_SCRIPT,
    trainer="rankline.training.trainers.torch:TorchTrainer",
    module="torch",
    extra="torch",
)
LIGHTGBM = Framework(
    name="lightgbm",
    format=ONNX,
    trainer="rankline.training.trainers.lightgbm:LightGBMTrainer",
    module="lightgbm",
    extra="lightgbm",
    learns_in_steps=False,
)
RANKLINE = Framework(
    name="rankline",
    format=SAVED_MODEL,
    trainer="rankline.training.trainers.factorization:TablesTrainer",
    module="tensorflow",
    extra="cpu",
    pinned=("tf_keras",),
    learns_in_steps=False,
)
"""Rankline's own arithmetic; TensorFlow writes what is served."""
