"""The verb `import`: data that somebody else prepared, as the prepared data of a recipe."""

from pathlib import Path
from typing import Annotated

import typer

from rankline.cli.arguments import RecipeName, WorkDir
from rankline.display import Stages, say
from rankline.workspace import WORK_DIR, workspace_of
from workflows.errors import ConfigError
from workflows.spec_file import FILE_NAME


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
    """Encoded data of your own in place of `prepare`; then train, export and serve, with the same ids.

    A feature spec describes the files: CSV, Parquet or TFRecord. Raw files are for `rankline prepare`.

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
        from training.imported import import_data

        data = import_data(directory if spec is None else directory / spec, prepared, progress=progress)
    rows = ", ".join(f"{source.num_rows:,} {split}" for split, source in data.spec.sources.items())
    if taken := data.manifest.details["channels"]:
        say(f"channels: {', '.join(f'{theirs} as {ours}' for theirs, ours in taken.items())}")
    if name is not None:
        say(f"train it with: rankline train {recipe}")
    say(f"prepared data: {prepared} ({rows} rows)")
