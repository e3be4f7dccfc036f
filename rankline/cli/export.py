"""The verb `export`."""

from typing import Annotated

import typer

from rankline.cli.arguments import RecipeName, Repository, WorkDir
from rankline.display import CONSOLE, Stages
from rankline.options import Overrides, with_options
from rankline.recipes import recipe_named
from rankline.workspace import REPOSITORY, WORK_DIR, workspace_of
from serving.export_config import ExportConfig


@with_options(ExportConfig)
def export_command(
    recipe: RecipeName,
    *,
    work_dir: WorkDir = WORK_DIR,
    repository: Repository = REPOSITORY,
    compare_engines: Annotated[
        bool, typer.Option("--compare-engines", help="Time all engines that can serve the model; takes seconds.")
    ] = False,
    overrides: Overrides,
) -> None:
    """Workflow and model to a new version of one Triton ensemble, if both agree with what is served.

    **Examples**

    rankline export movielens --repository model_repository

    rankline export movielens --engine onnx --fused

    rankline export movielens --compare-engines
    """
    from rankline import pipeline
    from rankline.summary import print_engines
    from workflows.prepared import PreparedData

    workspace = workspace_of(recipe, work_dir, repository)
    with Stages(["export"]) as stages:
        prepared = PreparedData.load(workspace.prepared)
        chosen = recipe_named(recipe).with_overrides(overrides)
        ensemble = pipeline.export(chosen, chosen.serving, prepared, workspace, stages, compare_engines=compare_engines)
    print_engines(ensemble, CONSOLE)
