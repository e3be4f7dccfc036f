"""Runs a benchmark: `python -m bench NAME [--recipe RECIPE] [--json FILE]`. Prints a table, and writes JSON."""

import inspect
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from bench.harness.report import Report, asked, figures_file, figures_of
from rankline.api.pipeline import write_json
from rankline.cli.options.arguments import check_writable
from rankline.launch.horovod_check import problem as horovod_problem
from rankline.terminal.console import CONSOLE, ERRORS, warn_busy
from rankline.terminal.silence import quiet_libraries
from rankline.workflows.core.errors import RanklineError
from rankline.workflows.core.machine import busyness

BENCHMARKS = {
    "loader": "our loader against merlin-dataloader, TFRecord, and Arrow's own decoding; knows --device",
    "prepare": "preparing Criteo rows against the same steps in plain pandas, and its memory",
    "training": "training with our loader, without any, and in the seed document's path; knows --recipe",
    "sequences": "SIM against DIEN and DIN, and what ranking candidates costs",
    "serving": "our ensemble against merlin-systems' export, on one server; knows --recipe",
    "foreign": "what notebooks saved, exported by one call, against merlin-systems' export of the same",
    "promotion": "promote, roll back and follow an alias under load: how long each takes, and failed requests",
    "tracking": "looking at 1,000 runs",
    "tune": "the way of serving that `rankline tune --slo` finds against an exhaustive search, and how long both take",
    "tables": "data of any shape by a recipe file: preparing, a click log from file to scores, LightGBM; knows --data",
    "quality": "how good a model is, and what it ranks first, against ALS and item-kNN; knows --recipe, --data",
    "etl": "preparing Criteo rows by two Dask workers against one",
    "distributed": "two workers: how fast they train, and what they send",
    "soak": "half an hour at 70 % of the peak: errors and memory",
    "stack": "what a container costs the server, and how large images are; knows --recipe, needs a container engine",
    "alternatives": "our ensemble, merlin-systems' export, FastAPI and MLflow's server, under the same load",
    "client": "what the client costs, how much it offers, and whether identical runs agree",
    "wide": "exporting tables of 100 to 900 columns, and scoring one row of them",
    "vocabulary": "one row served with 10⁴ to 10⁷ keys",
}

_NEEDS = {"distributed": horovod_problem}
"""Mapping from benchmark to a check for missing requirements, made before anything heavy is imported."""


def _module_of(name: str) -> str:
    """Return the module of a benchmark, which may be in any folder."""
    (path,) = Path(__file__).parent.glob(f"*/{name}.py")
    return f"bench.{path.parent.name}.{name}"


def main(
    name: Annotated[str, typer.Argument(help="; ".join(f"{name}: {what}" for name, what in BENCHMARKS.items()))],
    repeats: Annotated[int, typer.Option(min=1, help="Turns of each side; the figures are medians over them.")] = 5,
    recipe: Annotated[str | None, typer.Option(help="What is trained or served; movielens unless given.")] = None,
    device: Annotated[
        str | None, typer.Option(help="Where batches go, cuda or cpu: against a plain PyTorch DataLoader.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIRECTORY", help="Real data for tables and quality, which is not part of the project."),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures here.")] = None,
) -> None:
    """Run one benchmark."""
    if name not in BENCHMARKS:
        raise typer.BadParameter(f"no benchmark {name!r}. Available: {', '.join(BENCHMARKS)}.")
    if lacking := _NEEDS[name]() if name in _NEEDS else None:
        ERRORS.print(f"Error: bench {name} cannot run here: {lacking}", soft_wrap=True, markup=False)
        raise typer.Exit(1)
    quiet_libraries()
    run = import_module(_module_of(name)).run
    parameters = inspect.signature(run).parameters
    given = {"recipe": recipe, "device": device, "data": data}
    chosen = {option: value for option, value in given.items() if value is not None}
    if unknown := chosen.keys() - parameters.keys():
        option = min(unknown)
        raise typer.BadParameter(f"{name} knows no {option}, got --{option} {chosen[option]}. Leave it out.")
    figures = figures_of(name, recipe, parameters["recipe"].default if "recipe" in parameters else None)
    if busy := busyness():
        warn_busy(busy)
    try:
        check_writable(json_file)
        last = Report.load(path) if (path := figures_file(figures)).exists() else None
        report = run(repeats, **chosen)
    except RanklineError as error:
        ERRORS.print(f"Error: {error}", soft_wrap=True, markup=False)
        raise typer.Exit(1) from None
    if busy:
        report = replace(report, environment={**report.environment, "busy": busy})
    if json_file:
        write_json(report.to_dict(), json_file)
    report.print(CONSOLE, asked(figures), last)


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command()(main)
    app()
