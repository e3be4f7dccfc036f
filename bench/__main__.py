"""Runs a benchmark: `python -m bench NAME [--recipe RECIPE] [--json FILE]`. Prints a table, and writes JSON."""

import inspect
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from bench.harness.report import Report, figures_file, figures_of
from bench.harness.targets import asked
from rankline.api.pipeline import write_json
from rankline.cli.options.arguments import check_writable
from rankline.launch.horovod_check import problem as horovod_problem
from rankline.terminal.console import CONSOLE, ERRORS, warn_busy
from rankline.terminal.silence import quiet_libraries
from rankline.workflows.core.errors import RanklineError
from rankline.workflows.core.machine import busyness

BENCHMARKS = {
    "loader": "our loader against merlin-dataloader, TFRecord, and Arrow's own decoding; supports --device",
    "loaders": "our loader against DataLoader, datasets, Streaming, Ray Data, tf.data and arrays in memory",
    "prepare": "preparing Criteo rows, by a recipe file too, against the same in Polars and DuckDB, and memory use",
    "training": "training with our loader, without a loader, and in the seed document's path; supports --recipe",
    "sequences": "SIM against DIEN and DIN, and the cost of ranking candidates",
    "serving": "our ensemble against merlin-systems' export, on one server; supports --recipe, also a file",
    "foreign": "models saved by notebooks and exported in one call, against merlin-systems' export of the same models",
    "promotion": "promote, roll back and follow an alias under load: duration of each, and failed requests",
    "tracking": "listing 1,000 runs",
    "tune": "the configuration found by `rankline tune --slo` against an exhaustive search, and how long both take",
    "tables": "the model of init and run for a table, against LightGBM, CatBoost, RealMLP-TD, AutoGluon; needs --data",
    "quality": "model quality and its top-ranked items, against ALS and item-kNN; supports --recipe and --data",
    "etl": "preparing Criteo rows with two Dask workers against one",
    "distributed": "two workers: training speed and traffic",
    "soak": "30 minutes at 70 % of the peak load: errors and memory",
    "scaling": "latency against request rate on one core and on all of them, and the cost of a million scores",
    "stack": "the server's overhead in a container, and image sizes; supports --recipe, requires a container engine",
    "alternatives": "our ensemble against FastAPI, ASGI, gRPC, LitServe, BentoML, Ray Serve, MLflow and plain Triton",
    "client": "the client's overhead, the load it can offer, and whether identical runs agree",
    "crosscheck": "latency as measured by our client, NVIDIA's perf_analyzer and MLPerf's LoadGen",
    "wide": "exporting tables of 100 to 900 columns, and scoring one row",
    "vocabulary": "scoring one row with vocabularies of 10⁴ to 10⁷ keys",
}

_NEEDS = {"distributed": horovod_problem}
"""Mapping from benchmark to a check for missing requirements, made before anything heavy is imported."""


def _module_of(name: str) -> str:
    """Return the module of a benchmark, which may be in any folder."""
    (path,) = Path(__file__).parent.glob(f"*/{name}.py")
    return f"bench.{path.parent.name}.{name}"


def main(
    name: Annotated[str, typer.Argument(help="; ".join(f"{name}: {what}" for name, what in BENCHMARKS.items()))],
    repeats: Annotated[int, typer.Option(min=1, help="Number of turns per side; figures are medians over them.")] = 5,
    recipe: Annotated[str | None, typer.Option(help="Recipe to train or serve; movielens by default.")] = None,
    device: Annotated[
        str | None,
        typer.Option(help="Target device of the batches, cuda or cpu: compares with a plain PyTorch DataLoader."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIRECTORY", help="Directory of real data for tables and quality, which is not part of the project."
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the figures to this file.")
    ] = None,
) -> None:
    """Run one benchmark."""
    if name not in BENCHMARKS:
        raise typer.BadParameter(f"unknown benchmark {name!r}. Available: {', '.join(BENCHMARKS)}.")
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
        raise typer.BadParameter(f"{name} does not support --{option}, got {chosen[option]}. Remove it.")
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
