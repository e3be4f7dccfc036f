"""Recipe files (`rankline.yaml`), which define the data, labels, model and settings of a recipe without Python code."""

from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from rankline.recipes.base import Recipe
from rankline.recipes.yaml_config import WITHOUT, read_yaml, schema_of
from rankline.serving.export.config import ExportConfig
from rankline.training.config.train import TrainConfig
from rankline.training.models.config import ModelConfig
from rankline.training.models.tabular import MLPConfig
from rankline.workflows.core.validation import check_choice
from rankline.workflows.data.tabular.config import TableConfig
from rankline.workflows.data.tabular.dataset import table_dataset
from rankline.workflows.preprocess import RowsConfig
from rankline.workflows.preprocess.config import PrepareConfig

SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, kw_only=True)
class RecipeFile(TableConfig):
    """The contents of a recipe file, `rankline.yaml`.

    Attributes:
        name: name of the recipe, its artifacts and its ensemble: letters, digits, - and _.
        data: the files with the rows.
        columns: type and role of each column, by its name in the files; other columns are not read.
        labels: the columns to predict, by name.
        time: column that orders the rows, for a split by time.
        group: column that groups the rows: GAUC averages over groups, and a split by group keeps each group together.
        rows: how to split rows into training and validation.
        prepare: how to encode values as ids.
        model: name of a model, or its name and its settings.
        training: how to train the model.
        serving: how to serve the ensemble.
    """

    name: str
    rows: RowsConfig = field(default_factory=RowsConfig)
    prepare: PrepareConfig = field(default_factory=PrepareConfig)
    model: ModelConfig = field(default_factory=MLPConfig)
    training: TrainConfig = field(default_factory=TrainConfig, metadata={WITHOUT: ("model",)})
    serving: ExportConfig = field(default_factory=ExportConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        is_plain = bool(self.name) and self.name.replace("-", "").replace("_", "").isalnum() and self.name.isascii()
        check_choice(self, "name", is_plain, "letters, digits, - and _")

    def recipe(self, base: Path) -> Recipe:
        config = TableConfig(**{entry.name: getattr(self, entry.name) for entry in fields(TableConfig)})
        dataset = table_dataset(self.name, config, base)
        parts = {"rows": asdict(self.rows), "prepare": asdict(self.prepare)}
        choices = {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}
        return Recipe(
            name=self.name,
            summary=f"{', '.join(self.data.files)}: {', '.join(self.labels)}",
            dataset=replace(dataset, choices={**dataset.choices, **choices}),
            prepare=self.prepare,
            encoding=self.rows,
            train=replace(self.training, model=self.model),
            serving=self.serving,
        )


def is_recipe_file(name: str) -> bool:
    return Path(name).suffix.lower() in SUFFIXES


def read_recipe(path: Path) -> Recipe:
    return replace(read_yaml(path, RecipeFile).recipe(path.absolute().parent), file=path)


def recipe_schema() -> dict[str, Any]:
    return schema_of(RecipeFile, "Rankline recipe")
