"""The verb `predict`."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankline.cli.arguments import RecipeOption, Repository, Url
from rankline.cli.checks import check_writable
from rankline.servers import server_for
from rankline.workspace import REPOSITORY, workspace_of
from workflows.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from serving.client import ModelSchema


def predict_command(
    context: typer.Context,
    recipe: RecipeOption = "movielens",
    *,
    input_file: Annotated[str | None, typer.Option("--input", metavar="FILE", help='Rows; "-" is stdin.')] = None,
    format_name: Annotated[
        str | None, typer.Option("--format", help="csv, parquet or jsonl, where no ending of a file says so.")
    ] = None,
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
    from rankline.rows import check_columns, format_of, from_options, output_format_of, write_scores
    from serving.client import Client, ModelSchema
    from serving.client.requests import check
    from serving.ensemble import ExportedEnsemble

    if (input_file is None) == (not context.args):
        raise ConfigError("give either one row, such as --userId 1 --movieId 31, or --input FILE.")
    given = from_options(context.args)
    found = format_of("-" if input_file is None else input_file, format_name)
    written = output_format_of(output, format_name, found)
    check_writable(output)
    ensemble = workspace_of(recipe, repository=repository).ensemble
    with ExitStack() as stack:
        client = None if url is None else stack.enter_context(Client(url, recipe))
        schema = client.schema if client else ModelSchema.from_config(ExportedEnsemble.load(ensemble).model_config)
        rows, sent = _rows(schema, given, input_file, found)
        check_columns(rows, written)
        if client is None:
            check(sent, schema)  # now, not after a server has started
            server = stack.enter_context(server_for(ensemble))
            client = stack.enter_context(Client(server.url, recipe))
        scores = client.predict(sent)
    write_scores(rows, scores, written, output)


def _rows(
    schema: "ModelSchema", given: Mapping[str, str], input_file: str | None, format_name: str
) -> tuple["pa.Table", "pa.Table"]:
    """The rows, and of their columns those that are sent."""
    from rankline.rows import read_rows, select, typed_row

    required = [column for column in schema.columns if column.is_required]
    texts = [column.name for column in required if column.values.datatype == "BYTES" and not column.lengths]
    if input_file is None:
        row = typed_row(given, texts)
        return row, row
    rows = read_rows(input_file, format_name, texts)
    return rows, select(rows, [column.name for column in required])
