"""Where a recipe keeps its artifacts."""

from dataclasses import dataclass
from pathlib import Path

from rankline.recipes import recipe_named

WORK_DIR = Path("work")
REPOSITORY = Path("model_repository")


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """Paths of one recipe.

    Attributes:
        recipe: name of the recipe.
        root: work directory; MLflow's store is shared by all recipes in it.
        repository: directory whose sub-directories are exported ensembles.
    """

    recipe: str
    root: Path = WORK_DIR
    repository: Path = REPOSITORY

    @property
    def raw(self) -> Path:
        """Downloaded and generated raw files."""
        return self.root / "raw"

    @property
    def prepared(self) -> Path:
        """The prepared-data artifact."""
        return self.root / self.recipe / "prepared"

    @property
    def model(self) -> Path:
        """The trained-model artifact that is exported."""
        return self.root / self.recipe / "model"

    def model_of_seed(self, seed: int) -> Path:
        """The trained-model artifact of a further seed."""
        return self.root / self.recipe / f"model-seed-{seed}"

    @property
    def ensemble(self) -> Path:
        """The exported ensemble."""
        return self.repository / self.recipe

    @property
    def log(self) -> Path:
        """Log of the embedded server."""
        return self.root / self.recipe / "server.log"

    @property
    def workers(self) -> Path:
        """Logs of several workers."""
        return self.root / self.recipe / "workers"

    @property
    def report(self) -> Path:
        """Directory of the benchmark's table, JSON and plot."""
        return self.root / self.recipe / "bench"


def workspace_of(recipe: str, root: Path = WORK_DIR, repository: Path = REPOSITORY) -> Workspace:
    """Where the recipe called `recipe` keeps its artifacts.

    Raises:
        ConfigError: there is no such recipe.
    """
    return Workspace(recipe=recipe_named(recipe).name, root=root, repository=repository)
