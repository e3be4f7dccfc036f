"""The `Recipe` class: a named combination of dataset, model and settings."""

from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from rankline.recipes.overrides import Overrides, text_of
from rankline.serving.export.config import ExportConfig
from rankline.training.config.train import TrainConfig
from rankline.training.models import check_table
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.preprocess import EncodingConfig, RowsConfig
from rankline.workflows.preprocess.config import PrepareConfig
from rankline.workflows.preprocess.dataset import Dataset
from rankline.workflows.storage.artifacts import CALLED


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A named combination of dataset, model and all settings.

    Attributes:
        name: also the name of the ensemble and of the MLflow experiment.
        encoding: an instance of `dataset.encoding`.
        file: the recipe file, if the recipe was read from a file.
        unchanged: `train` before options changed it, or None if no options did.
    """

    name: str
    summary: str
    dataset: Dataset
    prepare: PrepareConfig = field(default_factory=PrepareConfig)
    encoding: EncodingConfig = field(default_factory=RowsConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    serving: ExportConfig = field(default_factory=ExportConfig)
    file: Path | None = None
    unchanged: TrainConfig | None = None

    def __post_init__(self) -> None:
        if type(self.encoding) is not self.dataset.encoding:
            raise ConfigError(
                f"recipe {self.name!r} uses encoding {type(self.encoding).__name__}, but its dataset "
                f"{self.dataset.name} requires {self.dataset.encoding.__name__}."
            )
        if self.file is not None:
            check_table(self.train.model)

    @property
    def called(self) -> str:
        """The argument that selects this recipe on the command line, as the user passed it."""
        return CALLED.get(self.name, self.name)

    @property
    def run_name(self) -> str:
        """Name of an MLflow run: the model, the settings that differ from the recipe's, and the seed."""
        train, own = self.train, self.unchanged or self.train
        if train.model.name != own.model.name:
            own = own.with_choices(model=type(train.model)())
        before = own.to_dict()
        changed = {name: value for name, value in train.to_dict().items() if value != before[name] and name != "seed"}
        return ", ".join(
            [train.model.name, *(f"{name} {value}" for name, value in changed.items()), f"seed {train.seed}"]
        )

    @property
    def model_choices(self) -> str:
        """A sentence listing the settings of the model that replaces the recipe's own, or an empty string if none."""
        model, own = self.train.model, (self.unchanged or self.train).model
        if model.name == own.name:
            return ""
        shown = [f"{one.name} {text_of(getattr(model, one.name))}" for one in fields(model)]
        return (
            f"{model.name} replaces {own.name} and uses its own {', '.join(shown) or 'nothing'}; the training "
            f"settings stay as in {self.called}"
        )

    def with_overrides(self, overrides: Overrides) -> "Recipe":
        train = overrides.apply(self.train)
        train.check_read(overrides.values)
        return replace(
            self,
            prepare=overrides.apply(self.prepare),
            encoding=overrides.apply(self.encoding),
            train=train,
            serving=overrides.apply(self.serving),
            unchanged=self.unchanged or self.train,
        )
