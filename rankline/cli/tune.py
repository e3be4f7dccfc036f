from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankline.cli.export import say_active
from rankline.cli.options.arguments import JsonFile, RecipeName, Repository, WorkDir, check_writable
from rankline.cli.options.recipe_options import with_recipe_options
from rankline.recipes import Recipe, recipe_named
from rankline.recipes.overrides import Overrides, names_of
from rankline.recipes.workspace import REPOSITORY, WORK_DIR, Workspace
from rankline.terminal.console import CONSOLE, Stages, say, show
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.formatting import quality_figure
from rankline.workflows.core.optional_packages import require

if TYPE_CHECKING:
    from rankline.training.tracking import TrackingConfig

_NUM_TRIALS = 20
_TIME_LIMIT_S = 900.0


@with_recipe_options(of_recipe=lambda recipe: (recipe.train, recipe.serving))
def tune_command(
    recipe: RecipeName,
    *,
    trials: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"Total number of trials, including those of an interrupted search. [default: {_NUM_TRIALS}]"
        ),
    ] = None,
    only: Annotated[str, typer.Option(metavar="NAME,NAME…", help="Settings to vary. [default: all]")] = "",
    slo: Annotated[
        str | None,
        typer.Option(
            metavar="p99=TIME",
            help="Find the serving configuration with the highest throughput within this latency bound, and export it.",
        ),
    ] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="With --slo: rows per request. [default: 1]")] = None,
    time_limit_s: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="With --slo: time limit of the search. An export, server start or measurement in progress is "
            f"stopped, which takes about 10 s more. [default: {_TIME_LIMIT_S:g}]",
        ),
    ] = None,
    promote: Annotated[bool, typer.Option(help="With --slo: activate the winning export.")] = True,
    work_dir: WorkDir = WORK_DIR,
    repository: Repository = REPOSITORY,
    json_file: JsonFile = None,
    overrides: Overrides,
) -> None:
    """Search for better training settings. Each trial is an MLflow run, evaluated on held-out training rows.

    Run the same command again to continue an interrupted search. Options of the recipe set its starting point.

    With --slo, search instead for the best way to serve the trained model on this machine (engine, fused or separate
    steps, instances, threads, queue delay), each served by Triton. Options that you pass are not varied.

    **Examples**

    rankline tune movielens --trials 30

    rankline tune movielens --only learning_rate,dropout --epochs 6

    rankline tune movielens --slo p99=10ms

    rankline tune movielens --slo p99=5ms --rows 100 --engine onnx --no-promote
    """
    check_writable(json_file)
    from rankline.api.pipeline import write_json
    from rankline.runs.store import check_store, uri_of
    from rankline.serving.loadtest.serving_config import VARIED

    chosen = recipe_named(recipe).with_overrides(overrides)
    workspace = Workspace(recipe=chosen.name, root=work_dir, repository=repository)
    check_store(uri_of(work_dir))
    names = tuple(name.strip().replace("-", "_") for name in only.split(",") if name.strip())
    if slo is None:
        given = {"--rows": rows, "--time-limit-s": time_limit_s, "--no-promote": None if promote else True}
        _refuse("can be used only with --slo", given, overrides, chosen.serving)
        result = _tune_training(chosen, workspace, trials or _NUM_TRIALS, names)
    else:
        _refuse("cannot be combined with --slo", {"--trials": trials}, overrides, chosen.train)
        only_these = names or tuple(name for name in VARIED if name not in overrides.values)
        limit_s = time_limit_s or _TIME_LIMIT_S
        result = _tune_serving(chosen, workspace, slo, rows or 1, only_these, limit_s, promote=promote)
    if json_file:
        write_json(result, json_file)


def _refuse(why: str, given: Mapping[str, object], overrides: Overrides, config: object) -> None:
    of_config = set(overrides.values) & set(names_of(config))
    wrong = [option for option, value in given.items() if value is not None]
    if wrong := [*wrong, *(f"--{name.replace('_', '-')}" for name in sorted(of_config))]:
        raise ConfigError(f"{', '.join(wrong)} {why}.")


def _tune_training(recipe: Recipe, workspace: Workspace, num_trials: int, only: tuple[str, ...]) -> dict[str, Any]:
    require("optuna", feature="rankline tune", extra="tune")
    from rankline.tuning.hyperparameters import tune
    from rankline.workflows.preprocess.prepared_data import PreparedData

    recipe.train.model.framework.require(feature="tuning")
    with Stages(["tune"]) as stages, stages.stage("tune") as progress:
        tuned = tune(
            recipe,
            PreparedData.load(workspace.prepared, recipe.dataset),
            num_trials=num_trials,
            only=only,
            tracking=_tracking(recipe, workspace),
            directory=workspace.tuning,
            progress=progress,
        )
    trials = "1 trial" if tuned.num_trials == 1 else f"{tuned.num_trials} trials, {tuned.num_pruned} of them pruned"
    say(
        f"{tuned.metric} on a holdout of the training rows {quality_figure(tuned.before)} → "
        f"{quality_figure(tuned.after)}, {trials}"
    )
    for name, value in tuned.choices.items():
        say(f"  {name} {value}")
    if tuned.num_trials == 1:
        say("the only trial used the recipe's own settings. Pass --trials 2 or more to compare others")
    elif not tuned.choices:
        say("no trial was better than the recipe's own settings")
    show(CONSOLE, f"[dim]train with them[/]  {tuned.command}", wrap=False)
    return tuned.to_dict()


def _tune_serving(
    recipe: Recipe,
    workspace: Workspace,
    slo: str,
    batch_size: int,
    only: tuple[str, ...],
    time_limit_s: float,
    *,
    promote: bool,
) -> dict[str, Any]:
    from rankline.api import pipeline
    from rankline.tuning.serving import tune_serving
    from rankline.workflows.preprocess.prepared_data import PreparedData
    from rankline.workflows.schema.model_artifact import TrainedModel

    with Stages(["tune", "export"]) as stages:
        with stages.stage("tune") as progress:
            prepared = PreparedData.load(workspace.prepared, recipe.dataset)
            trained = TrainedModel.load(workspace.model)
            tuned = tune_serving(
                recipe,
                prepared,
                trained,
                slo=slo,
                batch_size=batch_size,
                only=only,
                time_limit_s=time_limit_s,
                tracking=_tracking(recipe, workspace),
                directory=workspace.tuning,
                log_path=workspace.log,
                progress=progress,
                repository=workspace.repository,
            )
        ensemble = pipeline.export(
            recipe, tuned.best.config, prepared, workspace, stages, trained=trained, promote=promote
        )
    tuned.print(CONSOLE)
    if tuned.num_left:
        say(f"{tuned.num_left} more configurations were not tried: too slow without a batching delay, or out of time")
    say_active(ensemble)
    show(CONSOLE, f"[dim]the same export[/]  {tuned.command}", wrap=False)
    return {**tuned.to_dict(), "version": ensemble.version, "is_active": ensemble.is_active}


def _tracking(recipe: Recipe, workspace: Workspace) -> "TrackingConfig":
    from rankline.runs.store import server
    from rankline.training.tracking import TrackingConfig

    return TrackingConfig(directory=workspace.root, experiment=recipe.name, server=server())
