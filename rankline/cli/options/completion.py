"""Shell completion for the names of recipes, exports, runs and versions.

Each Tab starts a process, so this module imports neither MLflow nor a framework, and does not query a tracking server.
Errors produce no suggestions, because a message would appear in the middle of the user's input.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import wraps
from pathlib import Path

import typer

from rankline.recipes import available
from rankline.recipes.workspace import REPOSITORY, WORK_DIR, exported_only, exported_workspace
from rankline.workflows.core.errors import ArtifactError

Offers = Iterable[str | tuple[str, str]]
"""Words, each alone or with a description."""
Complete = Callable[[typer.Context, str], list[str | tuple[str, str]]]
_NUM_RUNS = 50


def _offer(found: Callable[[typer.Context, str], Offers]) -> Complete:
    """Decorate a completion function to suggest only names that start with the typed prefix, and nothing on errors."""

    @wraps(found)
    def complete(ctx: typer.Context, incomplete: str) -> list[str | tuple[str, str]]:
        try:
            offers = list(found(ctx, incomplete))
        except Exception:  # a traceback would disturb the command line being typed
            return []
        return [one for one in offers if (one if isinstance(one, str) else one[0]).startswith(incomplete)]

    return complete


@_offer
def recipes(ctx: typer.Context, incomplete: str) -> Offers:  # noqa: ARG001  (typer's)
    """Suggest recipes. If the command has a repository option, also suggest ensembles exported under other names."""
    names: list[str | tuple[str, str]] = [(name, recipe.summary) for name, recipe in available().recipes.items()]
    return [*names, *exported_only(_repository(ctx))] if "repository" in ctx.params else names


@_offer
def versions(ctx: typer.Context, incomplete: str) -> Offers:  # noqa: ARG001  (typer's)
    from rankline.serving.repository.ensemble import version_numbers

    recipe = ctx.args[0] if ctx.args else ctx.params["recipe"]
    return map(str, version_numbers(exported_workspace(recipe, repository=_repository(ctx)).ensemble))


@_offer
def runs(ctx: typer.Context, incomplete: str) -> Offers:
    """Suggest the latest runs and the exported versions. Run IDs are short until a longer prefix is typed."""
    from rankline.serving.repository.ensemble import version_numbers

    with suppress(ArtifactError):  # without a store, there may still be versions
        yield from _run_ids(Path(ctx.params.get("work_dir") or WORK_DIR), incomplete)
    for path in sorted(_repository(ctx).glob("*")):
        with suppress(ArtifactError):  # other ensembles may be readable
            yield from (f"{path.name}@{number}" for number in version_numbers(path))


def _run_ids(work_dir: Path, incomplete: str) -> Iterator[tuple[str, str]]:
    from rankline.runs.reader import SHORT_ID, open_reader
    from rankline.runs.store import existing_file, uri_of

    uri = uri_of(work_dir)
    if existing_file(uri) is None:  # a tracking server
        return
    num_digits = SHORT_ID if len(incomplete) <= SHORT_ID else None
    for run in open_reader(uri).runs(None, _NUM_RUNS):
        yield run.run_id[:num_digits], f"{run.experiment} {run.name}"


def _repository(ctx: typer.Context) -> Path:
    return Path(ctx.params.get("repository") or REPOSITORY)
