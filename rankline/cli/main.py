"""The Typer application: process-wide setup and the list of commands."""

import atexit
import os
import signal
import sys
from importlib.metadata import version
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

from rankline.cli.bench import bench_command
from rankline.cli.data import convert_command, import_command, init_command, prepare_command
from rankline.cli.doctor import doctor_command
from rankline.cli.export import export_command, image_command
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
from rankline.terminal.console import ERRORS, format_error, say
from rankline.terminal.silence import quiet_libraries, show_all
from rankline.workflows.core.errors import RanklineError


class _Group(TyperGroup):
    """A command group that prints user errors in one or two lines; --debug shows the traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (RanklineError, OSError) as error:
            if ctx.params.get("debug") or isinstance(error, BrokenPipeError):
                raise
            ERRORS.print(f"[bold red]Error:[/] {escape(format_error(error))}", soft_wrap=True)
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=_Group,
    help="From raw interactions to served scores, measured. Start with: **rankline run movielens**",
    epilog="**Recipes**\n\n" + "\n\n".join(f"{name}: {recipe.summary}" for name, recipe in available().recipes.items()),
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
        ERRORS.print(f"[bold yellow]Warning:[/] {escape(problem)}", soft_wrap=True)


app.command("init")(init_command)
app.command("run", cls=RecipeCommand)(run_command)
app.command("prepare", cls=RecipeCommand)(prepare_command)
app.command("convert")(convert_command)
app.command("import")(import_command)
app.command("sim", context_settings=CONTEXT)(sim_command)
app.command("train", cls=RecipeCommand)(train_command)
app.command("tune", cls=RecipeCommand)(tune_command)
app.command("export")(export_command)
app.command("serve")(serve_command)
app.command("status")(status_command)
app.command("versions")(versions_command)
app.command("register")(register_command)
app.command("promote")(promote_command)
app.command("rollback")(rollback_command)
app.command("image")(image_command)
app.command("predict", context_settings={"ignore_unknown_options": True})(predict_command)
app.command("recommend")(recommend_command)
app.command("bench")(bench_command)
app.command("runs")(runs_command)
app.command("compare")(compare_command)
app.command("sync")(sync_command)
app.command("ui")(ui_command)
app.command("doctor")(doctor_command)


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
        ERRORS.print("\nstopping; finished artifacts are kept.", emoji=False, markup=False)
        raise KeyboardInterrupt


def _is_leaving(handled: BaseException | None) -> bool:
    """Whether the exception being handled is a KeyboardInterrupt or was raised while handling one."""
    while handled is not None and not isinstance(handled, KeyboardInterrupt):
        handled = handled.__context__
    return handled is not None
