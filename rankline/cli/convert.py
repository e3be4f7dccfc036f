"""The verb `convert`: the prepared data of a recipe in another file format."""

from typing import Annotated

import typer

from rankline.cli.arguments import RecipeName, WorkDir
from rankline.display import Stages, say
from rankline.workspace import WORK_DIR, workspace_of
from workflows.extras import require
from workflows.feature_spec import SOURCE_TYPES


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
    """Prepared data to TFRecord, or back to Parquet, in place; then train and export again.

    **Examples**

    rankline convert movielens --to tfrecord --prebatch 1024

    rankline convert movielens --to parquet
    """
    require("tensorflow", feature="convert", extra="cpu")
    prepared = workspace_of(recipe, work_dir).prepared
    with Stages(["convert"]) as stages, stages.stage("convert") as progress:
        from training.convert import convert

        convert(prepared, prepared, to, prebatch=prebatch, prebatch_valid=prebatch_valid, progress=progress)
    say(f"prepared data: {prepared}")
