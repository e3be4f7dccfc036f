"""The commands `init`, `prepare`, `convert` and `import`."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from rankline.api.data_source import SourceConfig
from rankline.api.work_lock import working_in
from rankline.cli.options.arguments import FormatName, RecipeName, WorkDir
from rankline.cli.options.recipe_options import with_recipe_options
from rankline.recipes.overrides import Overrides
from rankline.recipes.workspace import WORK_DIR, workspace_of
from rankline.terminal.console import CONSOLE, Stages, note, plain_table, say
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.optional_packages import require
from rankline.workflows.preprocess.config import DaskConfig
from rankline.workflows.schema.feature_spec import SOURCE_TYPES
from rankline.workflows.schema.spec_file import FILE_NAME

if TYPE_CHECKING:
    from rankline.recipes.first_recipe import FirstRecipe
    from rankline.workflows.data.tabular.config import Format

_OUTPUT = Path("rankline.yaml")


def init_command(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE…", help="CSV, Parquet or JSON Lines: files, directories or glob patterns."),
    ] = None,
    *,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Column to predict (repeat the option for several); inferred by default."),
    ] = None,
    format_name: FormatName = None,
    output: Annotated[
        Path, typer.Option(metavar="FILE", help="Output file for the recipe; the recipe is named after it.")
    ] = _OUTPUT,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the output file if it exists.")] = False,
    print_schema: Annotated[
        bool,
        typer.Option("--print-schema", help="Print the JSON schema for recipe files (for use in editors) and exit."),
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
        raise ConfigError(
            "no files were passed. Pass at least one, for example: rankline init clicks.csv --label click"
        )
    from rankline.workflows.data.tabular.config import FilesConfig
    from rankline.workflows.data.tabular.files import find_files

    chosen = _format(format_name)
    find_files(FilesConfig(files=tuple(files), format=chosen), Path())  # raises an error if one is missing
    if output.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--output is {output}, expected a file name ending in .yaml.")
    if output.exists() and not force:
        raise ConfigError(f"{output} already exists. Pass --force to replace it, or --output to write another file.")
    if not output.absolute().parent.is_dir():
        raise ConfigError(f"--output: {output.absolute().parent} is not a directory. Create the directory first.")
    from rankline.recipes.first_recipe import first_recipe

    with Stages(["look"]) as stages, stages.stage("look") as progress:
        made = first_recipe(
            files,
            label or (),
            output.parent,
            name=None if output.name == _OUTPUT.name else output.stem,
            format_name=chosen,
            progress=progress,
        )
    _show(made)
    if made.copies:
        note(f"Warning: {made.copies}")
    made.write(output)
    say(f"\n{output} written. Review it, then run: rankline run {shlex.quote(str(output))}")


def _format(name: str | None) -> "Format | None":
    from rankline.workflows.data.tabular.config import Format

    if name is not None and name not in get_args(Format):
        raise ConfigError(f"--format is {name!r}. Available: {', '.join(get_args(Format))}.")
    return cast("Format | None", name)


def _show(made: "FirstRecipe") -> None:
    table = plain_table()
    for heading in ("column", "type", "role", "why"):
        table.add_column(heading, overflow="fold")
    for row in made.columns():
        table.add_row(*row)
    CONSOLE.print(table, markup=False)


@with_recipe_options(SourceConfig, DaskConfig, of_recipe=lambda recipe: (recipe.prepare, recipe.encoding))
def prepare_command(recipe: RecipeName, *, work_dir: WorkDir = WORK_DIR, overrides: Overrides) -> None:
    """Turn raw rows into encoded Parquet, a fitted NVTabular workflow and the feature spec.

    `rankline prepare RECIPE --help` also shows the options of the recipe.

    **Examples**

    rankline prepare movielens --data-dir ml-1m --split time

    rankline prepare movielens --rows 1000000 --frequency-threshold 5 --hash-buckets 100

    rankline prepare criteo-dlrm --data-dir criteo --dask local:8

    rankline prepare criteo-dlrm --data-dir /shared/criteo --work-dir /shared/work --dask tcp://scheduler:8786
    """
    from rankline.api import verbs as api

    prepared = api.prepare(recipe, work_dir=work_dir, **overrides.values)
    say(f"prepared data: {prepared.path}")


def convert_command(
    recipe: RecipeName,
    *,
    to: Annotated[str, typer.Option(metavar="FORMAT", help=f"One of {', '.join(SOURCE_TYPES)}.")],
    prebatch: Annotated[
        int, typer.Option(min=1, help="Rows per record in TFRecord files; larger records are faster to read.")
    ] = 1,
    prebatch_valid: Annotated[
        int | None, typer.Option(min=1, help="Rows per record in the validation files, if different.")
    ] = None,
    work_dir: WorkDir = WORK_DIR,
) -> None:
    """Convert prepared data to TFRecord, or back to Parquet, in place. Train and export again afterwards.

    **Examples**

    rankline convert movielens --to tfrecord --prebatch 1024

    rankline convert movielens --to parquet
    """
    require("tensorflow", feature="convert", extra="cpu")
    workspace = workspace_of(recipe, work_dir)
    prepared = workspace.prepared
    with working_in(workspace.directory), Stages(["convert"]) as stages, stages.stage("convert") as progress:
        from rankline.training.data.convert import convert

        convert(prepared, prepared, to, prebatch=prebatch, prebatch_valid=prebatch_valid, progress=progress)
    say(f"prepared data: {prepared}")


def import_command(
    recipe: RecipeName,
    directory: Annotated[
        Path, typer.Argument(metavar="DIRECTORY", help=f"Directory of files with a {FILE_NAME} beside them.")
    ],
    *,
    spec: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Name of the feature spec in the directory.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Name for the artifacts, ensemble and experiment. [default: the recipe's name]"
        ),
    ] = None,
    work_dir: WorkDir = WORK_DIR,
) -> None:
    """Import already encoded data instead of running `prepare`. Training, export and serving use its ids unchanged.

    A feature spec describes the files: CSV, Parquet or TFRecord. Use `rankline prepare` for raw files.

    **Examples**

    rankline import amazon-sim mine

    rankline import movielens mine --name churn

    rankline import amazon-din mine --spec other.yaml
    """
    recipe = recipe if name is None else f"{name}={recipe}"
    workspace = workspace_of(recipe, work_dir)
    prepared = workspace.prepared
    if spec is not None and not (directory / spec).is_file():
        raise ConfigError(f"--spec: {directory / spec} is not a file. Pass the name of a feature spec in {directory}.")
    with working_in(workspace.directory), Stages(["import"]) as stages, stages.stage("import") as progress:
        from rankline.training.data.import_data import import_data

        data = import_data(directory if spec is None else directory / spec, prepared, progress=progress)
    rows = ", ".join(f"{source.num_rows:,} {split}" for split, source in data.spec.sources.items())
    if taken := data.manifest.details["channels"]:
        say(f"channels: {', '.join(f'{theirs} as {ours}' for theirs, ours in taken.items())}")
    if name is not None:
        say(f"train a model with: rankline train {recipe}")
    say(f"prepared data: {prepared} ({rows} rows)")
