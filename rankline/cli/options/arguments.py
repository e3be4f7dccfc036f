"""Arguments and options that several commands share."""

from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated, Any

import typer

from rankline.cli.options.completion import recipes
from rankline.terminal.console import CONSOLE, is_stdout
from rankline.workflows.core.errors import ConfigError

_RECIPE = typer.Argument(
    metavar="RECIPE",
    help="Name of a recipe (rankline --help lists them), or the file rankline.yaml.",
    autocompletion=recipes,
)
RecipeName = Annotated[str, _RECIPE]
OptionalRecipeName = Annotated[str | None, _RECIPE]
WorkDir = Annotated[Path, typer.Option(help="Directory for prepared data, models and the MLflow store.")]
Repository = Annotated[Path, typer.Option(help="Directory of exported ensembles.")]
Seeds = Annotated[int, typer.Option(min=1, help="Number of models to train, with consecutive seeds.")]
BatchSizes = Annotated[str, typer.Option(help="Rows per request, separated by commas.")]

BATCH_SIZES = "1,4,16,64,256,1024,4096,16384"


def _url(consequence: str) -> Any:
    return typer.Option(metavar="HOST:PORT", help=f"gRPC address of a running server; {consequence}.")


Url = Annotated[str | None, _url("if omitted, the model runs in this process")]
BenchUrl = Annotated[str | None, _url("if omitted, a server is started for this command")]
ServedUrl = Annotated[str | None, _url("if passed, the version loaded by the server is also shown")]
TlsRoot = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="With --url, connect over TLS and verify the server with these root certificates (PEM)."
    ),
]
FormatName = Annotated[
    str | None, typer.Option("--format", help="csv, parquet or jsonl; by default, inferred from the file extension.")
]


def _json_file(context: typer.Context, path: Path | None) -> Path | None:
    """Send the command's human-readable output to standard error if the JSON goes to standard output."""
    if is_stdout(path):
        CONSOLE.stderr = True
        context.call_on_close(lambda: setattr(CONSOLE, "stderr", False))
    return path


JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json", metavar="FILE", callback=_json_file, help='Also write the result as JSON; "-" is standard output.'
    ),
]


def batch_sizes_of(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(
            f"--batch-sizes is {text!r}, expected integers separated by commas, such as 1,64,4096"
        ) from None


def check_writable(path: Path | None, suffix: str = "json") -> None:
    """Check that a path can be written, before the work starts.

    The directory is not created here, so a refused command leaves nothing behind.
    """
    if path is None or is_stdout(path):
        return
    if path.is_dir():
        raise ConfigError(f"{path} is a directory, expected a file such as {path / f'result.{suffix}'}")
    if path.exists() and not path.is_file():  # a device or a pipe
        return
    path = path.resolve() if path.is_symlink() else path
    there = next(parent for parent in path.absolute().parents if parent.exists())
    if not there.is_dir():
        raise ConfigError(f"{there} is a file, expected a directory for {path.name}. Move or remove the file.")
    with NamedTemporaryFile(dir=there, prefix=f".{path.name}."):
        pass
