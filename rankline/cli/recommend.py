"""The verb `recommend`."""

from typing import Annotated

import typer

from rankline.cli.arguments import RecipeOption, Repository, Url, WorkDir
from rankline.display import CONSOLE, say
from rankline.servers import server_for
from rankline.workspace import REPOSITORY, WORK_DIR, workspace_of


def recommend_command(
    recipe: RecipeOption = "movielens",
    *,
    user: Annotated[
        str, typer.Option("--user", help="User to recommend to; an unseen user gets what most people like.")
    ],
    top: Annotated[int, typer.Option("--top", min=1, help="How many items.")] = 10,
    with_known: Annotated[
        bool, typer.Option("--with-known", help="Also rank the items in the user's history.")
    ] = False,
    work_dir: WorkDir = WORK_DIR,
    repository: Repository = REPOSITORY,
    url: Url = None,
) -> None:
    """Score the whole catalogue for one user through the server, and show the best.

    Where rows have histories, one request has the user's history and all items that the user does not have.

    **Examples**

    rankline recommend --user 1 --top 10

    rankline recommend --recipe amazon-sim --user A2IBPI20UZIR0U
    """
    from rankline.recommend import best_items, user_and_item
    from rankline.summary import print_items
    from serving.client import Client
    from serving.ensemble import ExportedEnsemble
    from workflows.prepared import PreparedData

    workspace = workspace_of(recipe, work_dir, repository)
    prepared = PreparedData.load(workspace.prepared)
    user_and_item(prepared)  # now, not after a server has started
    if url is None:
        ExportedEnsemble.load(workspace.ensemble).check_made_from(prepared.manifest)
    with server_for(workspace.ensemble, url) as server, Client(server.url, recipe) as client:
        items = best_items(client, prepared, user, top, with_known=with_known, report=say)
    print_items(items, CONSOLE)
