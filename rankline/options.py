"""Command-line options made from the config dataclasses, so that a name, a default and a help text exist once.

Every field of a config becomes `--field-name`; its help is the line about it under "Attributes:" in the docstring. An
option that is not given leaves the recipe's value as it is.
"""

import functools
import inspect
import re
import typing
from collections.abc import Callable, Mapping, Set
from dataclasses import Field, fields, replace
from typing import Annotated, Any, TypeVar

import typer

Config = TypeVar("Config")


def with_options(
    *configs: type, of_recipe: tuple[type, ...] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one option for each field of some configs.

    The command takes a keyword argument `overrides`, which receives `Overrides` with the options that were given.

    Args:
        *configs: their defaults are the ones shown.
        of_recipe: configs whose values the recipe chooses.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        added = [
            _parameter(config, field, in_recipe=config in of_recipe)
            for config in (*configs, *of_recipe)
            for field in fields(config)
        ]
        signature = inspect.signature(command)
        own = [parameter for name, parameter in signature.parameters.items() if name != "overrides"]

        @functools.wraps(command)
        def wrapped(**arguments: Any) -> None:
            given = {parameter.name: arguments.pop(parameter.name) for parameter in added}
            command(**arguments, overrides=Overrides({name: v for name, v in given.items() if v is not None}))

        wrapped.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        return wrapped

    return decorate


class Overrides:
    """The options that were given on the command line.

    Args:
        values: field name → value.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    @property
    def names(self) -> Set[str]:
        """Fields that were given."""
        return self._values.keys()

    def apply(self, config: Config) -> Config:
        """`config` with the given options in place of its own values."""
        names = {field.name for field in fields(config)}  # type: ignore[arg-type]
        return replace(config, **{name: v for name, v in self._values.items() if name in names})  # type: ignore[type-var]


def _parameter(config: type, field: "Field[Any]", *, in_recipe: bool) -> inspect.Parameter:
    name = field.name
    hint = typing.get_type_hints(config)[name]
    flag = "--" + name.replace("_", "-")
    flags = [f"{flag}/--no-{name.replace('_', '-')}"] if hint is bool else [flag]
    is_list = typing.get_origin(hint) is tuple
    option = typer.Option(
        *flags,
        help=_help(config, field),
        rich_help_panel=_panel(config) + (" (a recipe may choose other defaults)" if in_recipe else ""),
        show_default=False,
        parser=_whole_numbers if is_list else None,
        metavar="N,N,…" if is_list else None,
    )
    kind = Any if is_list else hint | None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option])


def _whole_numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{text!r}, expected whole numbers separated by commas.") from None


def _help(config: type, field: "Field[Any]") -> str:
    name = field.name
    match = re.search(rf"^    {name}: (.+?)(?=^    \w+: |\Z)", inspect.getdoc(config) or "", re.DOTALL | re.MULTILINE)
    if match is None:
        raise TypeError(f"{config.__name__}.{name} has no line under 'Attributes:' in the docstring of the class.")
    text = " ".join(match.group(1).split())
    default = "" if field.default in (None, ()) else f" [default: {_shown(field.default)}]"
    return text[0].upper() + text[1:] + default


def _shown(default: Any) -> str:
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _panel(config: type) -> str:
    return re.sub(r"Config$", "", config.__name__) + " options"
