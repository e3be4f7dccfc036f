"""Command-line options generated from config dataclasses, so that names, defaults and help texts are defined only once.

Each field of a config becomes `--field-name`, with the field's entry under "Attributes:" in the docstring as its help.
A field that is itself a config, such as the model, becomes an option that selects another config, next to the options
of the current one. Options that are not given leave the config unchanged.
"""

import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from typing import Annotated, Any, TypeVar

import typer

from rankline.serving.engines import engines
from rankline.serving.export.config import BACKENDS
from rankline.training.models import MODELS, model_named
from rankline.training.models.config import ModelConfig
from rankline.workflows.core.errors import ConfigError

Config = TypeVar("Config")
Command = Callable[..., None]


def with_options(*configs: Any) -> Callable[[Command], Command]:
    """Return a decorator that adds an option to a command for each field of `configs`.

    The command takes `overrides: Overrides` with the given options. The help shows the values in `configs` as defaults.
    """

    def decorate(command: Command) -> Command:
        added = [_parameter(config, field) for config, field in _fields(configs)]
        signature = inspect.signature(command)
        own = [parameter for name, parameter in signature.parameters.items() if name != "overrides"]
        names = [parameter.name for parameter in (*own, *added)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            kinds = [type(config).__name__ for config, field in _fields(configs) if field.name in twice]
            raise ConfigError(
                f"{_flag(twice[0])} is defined by both {' and '.join(kinds)}, but option names must be unique. "
                "Rename the field in the configuration of your model."
            )

        @functools.wraps(command)
        def wrapped(**arguments: Any) -> None:
            given = {parameter.name: arguments.pop(parameter.name) for parameter in added}
            command(**arguments, overrides=Overrides({name: v for name, v in given.items() if v is not None}))

        wrapped.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        return wrapped

    return decorate


def flags_of(*configs: Any) -> list[str]:
    return sorted(_flag(field.name) for _, field in _fields(configs))


def names_of(*configs: Any) -> list[str]:
    return sorted({field.name for _, field in _fields(configs)})


@dataclass(frozen=True)
class Overrides:
    values: Mapping[str, Any]

    def apply(self, config: Config) -> Config:
        values = {name: getattr(config, name) for name in (field.name for field in fields(config))}  # type: ignore[arg-type]
        values |= {name: value for name, value in self.values.items() if name in values}
        return replace(config, **{name: self.apply(v) if is_dataclass(v) else v for name, v in values.items()})  # type: ignore[type-var]


def _fields(configs: tuple[Any, ...]) -> Iterator[tuple[Any, "Field[Any]"]]:
    """Yield (config, field) pairs for each config's own fields, then for the fields of its nested configs."""
    for config in configs:
        values = config() if isinstance(config, type) else config
        for field in fields(values):
            yield values, field
        yield from _fields(tuple(v for field in fields(values) if is_dataclass(v := getattr(values, field.name))))


def _parameter(config: Any, field: "Field[Any]") -> inspect.Parameter:
    name = field.name
    hint = typing.get_type_hints(type(config))[name]
    parser, metavar = _PARSERS.get(typing.get_origin(hint) or hint, (None, None))
    option = typer.Option(
        f"{_flag(name)}/--no-{name.replace('_', '-')}" if hint in (bool, bool | None) else _flag(name),
        help=_help(config, name),
        rich_help_panel=re.sub(r"(Config|Options)$", "", type(config).__name__) + " options",
        parser=parser,
        metavar=metavar,
        autocompletion=_CHOICES.get(name),
    )
    kind = Any if parser else hint | None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option])


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _whole_numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is invalid, expected integers separated by commas.") from None


_PARSERS: Mapping[Any, tuple[Callable[[str], Any], str]] = {
    tuple: (_whole_numbers, "N,N,…"),
    ModelConfig: (lambda name: model_named(name)(), "NAME"),
}
"""Mapping from field type to parser and metavar. Typer handles other types."""


def _beginning_with(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


_CHOICES: Mapping[str, Callable[[str], list[str]]] = {
    "backend": _beginning_with(lambda: BACKENDS),
    "engine": _beginning_with(engines),
    "model": _beginning_with(lambda: MODELS),
}
"""Mapping from field to its shell completion. Typer completes `Literal` fields."""


def description_of(kind: type, name: str) -> str:
    line = re.compile(rf"^    {name}: (.+?)(?=^    \w+: |\Z)", re.DOTALL | re.MULTILINE)
    found = [match for owner in kind.__mro__ if (match := line.search(inspect.getdoc(owner) or ""))]
    if not found:
        raise ConfigError(
            f"{kind.__name__}.{name} is not documented. Add a line for it under 'Attributes:' in the class docstring."
        )
    text = " ".join(found[0].group(1).split())
    return text[0].upper() + text[1:]


def _help(config: Any, name: str) -> str:
    value = getattr(config, name)
    text = value.name if isinstance(value, ModelConfig) else "" if value is None else text_of(value)
    return description_of(type(config), name) + (text and f" [default: {text}]")


def typed(name: str, value: Any) -> str:
    """Format a field's name and value as an option on the command line."""
    if isinstance(value, bool):
        return _flag(name) if value else f"--no-{name.replace('_', '-')}"
    return f"{_flag(name)} {f'{value:g}' if isinstance(value, float) else text_of(value)}"


def text_of(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
