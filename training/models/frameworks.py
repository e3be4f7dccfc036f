"""Frameworks that train models. Importing this module does not import any of them."""

from dataclasses import dataclass

from rankline.workflows.core.errors import PINNED
from rankline.workflows.core.optional_packages import require
from rankline.workflows.schema.model_artifact import ONNX, SAVED_MODEL, TORCH_SCRIPT


@dataclass(frozen=True, kw_only=True)
class Framework:
    """A framework that trains models.

    Attributes:
        format: format of exported models, see `TrainedModel.format`.
        trainer: `module:class` of its `rankline.training.trainers.base.Trainer`.
        extra: extra in pyproject.toml that installs it.
        pinned: modules of the dependency group `PINNED` that it also needs.
        learns_in_steps: whether each step changes the model and its loss, as opposed to the end of each epoch.
        learns_in_epochs: whether the model improves from epoch to epoch, as opposed to learning all rows at once.
    """

    name: str
    format: str
    trainer: str
    module: str
    extra: str
    pinned: tuple[str, ...] = ()
    learns_in_steps: bool = True
    learns_in_epochs: bool = True

    def require(self, *, feature: str) -> None:
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
    trainer="rankline.training.trainers.in_memory:LightGBMTrainer",
    module="lightgbm",
    extra="lightgbm",
    learns_in_steps=False,
)
PORTFOLIO = Framework(
    name="portfolio",
    format=ONNX,
    trainer="rankline.training.trainers.in_memory:PortfolioTrainer",
    module="onnxruntime",
    extra="onnx",
    learns_in_steps=False,
    learns_in_epochs=False,
)
"""Several libraries, whose models are blended in one ONNX graph."""
RANKLINE = Framework(
    name="rankline",
    format=SAVED_MODEL,
    trainer="rankline.training.trainers.in_memory:TablesTrainer",
    module="tensorflow",
    extra="cpu",
    pinned=("tf_keras",),
    learns_in_steps=False,
)
"""Rankline's own algorithms; TensorFlow exports the model."""
