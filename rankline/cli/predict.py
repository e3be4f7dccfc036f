"""The verb `predict`."""

from pathlib import Path
from typing import Annotated

import typer

from rankline.cli.arguments import RecipeOption, Repository, Url
from rankline.cli.checks import check_writable
from rankline.servers import server_for
from rankline.workspace import REPOSITORY, workspace_of
from workflows.errors import ConfigError


def predict_command(
    context: typer.Context,
    recipe: RecipeOption = "movielens",
    *,
    input_file: Annotated[str | None, typer.Option("--input", metavar="FILE", help='Rows; "-" is stdin.')] = None,
    format_name: Annotated[str | None, typer.Option("--format", help="csv, parquet or jsonl.")] = None,
    output: Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Default: stdout.")] = None,
    repository: Repository = REPOSITORY,
    url: Url = None,
) -> None:
    """Score rows: one from options, or many from a CSV, Parquet or JSON lines file.

    **Examples**

    rankline predict --userId 1 --movieId 31

    rankline predict --input rows.csv --output scored.csv

    echo '{"userId": 1, "movieId": 31}' | rankline predict --input -
    """
    from rankline.rows import format_of, from_options, read_rows, select, typed_row, write_scores
    from serving.client import Client

    if (input_file is None) == (not context.args):
        raise ConfigError("give either one row, such as --userId 1 --movieId 31, or --input FILE.")
    given = from_options(context.args)
    found = format_of("-" if input_file is None else input_file, format_name)
    check_writable(output)
    ensemble = workspace_of(recipe, repository=repository).ensemble
    with server_for(ensemble, url) as server, Client(server.url, recipe) as client:
        required = [column for column in client.schema.columns if column.is_required]
        texts = [column.name for column in required if column.values.datatype == "BYTES" and not column.lengths]
        if input_file is None:
            rows = sent = typed_row(given, texts)
        else:
            rows = read_rows(input_file, found, texts)
            sent = select(rows, [column.name for column in required])
        scores = client.predict(sent)
    write_scores(rows, scores, found, output)
