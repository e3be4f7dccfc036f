"""What a recipe is."""

from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from rankline.recipes.overrides import Overrides, text_of
from rankline.serving.export.config import ExportConfig
from rankline.training.config.train import TrainConfig
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.preprocess import EncodingConfig, RowsConfig
from rankline.workflows.preprocess.config import PrepareConfig
from rankline.workflows.preprocess.dataset import Dataset


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A whole run by name: dataset, model and all choices.

    Attributes:
        name: also of the ensemble and of the MLflow experiment.
        encoding: an instance of `dataset.encoding`.
        file: the recipe file that it was read from, if any.
        unchanged: `train` before any options replaced part of it; None if none did.
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
                f"recipe {self.name!r} has the encoding {type(self.encoding).__name__}, but its dataset "
                f"{self.dataset.name} takes {self.dataset.encoding.__name__}."
            )

    @property
    def called(self) -> str:
        """What to type for it on the command line."""
        return self.name if self.file is None else str(self.file)

    @property
    def run_name(self) -> str:
        """What MLflow calls a run: its model, what differs from the recipe, and the seed."""
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
        """Describe what a model in place of the recipe's own brought with it; empty for its own."""
        model, own = self.train.model, (self.unchanged or self.train).model
        if model.name == own.name:
            return ""
        shown = [f"{one.name} {text_of(getattr(model, one.name))}" for one in fields(model)]
        return (
            f"{model.name} instead of {own.name} brings its own {', '.join(shown) or 'nothing'}; "
            f"how it is fitted stays as in {self.called}"
        )

    def with_overrides(self, overrides: Overrides) -> "Recipe":
        """The recipe with options of the command line in place of its own values.

        Raises:
            ConfigError: an option is out of its range, or the model would not read it.
        """
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
