"""Locations of a recipe's artifacts."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rankline.recipes import available, recipe_named
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.formatting import did_you_mean

if TYPE_CHECKING:
    from rankline.workflows.preprocess.dataset import Requests

WORK_DIR = Path("work")
REPOSITORY = Path("model_repository")
NAMES = "[A-Za-z0-9_-]+"
"""Pattern of valid ensemble names."""


@dataclass(frozen=True, kw_only=True)
class Workspace:
    recipe: str
    root: Path = WORK_DIR
    repository: Path = REPOSITORY

    @property
    def raw(self) -> Path:
        return self.root / "raw"

    @property
    def directory(self) -> Path:
        """Directory of the recipe's artifacts."""
        return self.root / self.recipe

    @property
    def prepared(self) -> Path:
        return self.directory / "prepared"

    @property
    def sample(self) -> Path:
        """Path of the sample rows for benchmarking an ensemble whose model was trained elsewhere."""
        return self.directory / "sample"

    @property
    def model(self) -> Path:
        return self.directory / "model"

    def model_of_seed(self, seed: int) -> Path:
        return self.directory / f"model-seed-{seed}"

    @property
    def ensemble(self) -> Path:
        return self.repository / self.recipe

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    @property
    def workers(self) -> Path:
        return self.directory / "workers"

    @property
    def tuning(self) -> Path:
        return self.directory / "tune"

    @property
    def bench(self) -> Path:
        return self.directory / "bench"

    @property
    def report(self) -> Path:
        """Path of the page about the last run."""
        return self.directory / "report.html"


def workspace_of(recipe: str, root: Path = WORK_DIR, repository: Path = REPOSITORY) -> Workspace:
    return Workspace(recipe=recipe_named(recipe).name, root=root, repository=repository)


def exported_workspace(name: str, root: Path = WORK_DIR, repository: Path = REPOSITORY) -> Workspace:
    """Return the workspace of a recipe, or of an ensemble exported under another name."""
    if is_exported_only(name, repository):
        return Workspace(recipe=name, root=root, repository=repository)
    known = available()
    if known.problems or not re.fullmatch(NAMES, name) or name in known.recipes or Path(name).exists():
        return workspace_of(name, root, repository)
    exported = sorted(path.name for path in repository.glob("*") if path.is_dir())
    there = (
        f"It contains {', '.join(exported)}; choose one of these"
        if exported
        else "It contains no ensembles; create one with rankline export"
    )
    raise ConfigError(
        f"{name!r} was not found in {repository.absolute()}. {there}, or pass another "
        f"--repository.{did_you_mean([name], [*exported, *known.recipes])}"
    )


def exported_only(repository: Path) -> list[str]:
    return sorted(path.name for path in repository.glob("*") if is_exported_only(path.name, repository))


def is_exported_only(name: str, repository: Path) -> bool:
    """Whether `name` belongs to an exported ensemble without a recipe, whose model was trained elsewhere."""
    return is_no_recipe(name) and (repository / name).is_dir()


def requests_of(name: str, repository: Path) -> "Requests | None":
    """Return how rows to score are read; None to take them as they are in a file."""
    return None if is_exported_only(name, repository) else recipe_named(name).dataset.requests


def is_no_recipe(name: str) -> bool:
    """Whether the name is a valid ensemble name that no recipe uses."""
    return re.fullmatch(NAMES, name) is not None and name not in available().recipes
