"""Built-in recipes: one file per dataset, listed in `_MODULES`.

Installed packages add recipes through the entry-point group `rankline.recipes`. The value of an entry point is a module
with `Recipe`s, or the name of a recipe in a module, such as `shop.recipes` or `shop.recipes:RANKING`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from rankline.recipes import amazon, criteo, movielens
from rankline.recipes.base import Recipe
from rankline.recipes.recipe_file import is_recipe_file, read_recipe
from rankline.workflows.core.errors import ConfigError, DataError
from rankline.workflows.core.formatting import did_you_mean
from rankline.workflows.data.tabular.config import FilesConfig
from rankline.workflows.data.tabular.files import find_files
from rankline.workflows.storage.artifacts import CALLED

GROUP = "rankline.recipes"
_MODULES = (movielens, criteo, amazon)

__all__ = ["GROUP", "Recipe", "available", "recipe_named"]


@dataclass(frozen=True, kw_only=True)
class Available:
    """Available recipes, and a description of each entry point that could not be loaded."""

    recipes: Mapping[str, Recipe]
    problems: tuple[str, ...]


@cache
def available() -> Available:
    recipes = {recipe.name: recipe for module in _MODULES for recipe in _recipes_in(module)}
    problems = []
    for entry in entry_points(group=GROUP):
        try:
            recipes |= _new_recipes(entry, recipes)
        except Exception as error:  # a broken package must not hide other recipes
            package = entry.dist.name if entry.dist else "?"
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            problems.append(f"package {package}: its recipes {entry.value!r} were skipped ({reason})")
    return Available(recipes=recipes, problems=tuple(problems))


def recipe_named(name: str) -> Recipe:
    """Load a recipe by name or file. `churn=movielens` loads the recipe movielens under the name churn."""
    recipe = _found(name)
    CALLED[recipe.name] = name
    return recipe


def _found(name: str) -> Recipe:
    own, equals, base = name.partition("=")
    if is_recipe_file(name) and (not equals or Path(name).exists()):
        return read_recipe(Path(name))
    if equals:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", own):
            raise ConfigError(
                f"the name in {name!r} is {own!r}, expected only letters, digits, - and _, as in churn={base}"
            )
        return replace(_found(base), name=own)
    found = available()
    if name not in found.recipes and _is_data(Path(name)):
        raise ConfigError(f"{name} is data, not a recipe. Create a recipe from it first: rankline init {name}")
    if name not in found.recipes:
        problems = "".join(f" Also, {problem}." for problem in found.problems)
        raise ConfigError(
            f"unknown recipe {name!r}.{did_you_mean([name], found.recipes)} Expected one of "
            f"{', '.join(found.recipes)}, or a file written by rankline init.{problems}"
        )
    return found.recipes[name]


def _is_data(path: Path) -> bool:
    """Whether a path is a file or a directory of data files, unlike a folder of code named after its recipe."""
    if not path.is_dir():
        return path.exists()
    try:
        return bool(find_files(FilesConfig(files=(str(path),)), Path()))
    except (DataError, OSError):
        return False


def _new_recipes(entry: EntryPoint, known: Mapping[str, Recipe]) -> dict[str, Recipe]:
    recipes = {recipe.name: recipe for recipe in _recipes_in(entry.load())}
    if not recipes:
        raise ConfigError(
            "no Recipe found. Expected a module that contains recipes, or the name of a recipe in a module"
        )
    if taken := sorted(recipes.keys() & known.keys()):
        raise ConfigError(f"the names {taken} are already in use. Rename the recipes")
    return recipes


def _recipes_in(found: Any) -> Iterator[Recipe]:
    """Yield `found` itself if it is a recipe, or its public recipes in definition order if it is a module."""
    if isinstance(found, Recipe):
        yield found
    elif isinstance(found, ModuleType):
        for name, value in vars(found).items():
            if isinstance(value, Recipe) and not name.startswith("_"):
                yield value
