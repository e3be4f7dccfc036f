"""Commands whose options depend on the recipe."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import typer
from typer.core import TyperCommand

from rankline.api.data_source import OF_GENERATED
from rankline.cli.options.help import ALL, HelpCommand
from rankline.recipes import Recipe, recipe_named
from rankline.recipes.overrides import Command, Overrides, flags_of, with_options
from rankline.training.models import model_named
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.formatting import did_you_mean

_MODEL = "--model"


def with_recipe_options(*configs: type, of_recipe: Callable[[Recipe], tuple[Any, ...]]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        general = with_options(*configs)(command)
        general.for_recipe = lambda recipe: with_options(*configs, *of_recipe(recipe))(command)  # type: ignore[attr-defined]
        general.flags_of_recipe = lambda recipe: flags_of(*of_recipe(recipe))  # type: ignore[attr-defined]
        return general

    return decorate


class RecipeCommand(HelpCommand):
    """A command that accepts its general options and the options of the recipe named in its arguments, if any."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        try:
            return self._context_of_recipe(info_name, args, parent, **extra)
        except ConfigError:
            if not extra.get("resilient_parsing"):
                raise
            return super().make_context(info_name, args, parent, **extra)

    def _context_of_recipe(self, info_name: str | None, args: list[str], parent: Any, **extra: Any) -> Any:
        recipe = _recipe_in(self, args)
        if recipe is None:
            return super().make_context(info_name, args, parent, **extra)
        verb = _typer_command(self.callback.for_recipe(recipe))  # type: ignore[union-attr]
        verb.recipe_name = recipe.called
        for parameter in verb.params:
            if recipe.dataset.generate is None and parameter.name in OF_GENERATED:
                parameter.hidden = True  # type: ignore[attr-defined]  # an option
        known = {flag for parameter in verb.params for flag in (*parameter.opts, *parameter.secondary_opts)}
        if unknown := [flag for flag in _flags(verb, args) if flag not in {*known, "--help", ALL}]:
            of_recipe = self.callback.flags_of_recipe(recipe)  # type: ignore[union-attr]
            raise ConfigError(
                f"{info_name} {recipe.name} does not support "
                f"{', '.join(unknown)}.{_taken_by(unknown, parent) or did_you_mean(unknown, known)} This recipe "
                f"supports {', '.join(of_recipe)}."
            )
        return verb.make_context(info_name, args, parent, **extra)


def _taken_by(flags: Sequence[str], group: Any) -> str:
    """Return a sentence that names the commands that accept all of `flags`, or an empty string if there are none."""
    verbs = group.command.commands if group is not None else {}
    taking = [
        f"rankline {name}"
        for name, verb in verbs.items()
        if {*flags} <= {flag for parameter in verb.params for flag in parameter.opts}
    ]
    return f" {' and '.join(taking)} {('support' if len(taking) > 1 else 'supports')} it." if taking else ""


def _recipe_in(verb: TyperCommand, args: Sequence[str]) -> Recipe | None:
    """Return the recipe named in the arguments, if any, with its model replaced if --model is given."""
    words = [token for token in _tokens(verb, args) if not token.startswith("-")]
    recipe = next((found for word in words if (found := _recipe(word))), None)
    if recipe is None and args and args[0] in words[:1]:
        recipe_named(args[0])  # raises an error that lists the recipes
    if recipe is None or not (model := _model_in(args)):
        return recipe
    return recipe.with_overrides(Overrides({"model": model_named(model)()}))


def _model_in(args: Sequence[str]) -> str | None:
    words = [word for arg in args for word in arg.split("=", 1)]
    places = [place for place, word in enumerate(words[:-1]) if word == _MODEL]
    return words[places[-1] + 1] if places else None


def _recipe(name: str) -> Recipe | None:
    try:
        return recipe_named(name)
    except ConfigError:
        return None


def _flags(verb: TyperCommand, args: Sequence[str]) -> list[str]:
    return [token.partition("=")[0] for token in _tokens(verb, args) if token.startswith("--") and token != "--"]


def _tokens(verb: TyperCommand, args: Sequence[str]) -> Iterator[str]:
    """Yield the arguments, excluding option values."""
    valued = {flag for parameter in verb.params if not getattr(parameter, "is_flag", False) for flag in parameter.opts}
    is_value = False
    for arg in args:
        if not is_value:
            yield arg
        is_value = not is_value and arg in valued


def _typer_command(function: Command) -> HelpCommand:
    app = typer.Typer(rich_markup_mode="markdown", add_completion=False)
    app.command(cls=HelpCommand)(function)
    command = typer.main.get_command(app)
    assert isinstance(command, HelpCommand)
    return command
