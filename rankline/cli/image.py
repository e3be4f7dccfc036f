"""The verb `image`."""

from typing import Annotated

import typer

from rankline.cli.arguments import RecipeName, Repository
from rankline.display import say
from rankline.workspace import REPOSITORY, exported_workspace


def image_command(
    recipe: RecipeName = "movielens",
    *,
    tag: Annotated[
        str | None, typer.Option("--tag", help="Name of the image; without it rankline-RECIPE:VERSION.")
    ] = None,
    repository: Repository = REPOSITORY,
) -> None:
    """Build a container image of the active version with its server, which needs nothing else to run.

    **Examples**

    rankline image movielens

    rankline image movielens --tag registry.example.com/movielens:7
    """
    from serving.ensemble import ExportedEnsemble
    from serving.image import build_image

    ensemble = ExportedEnsemble.load(exported_workspace(recipe, repository=repository).ensemble)
    image = build_image(ensemble, tag)
    say(f"{image.tag}: version {ensemble.version} of {ensemble.name}, {image.num_bytes / 1e6:,.0f} MB")
    say(f"  docker run --rm --read-only --publish 127.0.0.1:8001:8001 {image.tag}")
