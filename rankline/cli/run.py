from contextlib import ExitStack

from rankline.api.data_source import SourceConfig
from rankline.cli.bench import save_report
from rankline.cli.options.arguments import (
    BATCH_SIZES,
    BatchSizes,
    JsonFile,
    RecipeName,
    Repository,
    Seeds,
    WorkDir,
    batch_sizes_of,
    check_writable,
)
from rankline.cli.options.recipe_options import with_recipe_options
from rankline.recipes import recipe_named
from rankline.recipes.overrides import Overrides
from rankline.recipes.workspace import REPOSITORY, WORK_DIR, Workspace
from rankline.serving.export.config import ExportConfig
from rankline.terminal.console import CONSOLE, Stages, note


@with_recipe_options(
    SourceConfig, ExportConfig, of_recipe=lambda recipe: (recipe.prepare, recipe.encoding, recipe.train)
)
def run_command(
    recipe: RecipeName,
    *,
    work_dir: WorkDir = WORK_DIR,
    repository: Repository = REPOSITORY,
    seeds: Seeds = 1,
    batch_sizes: BatchSizes = BATCH_SIZES,
    json_file: JsonFile = None,
    overrides: Overrides,
) -> None:
    """Run everything: prepare, train, export, serve, bench, and a summary.

    `rankline run RECIPE --help` also shows the options of the recipe.

    **Examples**

    rankline run movielens

    rankline run movielens --data-dir ml-25m --batch-size 32768

    rankline run movielens --download ml-latest-small --seeds 5 --json result.json
    """
    from rankline.api import pipeline
    from rankline.terminal.summary import next_commands, print_summary

    chosen = recipe_named(recipe).with_overrides(overrides)
    source = overrides.apply(SourceConfig())
    sizes = batch_sizes_of(batch_sizes)
    check_writable(json_file)
    workspace = Workspace(recipe=chosen.name, root=work_dir, repository=repository)
    if chosen.model_choices:
        note(chosen.model_choices)
    with Stages(pipeline.STAGES) as stages:
        result = pipeline.run(chosen, source, workspace, stages, num_seeds=seeds, batch_sizes=sizes)
    report = result.report_of(next_commands(result))
    with ExitStack() as at_end:  # a full disk must not lose the summary, nor a closed pipe the report
        at_end.callback(save_report, report, workspace, of_run=True)
        at_end.callback(print_summary, result, report, CONSOLE)
        if json_file:
            pipeline.write_json(result.to_dict(), json_file)
