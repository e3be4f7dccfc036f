"""The verb `convert`: the prepared data of a recipe in another file format."""

from pathlib import Path
from typing import Annotated

import typer

from rankline.display import CONSOLE, Stages
from rankline.recipes import RECIPES, recipe_named
from rankline.workspace import WORK_DIR, Workspace
from workflows.extras import require
from workflows.feature_spec import SOURCE_TYPES


def convert_command(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help=f"One of {', '.join(RECIPES)}.")],
    *,
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help=f"One of {', '.join(SOURCE_TYPES)}.")],
    prebatch: Annotated[int, typer.Option("--prebatch", min=1, help="Rows per TFRecord; more are faster to read.")] = 1,
    work_dir: Annotated[Path, typer.Option("--work-dir", help="Prepared data, models and MLflow's store.")] = WORK_DIR,
) -> None:
    """Prepared data to TFRecord, or back to Parquet, in place; then train and export again.

    **Examples**

    rankline convert movielens --to tfrecord --prebatch 1024

    rankline convert movielens --to parquet
    """
    require("tensorflow", feature="convert", extra="cpu")
    prepared = Workspace(recipe=recipe_named(recipe).name, root=work_dir).prepared
    with Stages(["convert"]) as stages, stages.stage("convert") as progress:
        from training.convert import convert

        convert(prepared, prepared, to, prebatch=prebatch, progress=progress)
    CONSOLE.print(f"prepared data: {prepared}", soft_wrap=True)
