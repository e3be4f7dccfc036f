"""Arguments and options that several commands share."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from rankline.cli.options.completion import recipes
from rankline.recipes import available
from rankline.terminal.console import CONSOLE, STDOUT

_RECIPE = typer.Argument(
    metavar="RECIPE",
    help=f"{', '.join(available().recipes)} (see rankline --help), or rankline.yaml.",
    autocompletion=recipes,
)
RecipeName = Annotated[str, _RECIPE]
OptionalRecipeName = Annotated[str | None, _RECIPE]
WorkDir = Annotated[Path, typer.Option("--work-dir", help="Prepared data, models and MLflow's store.")]
Repository = Annotated[Path, typer.Option("--repository", help="Where ensembles are exported to.")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="Train this many models, with consecutive seeds.")]
BatchSizes = Annotated[str, typer.Option("--batch-sizes", help="Rows per request, separated by commas.")]

BATCH_SIZES = "1,4,16,64,256,1024,4096,16384"
Url = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="HOST:PORT", help="gRPC of a running server; without it the model runs in this process."
    ),
]
TlsRoot = Annotated[
    Path | None,
    typer.Option(
        "--tls-root",
        metavar="FILE",
        help="With --url, connect over TLS and verify the server with these root certificates (PEM).",
    ),
]
BenchUrl = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="HOST:PORT", help="gRPC of a running server; without it one is started for the call."
    ),
]
ServedUrl = Annotated[
    str | None,
    typer.Option("--url", metavar="HOST:PORT", help="gRPC of a running server: also say which version it has loaded."),
]


def _json_file(path: Path | None) -> Path | None:
    """If JSON goes to standard output, send text for people to standard error."""
    if path == STDOUT:
        CONSOLE.file = sys.stderr
    return path


JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json", metavar="FILE", callback=_json_file, help='Also write the result as JSON; "-" is standard output.'
    ),
]
