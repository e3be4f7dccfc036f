"""The verb `tune`."""

from typing import Annotated

import typer

from rankline.cli.arguments import JsonFile, RecipeName, WorkDir
from rankline.cli.checks import check_writable
from rankline.cli.recipe_options import with_recipe_options
from rankline.display import CONSOLE, Stages, say
from rankline.options import Overrides
from rankline.recipes import recipe_named
from rankline.workspace import WORK_DIR, workspace_of
from workflows.extras import require


@with_recipe_options(of_recipe=lambda recipe: (recipe.train,))
def tune_command(
    recipe: RecipeName,
    *,
    trials: Annotated[
        int, typer.Option("--trials", min=1, help="Trials in all; those of a search that was ended count.")
    ] = 20,
    only: Annotated[
        str, typer.Option("--only", metavar="NAME,NAME…", help="Choices to vary; without it all that can be.")
    ] = "",
    work_dir: WorkDir = WORK_DIR,
    json_file: JsonFile = None,
    overrides: Overrides,
) -> None:
    """Search for better choices on prepared data, each trial a run in MLflow, judged by rows of the training part.

    The same command goes on with a search that was ended. Options of the recipe say where it starts from.

    **Examples**

    rankline tune movielens --trials 30

    rankline tune movielens --only learning_rate,dropout --epochs 6
    """
    require("optuna", feature="rankline tune", extra="tune")
    check_writable(json_file)
    from rankline.pipeline import write_json
    from rankline.tracking.store import server
    from rankline.tracking.tuning import tune, write_recipe
    from training.tracking import TrackingConfig
    from workflows.prepared import PreparedData

    workspace = workspace_of(recipe, work_dir)
    chosen = recipe_named(recipe).with_overrides(overrides)
    require(chosen.train.model.framework.module, feature="tuning", extra=chosen.train.model.framework.extra)
    with Stages(["tune"]) as stages, stages.stage("tune") as progress:
        tuned = tune(
            chosen,
            PreparedData.load(workspace.prepared),
            num_trials=trials,
            only=tuple(name.strip().replace("-", "_") for name in only.split(",") if name.strip()),
            tracking=TrackingConfig(directory=workspace.root, experiment=chosen.name, server=server()),
            directory=workspace.tuning,
            progress=progress,
        )
    if json_file:
        write_json(tuned.to_dict(), json_file)
    say(
        f"{tuned.metric} on rows of the training part {tuned.before:.4f} → {tuned.after:.4f}, "
        f"{tuned.num_trials} trials, {tuned.num_pruned} of them ended early"
    )
    for name, value in tuned.choices.items():
        say(f"  {name} {value}")
    if not tuned.choices:
        say("no trial was better than the recipe's own choices")
    elif chosen.file:
        say(f"recipe   {write_recipe(chosen, tuned)}")
    CONSOLE.print(f"[dim]train with them[/]  {tuned.command}", soft_wrap=True)
