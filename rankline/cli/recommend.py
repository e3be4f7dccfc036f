"""The verb `recommend`."""

from typing import Annotated

import typer

from rankline.cli.arguments import RecipeName, Repository, TlsRoot, Url, WorkDir
from rankline.display import CONSOLE, say
from rankline.servers import client_for
from rankline.workspace import REPOSITORY, WORK_DIR, exported_workspace


def recommend_command(
    recipe: RecipeName = "movielens",
    *,
    user: Annotated[
        str, typer.Option("--user", help="User to recommend to; an unseen user gets what most people like.")
    ],
    top: Annotated[int, typer.Option("--top", min=1, help="How many items.")] = 10,
    with_known: Annotated[
        bool, typer.Option("--with-known", help="Also rank the items that the user has in the data.")
    ] = False,
    context: Annotated[
        list[str] | None,
        typer.Option("--context", metavar="NAME=VALUE", help="A further column that the model takes."),
    ] = None,
    work_dir: WorkDir = WORK_DIR,
    repository: Repository = REPOSITORY,
    url: Url = None,
    tls_root: TlsRoot = None,
) -> None:
    """Score all items for one user but those that the user has in the data, and show the best.

    Where rows have histories, one request has the user's and all these items. What else the model takes comes from the
    catalogue, or from `--context`.

    **Examples**

    rankline recommend --user 1 --top 10

    rankline recommend amazon-sim --user A2IBPI20UZIR0U

    rankline recommend shop --user 1 --context hour=17 --context country=DE
    """
    from rankline.recommend import best_items, check_context, context_of, typed_user, user_and_item
    from rankline.summary import print_items
    from serving.client import ModelSchema
    from serving.ensemble import ExportedEnsemble
    from workflows.prepared import PreparedData

    workspace = exported_workspace(recipe, work_dir, repository)
    prepared = PreparedData.load(workspace.prepared)
    user_column, _ = user_and_item(prepared)
    if url is None:  # mistakes are found now, not after the model is loaded
        ensemble = ExportedEnsemble.load(workspace.ensemble)
        ensemble.check_made_from(prepared.manifest)
        schema = ModelSchema.from_config(ensemble.model_config)
        typed_user(user, schema, user_column)
        check_context(prepared, schema, context_of(context or (), schema))
    with client_for(workspace.ensemble, url, tls_root) as client:
        given = context_of(context or (), client.schema)
        items = best_items(client, prepared, user, top, context=given, with_known=with_known, report=say)
    print_items(items, CONSOLE)
