"""Help that fits a terminal: commands by purpose, common options first, names whole, all else behind --help-all."""

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import typer
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup

from rankline.terminal.console import CONSOLE, show
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.formatting import closest_name

ALL = "--help-all"
_MIN_SIMILARITY = 0.6  # lower than for other names, since commands are short: it accepts "rnu"
_COMMON = {
    *("--data-dir", "--download", "--rows", "--split", "--valid-share", "--model", "--epochs", "--batch-size"),
    *("--learning-rate", "--early-stopping-patience", "--seed", "--time-limit-s", "--device", "--resume", "--workers"),
    *("--engine", "--concurrency", "--rate", "--slo", "--min-duration-s"),
}
"""Options of configs that `--help` shows; options of the command itself are always shown."""
_MAX_ALL = 12  # a command with fewer options shows all of them
_MAX_LEFT = 26
_VALUES = {"int": "N", "integer": "N", "float": "X", "str": "TEXT", "path": "PATH"}
"""Mapping from the type of a value, under the names in different versions of Typer, to its placeholder."""
_EXAMPLES = re.compile(r"\*\*Examples?\*\*\s*(.*)", re.DOTALL)
_DEFAULT = re.compile(r"\s*\[default: (.*?)\]\.?$", re.DOTALL)


class HelpCommand(TyperCommand):
    """A command whose --help lists the common options, and whose --help-all lists all options in full."""

    recipe_name = ""
    """The recipe whose options the command has, if it depends on one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ALL in args:
            _print_command(self, ctx, is_whole=True)
            raise typer.Exit
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002  (Typer's signature)
        _print_command(self, ctx, is_whole=False)


class HelpGroup(TyperGroup):
    """A group whose help lists each command on one line, below its purpose."""

    purposes: Mapping[str, Sequence[tuple[str, str]]] = {}
    """Purpose → its commands and what they do, in a few words."""
    recipes: Mapping[str, str] = {}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and self.get_command(ctx, args[0]) is None:
            closest = closest_name(args[0].lower(), self.list_commands(ctx), min_similarity=_MIN_SIMILARITY)
            meant = f" Did you mean {closest!r}?" if closest else ""
            raise ConfigError(f"unknown command {args[0]!r}.{meant} List the commands with: rankline --help")
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        _write(f"[bold]Usage:[/] {ctx.command_path} COMMAND [ARGUMENTS]\n")
        _write(f"{escape(self.help or '')}\n")
        for purpose, commands in self.purposes.items():
            for number, (name, words) in enumerate(commands):
                key = f"[bold]{purpose if number == 0 else '':<9}[/][cyan]{name:<11}[/]"
                _write(escape(words), key, 20)
        CONSOLE.print()
        _write(", ".join(self.recipes), "[bold]Recipes[/]", 20)
        _write("or your own rankline.yaml, which `rankline init` writes", "", 20)
        CONSOLE.print()
        for flags, words in _rows(self.get_params(ctx), ctx, is_whole=False):
            _write(escape(words), f"[cyan]{escape(flags)}[/]", 24)
        CONSOLE.print()
        _write("Options of a command: rankline COMMAND --help")


def _write(text: str, key: str = "", indent: int = 0) -> None:
    show(CONSOLE, text, key, indent, wrap=True)


def _print_command(command: Any, ctx: Any, *, is_whole: bool) -> None:
    text = inspect.cleandoc(command.help or "")
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.get_params(ctx) if one.param_type_name == "option" and not one.hidden]
    named = " ".join(one.metavar or one.name.upper() for one in arguments)
    _write(f"[bold]Usage:[/] {ctx.command_path} [dim]\\[OPTIONS][/] {escape(named)}\n")
    for paragraph in _EXAMPLES.sub("", text).strip().split("\n\n"):
        _write(f"{escape(' '.join(paragraph.replace('`', '').split()))}\n")
    if found := _EXAMPLES.search(text):
        for line in filter(None, map(str.strip, found[1].splitlines())):
            _write(f"[green]{escape(line)}[/]", "", 2)
        CONSOLE.print()
    for one in arguments:
        _print_row(one.metavar or one.name.upper(), _words(one, is_whole=is_whole))
    shown = options if is_whole or len(options) <= _MAX_ALL else [one for one in options if _is_common(one)]
    panels: dict[str, list[Any]] = {}
    for option in shown:
        panels.setdefault((getattr(option, "rich_help_panel", None) or "") if is_whole else "", []).append(option)
    for panel, of_panel in panels.items():
        if panel:
            _write(f"\n[bold]{escape(panel)}[/]")
        for flags, words in _rows(of_panel, ctx, is_whole=is_whole):
            _print_row(flags, words)
    if left := len(options) - len(shown):
        asked = " ".join(filter(None, [ctx.command_path, command.recipe_name, ALL]))
        _write(f"\n{left} more options: {escape(asked)}")


def _print_row(flags: str, words: str) -> None:
    key = f"  [cyan]{escape(flags)}[/]"
    if len(flags) > _MAX_LEFT:
        _write(key)
        key = ""
    _write(escape(words), key, _MAX_LEFT + 4)


def _rows(options: Sequence[Any], context: Any, *, is_whole: bool) -> Iterator[tuple[str, str]]:
    for option in options:
        flags = ", ".join(sorted(option.opts, key=len))
        if option.secondary_opts:
            flags = f"--[no-]{option.opts[0].removeprefix('--')}"
        elif not option.is_flag:
            flags += f" {option.metavar or _placeholder(option, context)}"
        yield flags, _words(option, is_whole=is_whole)


def _placeholder(option: Any, context: Any) -> str:
    shown = option.get_help_record(context)[0].replace(",", " ").split()
    kind = re.sub(r"\W", "", next((word for word in shown if not word.startswith("-")), "VALUE"))
    return _VALUES.get(kind.lower(), kind.upper())


def _words(parameter: Any, *, is_whole: bool) -> str:
    """Return a parameter's help, or its first sentence, and the default."""
    text = " ".join((getattr(parameter, "help", None) or "").replace("`", "").split())
    default = _DEFAULT.search(text)
    text = _DEFAULT.sub("", text)
    value = default[1] if default else parameter.default
    is_shown = default or (getattr(parameter, "show_default", False) and isinstance(value, str | int | float))
    if not is_whole:
        text = re.split(r"(?<=\w[.;:])\s", text)[0].rstrip(".;:")
    is_told = is_shown and not isinstance(value, bool) and str(value) not in ("", "None")
    return f"{text} [default: {value}]" if is_told else text


def _is_common(option: Any) -> bool:
    is_own = not (getattr(option, "rich_help_panel", None) or "").endswith(" options")
    return is_own or bool({*option.opts} & _COMMON)
