from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankline.cli.options.arguments import RecipeName, Repository, WorkDir
from rankline.cli.options.completion import recipes
from rankline.recipes import available
from rankline.recipes.overrides import Overrides, with_options
from rankline.recipes.workspace import REPOSITORY, WORK_DIR, exported_workspace
from rankline.registry.promotion_gate import Bounds
from rankline.serving.export.config import ExportConfig
from rankline.terminal.commands import command
from rankline.terminal.console import CONSOLE, say
from rankline.workflows.core.errors import ConfigError

if TYPE_CHECKING:
    from rankline.serving.repository.ensemble import ExportedEnsemble


@with_options(ExportConfig)
def export_command(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECIPE]", help=f"{', '.join(available().recipes)}; omit it with --model.", autocompletion=recipes
        ),
    ] = None,
    *,
    work_dir: WorkDir = WORK_DIR,
    repository: Repository = REPOSITORY,
    model: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH",
            help="Model trained elsewhere: SavedModel, .keras, TorchScript, ONNX, LightGBM or XGBoost file; repeat "
            "to combine several TensorFlow models.",
        ),
    ] = None,
    workflow: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="With --model: the NVTabular workflow to run before the model, as saved by Workflow.save; if omitted, "
            "the model receives the raw columns.",
        ),
    ] = None,
    sample: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --model: raw rows (Parquet, CSV or JSON Lines) for the parity check and for measurements.",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="With --model: name of the ensemble.")] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=INPUT", help="With --model: map a workflow column to the corresponding model input."
        ),
    ] = None,
    missing: Annotated[
        float | None,
        typer.Option(
            metavar="VALUE",
            help="XGBoost only: the value treated as missing in training, such as -999 for "
            "XGBClassifier(missing=-999).",
        ),
    ] = None,
    promote: Annotated[bool, typer.Option(help="Activate the new version. The first version is always active.")] = True,
    if_better: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC",
            help="Activate the new version only if it is significantly better than the active version in auc, logloss "
            "or rmse; both versions score the validation rows on the same server.",
        ),
    ] = None,
    by: Annotated[float | None, typer.Option(help="With --if-better: the minimum improvement.")] = None,
    p99: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="With --if-better: also require a p99 latency of at most TIME for single-row requests."
        ),
    ] = None,
    overrides: Overrides,
) -> None:
    """Export the workflow and the model as a new version of a Triton ensemble, after a parity check.

    **Examples**

    rankline export movielens --repository model_repository

    rankline export movielens --engine onnx --backend python

    rankline export movielens --if-better auc --by 0.001 --p99 10ms

    rankline export --workflow saved/workflow --model saved/model --sample rows.parquet --name shop

    rankline export --model churn.onnx --sample rows.csv --name churn --rename age=Age
    """
    from rankline.api import verbs as api
    from rankline.terminal.summary import print_engines

    bounds = Bounds.parse(if_better, by, p99)
    ensemble = api.export(
        recipe,
        model=model or None,
        sample=sample,
        name=name,
        workflow=workflow,
        rename=_renames(rename) if rename else None,
        missing=missing,
        work_dir=work_dir,
        repository=repository,
        promote=promote,
        bounds=bounds,
        **overrides.values,
    )
    print_engines(ensemble, CONSOLE)
    not_better = f"version {ensemble.version} does not meet --if-better"
    say_active(ensemble, "--no-promote" if not promote else not_better if bounds else "another export activated it")
    if bounds and not ensemble.is_active:
        raise typer.Exit(1)
    if model and ensemble.is_active:  # the commands below use the active version
        _show_next(str(name), str(sample), work_dir, repository)


def _show_next(name: str, sample: str, work_dir: Path, repository: Path) -> None:
    files = ["--input", sample, "--output", f"scored{Path(sample).suffix}"]
    say(f"score rows   {command('predict', name, *files, repository=repository)}")
    say(f"serve them   {command('serve', name, repository=repository)}")
    say(f"measure      {command('bench', name, work_dir=work_dir, repository=repository)}")


def _renames(pairs: Sequence[str]) -> dict[str, str]:
    renames: dict[str, str] = {}
    for pair in pairs:
        column, equals, target = pair.partition("=")
        if not (column and equals and target) or column in renames:
            raise ConfigError(f"--rename is {pair!r}, expected COLUMN=INPUT, with no column repeated.")
        renames[column] = target
    return renames


def image_command(
    recipe: RecipeName = "movielens",
    *,
    tag: Annotated[str | None, typer.Option(help="Name of the image. [default: rankline-RECIPE:VERSION]")] = None,
    repository: Repository = REPOSITORY,
) -> None:
    """Build a self-contained container image that serves the active version.

    **Examples**

    rankline image movielens

    rankline image movielens --tag registry.example.com/movielens:7
    """
    from rankline.serving.export.docker_image import build_image
    from rankline.serving.repository.ensemble import ExportedEnsemble

    ensemble = ExportedEnsemble.load(exported_workspace(recipe, repository=repository).ensemble)
    image = build_image(ensemble, tag)
    say(f"{image.tag}: version {ensemble.version} of {ensemble.name}, {image.num_bytes / 1e6:,.0f} MB")
    say(f"  docker run --rm --read-only --publish 127.0.0.1:8001:8001 {image.tag}")


def say_active(ensemble: "ExportedEnsemble", why_not: str = "--no-promote") -> None:
    from rankline.serving.repository.ensemble import active_version

    active = active_version(ensemble.path, ensemble.name)
    if active == ensemble.version:
        say(f"{ensemble.path}: version {active} is active")
    else:
        say(
            f"{ensemble.path}: version {active} stays active: {why_not}. To activate the new one: rankline promote "
            f"{ensemble.name} --to {ensemble.version}"
        )
