"""Command-line options made from the config dataclasses, so that a name, a default and a help text exist once.

Every field of a config becomes `--field-name`; its help is the line about it under "Attributes:" in the docstring.
A field that is a config itself, as the model of a run is, becomes an option that names another one, beside the
options of the one that is there. An option that is not given leaves the config's value as it is.
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
    """Give a command one option for each field of some configs.

    The command takes `overrides: Overrides`, which holds the options that were given. The values of the configs are the
    defaults that the help shows.
    """

    def decorate(command: Command) -> Command:
        added = [_parameter(config, field) for config, field in _fields(configs)]
        signature = inspect.signature(command)
        own = [parameter for name, parameter in signature.parameters.items() if name != "overrides"]
        names = [parameter.name for parameter in (*own, *added)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            kinds = [type(config).__name__ for config, field in _fields(configs) if field.name in twice]
            raise ConfigError(
                f"{_flag(twice[0])} would be two options of this command, by {' and '.join(kinds)}. Rename the "
                "field of your model."
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
    """Values given as command-line options or keyword arguments, by the name of their field."""

    values: Mapping[str, Any]

    def apply(self, config: Config) -> Config:
        """Replace values of a config, and of the configs inside it."""
        values = {name: getattr(config, name) for name in (field.name for field in fields(config))}  # type: ignore[arg-type]
        values |= {name: value for name, value in self.values.items() if name in values}
        return replace(config, **{name: self.apply(v) if is_dataclass(v) else v for name, v in values.items()})  # type: ignore[type-var]


def _fields(configs: tuple[Any, ...]) -> Iterator[tuple[Any, "Field[Any]"]]:
    """Yield each config with each of its fields, and then those of the configs inside it."""
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
        rich_help_panel=re.sub(r"Config$", "", type(config).__name__) + " options",
        show_default=False,
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
        raise typer.BadParameter(f"{text!r}, expected whole numbers separated by commas.") from None


_PARSERS: Mapping[Any, tuple[Callable[[str], Any], str]] = {
    tuple: (_whole_numbers, "N,N,…"),
    ModelConfig: (lambda name: model_named(name)(), "NAME"),
}
"""Type of a field → what makes a value of it, and what its help calls that; others are typer's own."""


def _beginning_with(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


_CHOICES: Mapping[str, Callable[[str], list[str]]] = {
    "backend": _beginning_with(lambda: BACKENDS),
    "engine": _beginning_with(engines),
    "model": _beginning_with(lambda: MODELS),
}
"""Field → what a shell offers for its option; choices that are a `Literal` are typer's own."""


def description_of(kind: type, name: str) -> str:
    """The help of a field, from the docstring of its class or of a base class."""
    line = re.compile(rf"^    {name}: (.+?)(?=^    \w+: |\Z)", re.DOTALL | re.MULTILINE)
    found = [match for owner in kind.__mro__ if (match := line.search(inspect.getdoc(owner) or ""))]
    if not found:
        raise TypeError(f"{kind.__name__}.{name} has no line under 'Attributes:' in the docstring of its class.")
    text = " ".join(found[0].group(1).split())
    return text[0].upper() + text[1:]


def _help(config: Any, name: str) -> str:
    return description_of(type(config), name) + _default(getattr(config, name))


def _default(value: Any) -> str:
    if isinstance(value, ModelConfig):
        value = value.name
    text = "" if value is None else text_of(value)
    return text and f" [default: {text}]"


def typed(name: str, value: Any) -> str:
    """An option and its value as they are typed."""
    if isinstance(value, bool):
        return _flag(name) if value else f"--no-{name.replace('_', '-')}"
    return f"{_flag(name)} {f'{value:g}' if isinstance(value, float) else text_of(value)}"


def text_of(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
