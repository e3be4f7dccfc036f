"""The Typer application: process-wide setup and the list of commands."""

import atexit
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Annotated, Any

import typer
from rich.markup import escape

from rankline.cli.bench import bench_command
from rankline.cli.data import convert_command, import_command, init_command, prepare_command
from rankline.cli.doctor import doctor_command
from rankline.cli.export import export_command, image_command
from rankline.cli.options.help import HelpCommand, HelpGroup
from rankline.cli.options.recipe_options import RecipeCommand
from rankline.cli.predict import predict_command, recommend_command
from rankline.cli.run import run_command
from rankline.cli.runs import compare_command, runs_command, sync_command, ui_command
from rankline.cli.serve import serve_command
from rankline.cli.train import train_command
from rankline.cli.tune import tune_command
from rankline.cli.versions import (
    promote_command,
    register_command,
    rollback_command,
    status_command,
    versions_command,
)
from rankline.compat.sim.command import CONTEXT, sim_command
from rankline.launch.worker import reject_multiprocess
from rankline.recipes import available
from rankline.terminal.console import ERRORS, format_error, say, show
from rankline.terminal.silence import quiet_libraries, show_all
from rankline.workflows.core.ctrl_c import text_of_ctrl_c
from rankline.workflows.core.errors import RanklineError


class _Group(HelpGroup):
    """A command group that prints user errors in one or two lines; --debug shows the traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (RanklineError, OSError) as error:
            if ctx.params.get("debug") or isinstance(error, BrokenPipeError):
                raise
            show(ERRORS, f"[bold red]Error:[/] {escape(format_error(error))}")
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=_Group,
    help="From raw rows to served scores, measured. Start with: rankline run movielens",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(is_asked_for: bool) -> None:
    if is_asked_for:
        say(f"rankline {version('rankline')}")
        raise typer.Exit


_FOR_SEVERAL = ("train", "doctor")
"""Commands that may be started as several processes."""


@app.callback()
def options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and log messages from libraries.")] = False,
    show_version: Annotated[  # noqa: ARG001  (its callback does the work)
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # telemetry blocks when there is no network
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # PyTorch's threads must not spin: the loader needs the cores
    show_all(debug)
    quiet_libraries()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # run every `finally`, so that servers stop
    signal.signal(signal.SIGINT, _interrupt)
    verb = context.invoked_subcommand
    if verb is not None and verb not in _FOR_SEVERAL:
        reject_multiprocess(verb, os.environ)
    for problem in available().problems:
        show(ERRORS, f"[bold yellow]Warning:[/] {escape(problem)}")


_COMMANDS: Mapping[str, Sequence[tuple[str, Callable[..., None], str]]] = {
    "Start": [
        ("init", init_command, "Inspect your own data and write a recipe for it"),
        ("run", run_command, "Prepare, train, export, serve and measure"),
        ("doctor", doctor_command, "Check what works on this machine"),
    ],
    "Steps": [
        ("prepare", prepare_command, "Encode raw rows with an NVTabular workflow"),
        ("train", train_command, "Train a model and track it in MLflow"),
        ("tune", tune_command, "Search for better training or serving settings"),
        ("export", export_command, "Export workflow and model as a Triton ensemble"),
        ("serve", serve_command, "Run Triton on this machine until Ctrl-C"),
        ("bench", bench_command, "Measure latency and throughput over gRPC"),
    ],
    "Use": [
        ("predict", predict_command, "Score one row or a file"),
        ("recommend", recommend_command, "Show the best items for a user"),
    ],
    "Versions": [
        ("status", status_command, "Show the active versions"),
        ("versions", versions_command, "List the exported versions of an ensemble"),
        ("promote", promote_command, "Activate a version"),
        ("rollback", rollback_command, "Return to an earlier version"),
        ("register", register_command, "Register a version in MLflow's model registry"),
        ("image", image_command, "Build a container image of the active version"),
    ],
    "Look": [
        ("runs", runs_command, "List runs with their quality and speed"),
        ("compare", compare_command, "Compare runs, with confidence intervals"),
        ("ui", ui_command, "Open MLflow with charts of the runs"),
        ("sync", sync_command, "Deliver what an unreachable MLflow server missed"),
    ],
    "Data": [
        ("import", import_command, "Use data that is already encoded"),
        ("convert", convert_command, "Convert prepared data to TFRecord or Parquet"),
        ("sim", sim_command, "Run NVIDIA's SIM with its original parameters"),
    ],
}
"""Purpose → its commands: name, function, and what it does in a few words."""
_SETTINGS: Mapping[str, Any] = {"sim": CONTEXT, "predict": {"ignore_unknown_options": True}}
_OF_RECIPE = ("run", "prepare", "train", "tune")
HelpGroup.purposes = {
    purpose: [(name, words) for name, _, words in commands] for purpose, commands in _COMMANDS.items()
}
HelpGroup.recipes = {name: recipe.summary for name, recipe in available().recipes.items()}
for _name, _function, _words in (command for commands in _COMMANDS.values() for command in commands):
    _kind = RecipeCommand if _name in _OF_RECIPE else HelpCommand
    app.command(_name, cls=_kind, short_help=_words, context_settings=_SETTINGS.get(_name))(_function)


def main() -> None:
    """Run the `rankline` command.

    At the end, run the registered exit functions and leave without shutting down the interpreter. A regular shutdown
    takes two seconds, and an Arrow thread that returns a buffer during it aborts the process (apache/arrow#34314).
    """
    try:
        app()
    except SystemExit as leaving:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # let the exit functions finish
        if not isinstance(leaving.code, int | None):
            raise  # the interpreter prints the message
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(leaving.code or 0)


def _interrupt(*_: object) -> None:
    """Raise KeyboardInterrupt unless one is already being handled: a second Ctrl-C must not interrupt the cleanup.

    Python drops exceptions in finalizers and C callbacks, so the next Ctrl-C must raise again. Nothing may be imported
    here, not even by Rich for emoji or non-ASCII text: an interrupted import raises KeyError (python/cpython#91351).
    """
    if not _is_leaving(sys.exc_info()[1]):
        ERRORS.print(f"\n{text_of_ctrl_c()}", emoji=False, markup=False, soft_wrap=True)
        raise KeyboardInterrupt


def _is_leaving(handled: BaseException | None) -> bool:
    """Whether the exception being handled is a KeyboardInterrupt or was raised while handling one."""
    while handled is not None and not isinstance(handled, KeyboardInterrupt):
        handled = handled.__context__
    return handled is not None
