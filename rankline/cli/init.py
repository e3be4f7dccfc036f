import json
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from rankline.terminal.console import CONSOLE, Stages, plain_table, say
from rankline.workflows.core.errors import ConfigError

_OUTPUT = Path("rankline.yaml")

if TYPE_CHECKING:
    from rankline.recipes.first_recipe import FirstRecipe
    from rankline.workflows.data.tabular.config import Format


def init_command(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE…", help="CSV, Parquet or JSON lines: files, directories, patterns.", show_default=False
        ),
    ] = None,
    *,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", help="Column to predict; may be given several times. By default it is guessed."),
    ] = None,
    format_name: Annotated[
        str | None, typer.Option("--format", help="csv, parquet or jsonl; by default, what the extension says.")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", metavar="FILE", help="Where to write the recipe, which is named after FILE.")
    ] = _OUTPUT,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
    print_schema: Annotated[
        bool, typer.Option("--print-schema", help="Print the JSON schema of recipe files, for editors, and do no more.")
    ] = False,
) -> None:
    """Inspect your own data and write a recipe for it, `rankline.yaml`, which every command accepts.

    Shows each guess with its reason: the type and role of each column, the label, and columns that leak it.

    **Examples**

    rankline init clicks.csv --label click

    rankline init logs/*.parquet

    rankline init --print-schema > rankline.schema.json
    """
    from rankline.recipes.recipe_file import recipe_schema

    if print_schema:
        typer.echo(json.dumps(recipe_schema(), indent=2))
        return
    if not files:
        raise ConfigError("no files were given. Give some, such as: rankline init clicks.csv --label click")
    if output.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--output is {output}, expected a name that ends with .yaml.")
    if output.exists() and not force:
        raise ConfigError(f"{output} is there already. Give --force to replace it, or --output for another name.")
    if not output.absolute().parent.is_dir():
        raise ConfigError(f"--output: {output.absolute().parent} is not a directory. Make it first.")
    from rankline.recipes.first_recipe import first_recipe

    with Stages(["look"]) as stages, stages.stage("look") as progress:
        made = first_recipe(
            files,
            label or (),
            output.parent,
            name=None if output.name == _OUTPUT.name else output.stem,
            format_name=_format(format_name),
            progress=progress,
        )
    _show(made)
    made.write(output)
    say(f"\n{output} written. Look through it, then: rankline run {shlex.quote(str(output))}")


def _format(name: str | None) -> "Format | None":
    from rankline.workflows.data.tabular.config import Format

    if name is not None and name not in get_args(Format):
        raise ConfigError(f"--format is {name!r}. Available: {', '.join(get_args(Format))}.")
    return cast("Format | None", name)


def _show(made: "FirstRecipe") -> None:
    table = plain_table()
    for heading in ("column", "type", "role", "why"):
        table.add_column(heading, overflow="fold")
    for row in _rows(made):
        table.add_row(*row)
    CONSOLE.print(table, markup=False)


def _rows(made: "FirstRecipe") -> Iterable[tuple[str, str, str, str]]:
    for name, label in made.guesses.labels.items():
        yield name, label.task, "label", made.guesses.label_why[name]
    for name, column in made.guesses.columns.items():
        yield name, column.config.type, column.config.role, column.why
