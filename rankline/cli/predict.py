"""The commands `predict` and `recommend`."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankline.cli.options.arguments import FormatName, Repository, TlsRoot, Url, WorkDir, check_writable
from rankline.cli.options.completion import recipes
from rankline.recipes import recipe_named
from rankline.recipes.workspace import (
    NAMES,
    REPOSITORY,
    WORK_DIR,
    exported_workspace,
    is_exported_only,
    is_no_recipe,
    requests_of,
)
from rankline.scoring.backends import client_for
from rankline.terminal.console import CONSOLE, ERRORS, Stages, is_stdout, note, say
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.formatting import listed
from rankline.workflows.core.progress import SILENT, Progress

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from rankline.scoring.read_rows import Block
    from rankline.scoring.write_scores import Write
    from rankline.serving.client import Client, ModelSchema
    from rankline.serving.repository.ensemble import ExportedEnsemble
    from rankline.workflows.preprocess.dataset import Requests


def predict_command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE|--COLUMN VALUE",
            help="Recipe or ensemble, movielens by default, followed by one row as options: one --COLUMN VALUE pair "
            "per column.",
            autocompletion=recipes,
        ),
    ] = None,
    *,
    input_file: Annotated[
        str | None, typer.Option("--input", metavar="FILE", help='File that contains the rows; "-" is standard input.')
    ] = None,
    format_name: FormatName = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Output file. [default: standard output]")] = None,
    repository: Repository = REPOSITORY,
    url: Url = None,
    tls_root: TlsRoot = None,
) -> None:
    """Score rows: one row from options, or any number from a CSV, Parquet or JSON lines file.

    Without `--url`, workflow and model run in this process. If a column has the name of an option, put it after `--`.

    **Examples**

    rankline predict --userId 1 --movieId 31

    rankline predict rankline.yaml --plan basic --"monthly fee" 9.9 --tags 'new|trial'

    rankline predict rankline.yaml -- --format pro --url 9.5

    rankline predict --input rows.csv --output scored.csv

    rankline predict rankline.yaml --input churn.parquet

    echo '{"userId": 1, "movieId": 31}' | rankline predict --input -
    """
    from rankline.scoring.read_rows import format_of, from_options, missing_columns, output_format_of, stdin_as_file
    from rankline.scoring.write_scores import check_columns, score_blocks, scores_to
    from rankline.serving.client import ModelSchema
    from rankline.serving.client.request_builder import check
    from rankline.serving.repository.ensemble import ExportedEnsemble

    words = words or []
    recipe = words.pop(0) if words and not words[0].startswith("-") else "movielens"
    if version := re.fullmatch(rf"({NAMES})@(\d+)", recipe):
        raise ConfigError(
            f"{recipe} is a version, but this command always uses the active version. Pass {version[1]}, or first "
            f"activate version {version[2]}: rankline promote {version[1]} --to {version[2]}"
        )
    if url is not None and is_no_recipe(recipe):  # the ensemble may exist only on the server
        ensemble, requests = repository / recipe, None
    else:
        ensemble = exported_workspace(recipe, repository=repository).ensemble
        requests = requests_of(recipe, repository)
    given = from_options(words)
    options = {"input": input_file, "format": format_name, "output": output, "url": url, "tls-root": tls_root}
    if input_file is None or words or not Path(input_file).exists():
        _check_options(options, given, recipe, repository)
    if (input_file is None) == (not words):
        raise ConfigError("pass either one row, such as --userId 1 --movieId 31, or --input FILE.")
    found = format_of(input_file, format_name, requests)
    output = None if is_stdout(output) else output
    written = output_format_of(output, format_name, found)
    check_writable(output, written)
    with ExitStack() as stack:
        client = None if url is None else stack.enter_context(client_for(ensemble, url, tls_root))
        if client is None:
            exported = ExportedEnsemble.load(ensemble)
            if requests is not None:
                _check_reading(requests, exported)
            schema = ModelSchema.from_config(exported.model_config)
        else:
            schema = client.schema
        optional = [column.name for column in schema.columns if not column.is_required]
        if input_file is None:
            labels = () if is_no_recipe(recipe) else recipe_named(recipe).dataset.labels
            unread = {*labels} - {column.name for column in schema.columns}  # accepted, as in a file
            row = {name: text for name, text in given.items() if name not in unread}
            blocks = iter([_row(row, schema, requests, optional)])
        else:
            path = stack.enter_context(stdin_as_file(found)) if input_file == "-" else Path(input_file)
            blocks = _blocks(path, found, schema, requests, optional)
        first = next(blocks)
        check_columns(first.rows, schema.score_names, written)
        check(first.sent, schema)  # fail before loading the model
        if missing := missing_columns(first.sent.column_names, optional, first.rows.column_names):
            note(missing)
        client = client or stack.enter_context(client_for(ensemble, None, tls_root))
        progress: Progress = SILENT
        if input_file is not None:
            if url is None:
                _note_unknown(client, first.sent)
            progress = stack.enter_context(stack.enter_context(Stages(["predict"], ERRORS)).stage("predict"))
        write = stack.enter_context(scores_to(output, written))
        warning = _write_scored(write, score_blocks(client, chain([first], blocks), progress), schema)
    if warning:
        note(warning)


def _write_scored(write: "Write", scored: "Iterable[tuple[pa.Table, NDArray[Any]]]", schema: "ModelSchema") -> str:
    """Write blocks of rows with their scores. Return a warning if some scores are NaN, otherwise an empty string."""
    from rankline.scoring.write_scores import without_score

    num_rows = num_lacking = first_lacking = 0
    for rows, scores in scored:
        write(rows, schema.score_columns(scores))
        if len(lacking := without_score(scores)):
            first_lacking = first_lacking or num_rows + int(lacking[0]) + 1
            num_lacking += len(lacking)
        num_rows += len(rows)
    if not num_lacking:
        return ""
    return (
        f"Warning: the score is NaN in {num_lacking:,} of {num_rows:,} rows, first in row {first_lacking:,}: "
        "the model cannot compute a score from their values. JSON output contains null for them."
    )


def _check_options(options: Mapping[str, object], given: Mapping[str, str], recipe: str, repository: Path) -> None:
    """Raise `ConfigError` if an option is also the name of a column that the user may have meant to set."""
    from rankline.serving.client import ModelSchema
    from rankline.serving.repository.ensemble import ExportedEnsemble

    if is_exported_only(recipe, repository):
        schema = ModelSchema.from_config(ExportedEnsemble.load(repository / recipe).model_config)
        columns = [column.name for column in schema.columns]
    elif is_no_recipe(recipe):  # the columns are known only after connecting to the server
        return
    else:
        columns = list(recipe_named(recipe).dataset.inputs)
    for name, value in options.items():
        if value is not None and name in columns and name not in given:
            raise ConfigError(
                f"--{name} is an option of this command, but {name!r} is also a column. To pass the column, put it "
                f"after --, as in: rankline predict {recipe} -- --{name} {value}"
            )


def _note_unknown(client: "Client", rows: "pa.Table") -> None:
    from rankline.serving.server.in_process import unknown_columns

    if unknown := listed([repr(name) for name in unknown_columns(client, rows)], 5):
        note(
            f"Warning: in the first rows, 100% of {unknown} are values that were absent or too rare in the training "
            "data. Check that they are formatted as in the training data."
        )


def _check_reading(requests: "Requests", exported: "ExportedEnsemble") -> None:
    """Check that rows are parsed in the same way as the training data of the exported version."""
    choices = exported.manifest.details.get("choices")  # not recorded by earlier releases
    if changed := requests.incompatible_changes(choices) if choices else []:
        raise ConfigError(
            f"version {exported.version} of {exported.name} was exported before the recipe changed its "
            f"{listed(changed, 5)}. Restore the recipe, or train and export again."
        )


def _row(
    given: Mapping[str, str], schema: "ModelSchema", requests: "Requests | None", optional: Sequence[str]
) -> "Block":
    """Convert the columns given as options to a one-row `Block`, keeping unknown columns for the client to report."""
    import pyarrow as pa

    from rankline.scoring.read_rows import Block, as_typed, text_columns, typed_row

    if requests is None:
        row = typed_row(given, text_columns(schema))
        return Block(rows=row, sent=row)
    row = pa.Table.from_batches([requests.of_texts(given, optional)])
    return Block(rows=as_typed(row, given), sent=row)


def _blocks(
    path: Path, format_name: str, schema: "ModelSchema", requests: "Requests | None", optional: Sequence[str]
) -> "Iterator[Block]":
    from rankline.scoring.read_rows import Block, read_blocks, select

    if requests is None:
        for rows, done in read_blocks(path, format_name, schema):
            yield Block(rows=rows, sent=select(rows, schema), done=done)
    else:
        for rows, sent, done in requests.of_file(path, optional, format_name):
            yield Block(rows=rows, sent=sent, done=done)


def recommend_command(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="Recipe that has users and items, such as movielens. Recipe files have no items.",
            autocompletion=recipes,
        ),
    ] = "movielens",
    *,
    user: Annotated[str, typer.Option(help="User to recommend items to; an unseen user gets the most popular items.")],
    top: Annotated[int, typer.Option(min=1, help="Number of items to recommend.")] = 10,
    with_known: Annotated[
        bool, typer.Option("--with-known", help="Also recommend items that are already in the user's history.")
    ] = False,
    context: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Value of an additional column required by the model."),
    ] = None,
    work_dir: WorkDir = WORK_DIR,
    repository: Repository = REPOSITORY,
    url: Url = None,
    tls_root: TlsRoot = None,
) -> None:
    """Score all items that the user has not interacted with, and show the best ones.

    For models with histories, one request holds the user's history and all items. Other model inputs come from the
    catalog or from `--context`.

    **Examples**

    rankline recommend --user 1 --top 10

    rankline recommend amazon-sim --user A2IBPI20UZIR0U

    rankline recommend shop --user 1 --context hour=17 --context country=DE
    """
    from rankline.scoring.recommend import best_items, check_context, context_of, typed_user, user_and_item
    from rankline.serving.client import ModelSchema
    from rankline.serving.repository.ensemble import ExportedEnsemble
    from rankline.terminal.summary import print_items
    from rankline.workflows.preprocess.prepared_data import PreparedData

    workspace = exported_workspace(recipe, work_dir, repository)
    prepared = PreparedData.load(workspace.prepared)
    user_column, _ = user_and_item(prepared)
    if url is None:  # fail before loading the model
        ensemble = ExportedEnsemble.load(workspace.ensemble)
        ensemble.check_made_from(prepared.manifest)
        schema = ModelSchema.from_config(ensemble.model_config)
        typed_user(user, schema, user_column)
        check_context(prepared, schema, context_of(context or (), schema))
    with client_for(workspace.ensemble, url, tls_root) as client:
        given = context_of(context or (), client.schema)
        items = best_items(client, prepared, user, top, context=given, with_known=with_known, report=say)
    print_items(items, CONSOLE)
