"""The verb `export`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from rankline.cli.arguments import Repository, WorkDir
from rankline.cli.completion import recipes
from rankline.cli.reports import say_active
from rankline.display import CONSOLE, say
from rankline.options import Overrides, with_options
from rankline.promotion import Bounds
from rankline.recipes import available
from rankline.workspace import REPOSITORY, WORK_DIR
from serving.export_config import ExportConfig
from workflows.errors import ConfigError


@with_options(ExportConfig)
def export_command(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECIPE]", help=f"{', '.join(available().recipes)}; none with --model.", autocompletion=recipes
        ),
    ] = None,
    *,
    work_dir: WorkDir = WORK_DIR,
    repository: Repository = REPOSITORY,
    model: Annotated[
        list[Path] | None,
        typer.Option(
            "--model",
            metavar="PATH",
            help="A model that was trained elsewhere: SavedModel, .keras, TorchScript, ONNX, LightGBM or XGBoost file; "
            "several of TensorFlow become one.",
        ),
    ] = None,
    workflow: Annotated[
        Path | None,
        typer.Option(
            "--workflow",
            metavar="DIR",
            help="With --model: the NVTabular workflow before it, as Workflow.save wrote it; without one the model "
            "takes raw columns.",
        ),
    ] = None,
    sample: Annotated[
        Path | None,
        typer.Option(
            "--sample",
            metavar="FILE",
            help="With --model: raw rows (Parquet, CSV or JSON lines) to compare on, and to measure with.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="With --model: what to call the ensemble.", show_default=False)
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option(
            "--rename", metavar="COLUMN=INPUT", help="With --model: what the model calls a column of the workflow."
        ),
    ] = None,
    missing: Annotated[
        float | None,
        typer.Option(
            "--missing",
            metavar="VALUE",
            help="XGBoost only: the value that training took as missing, such as -999 for XGBClassifier(missing=-999).",
            show_default=False,
        ),
    ] = None,
    promote: Annotated[
        bool, typer.Option("--promote/--no-promote", help="Serve the new version. The first version is always served.")
    ] = True,
    if_better: Annotated[
        str | None,
        typer.Option(
            "--if-better",
            metavar="METRIC",
            help="Let it answer only if it is surely better in auc, logloss or rmse than the version that does: both "
            "score the validation rows through one server.",
        ),
    ] = None,
    by: Annotated[
        float | None, typer.Option("--by", help="With --if-better: the minimum improvement.", show_default=False)
    ] = None,
    p99: Annotated[
        str | None,
        typer.Option(
            "--p99", metavar="TIME", help="With --if-better: and 99 % of requests with one row take no longer."
        ),
    ] = None,
    overrides: Overrides,
) -> None:
    """Workflow and model to a new version of one Triton ensemble, if both agree with what is served.

    **Examples**

    rankline export movielens --repository model_repository

    rankline export movielens --engine onnx --backend python

    rankline export movielens --if-better auc --by 0.001 --p99 10ms

    rankline export --workflow saved/workflow --model saved/model --sample rows.parquet --name shop

    rankline export --model churn.onnx --sample rows.csv --name churn --rename age=Age
    """
    from rankline import api
    from rankline.summary import print_engines

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
    say_active(ensemble, f"version {ensemble.version} does not meet --if-better" if promote else "--no-promote")
    if bounds and not ensemble.is_active:
        raise typer.Exit(1)
    if model:
        _show_next(str(name), str(sample), work_dir, repository)


def _show_next(name: str, sample: str, work_dir: Path, repository: Path) -> None:
    places = "".join(
        f" {option} {value}"
        for option, value, usual in (("--work-dir", work_dir, WORK_DIR), ("--repository", repository, REPOSITORY))
        if value != usual
    )
    in_repository = f" --repository {repository}" if repository != REPOSITORY else ""
    say(f"score rows   rankline predict {name} --input {sample}{in_repository}")
    say(f"serve them   rankline serve {name}{in_repository}")
    say(f"measure      rankline bench {name}{places}")


def _renames(pairs: Sequence[str]) -> dict[str, str]:
    renames: dict[str, str] = {}
    for pair in pairs:
        column, equals, target = pair.partition("=")
        if not (column and equals and target) or column in renames:
            raise ConfigError(f"--rename is {pair!r}, expected COLUMN=INPUT, each column once.")
        renames[column] = target
    return renames
