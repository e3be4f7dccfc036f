"""The commands `prepare`, `convert` and `import`."""

from pathlib import Path
from typing import Annotated

import typer

from rankline.api.data_source import SourceConfig
from rankline.cli.options.arguments import RecipeName, WorkDir
from rankline.cli.options.recipe_options import with_recipe_options
from rankline.recipes.overrides import Overrides
from rankline.recipes.workspace import WORK_DIR, workspace_of
from rankline.terminal.console import Stages, say
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.optional_packages import require
from rankline.workflows.preprocess.config import DaskConfig
from rankline.workflows.schema.feature_spec import SOURCE_TYPES
from rankline.workflows.schema.spec_file import FILE_NAME


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
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help=f"One of {', '.join(SOURCE_TYPES)}.")],
    prebatch: Annotated[
        int, typer.Option("--prebatch", min=1, help="Rows per record of TFRecord files; more are faster to read.")
    ] = 1,
    prebatch_valid: Annotated[
        int | None, typer.Option("--prebatch-valid", min=1, help="The same for the validation rows, if not as many.")
    ] = None,
    work_dir: WorkDir = WORK_DIR,
) -> None:
    """Convert prepared data to TFRecord, or back to Parquet, in place. Train and export again afterwards.

    **Examples**

    rankline convert movielens --to tfrecord --prebatch 1024

    rankline convert movielens --to parquet
    """
    require("tensorflow", feature="convert", extra="cpu")
    prepared = workspace_of(recipe, work_dir).prepared
    with Stages(["convert"]) as stages, stages.stage("convert") as progress:
        from rankline.training.data.convert import convert

        convert(prepared, prepared, to, prebatch=prebatch, prebatch_valid=prebatch_valid, progress=progress)
    say(f"prepared data: {prepared}")


def import_command(
    recipe: RecipeName,
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help=f"Files with a {FILE_NAME} beside them.")],
    *,
    spec: Annotated[
        Path | None, typer.Option("--spec", metavar="FILE", help="Feature spec of another name, in the directory.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Of its artifacts, ensemble and experiment; else the recipe's."),
    ] = None,
    work_dir: WorkDir = WORK_DIR,
) -> None:
    """Import data that is already encoded, in place of `prepare`; then train, export and serve it with the same ids.

    A feature spec describes the files: CSV, Parquet or TFRecord. Use `rankline prepare` for raw files.

    **Examples**

    rankline import amazon-sim mine

    rankline import movielens mine --name churn

    rankline import amazon-din mine --spec other.yaml
    """
    recipe = recipe if name is None else f"{name}={recipe}"
    prepared = workspace_of(recipe, work_dir).prepared
    if spec is not None and not (directory / spec).is_file():
        raise ConfigError(f"--spec: {directory / spec} is not a file. Give the name of one in {directory}.")
    with Stages(["import"]) as stages, stages.stage("import") as progress:
        from rankline.training.data.import_data import import_data

        data = import_data(directory if spec is None else directory / spec, prepared, progress=progress)
    rows = ", ".join(f"{source.num_rows:,} {split}" for split, source in data.spec.sources.items())
    if taken := data.manifest.details["channels"]:
        say(f"channels: {', '.join(f'{theirs} as {ours}' for theirs, ours in taken.items())}")
    if name is not None:
        say(f"train it with: rankline train {recipe}")
    say(f"prepared data: {prepared} ({rows} rows)")
