"""The commands `status`, `versions`, `register`, `promote` and `rollback`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankline.cli.options import completion
from rankline.cli.options.arguments import (
    JsonFile,
    OptionalRecipeName,
    RecipeName,
    Repository,
    ServedUrl,
    WorkDir,
    check_writable,
)
from rankline.recipes.workspace import REPOSITORY, WORK_DIR, exported_workspace
from rankline.terminal.console import CONSOLE, say
from rankline.workflows.core.errors import ArtifactError

if TYPE_CHECKING:
    from rankline.serving.repository.ensemble import ExportedEnsemble


def _number(explanation: str) -> Any:
    return typer.Option(min=1, help=explanation, autocompletion=completion.versions)


def versions_command(recipe: RecipeName = "movielens", *, repository: Repository = REPOSITORY) -> None:
    """List the exported versions of an ensemble.

    **Example**

    rankline versions movielens
    """
    from rankline.serving.repository.ensemble import open_versions
    from rankline.terminal.summary import print_versions

    undamaged, damaged = open_versions(exported_workspace(recipe, repository=repository).ensemble)
    if undamaged:
        print_versions(undamaged, CONSOLE)
    for number, problem in damaged.items():
        say(f"version {number} is damaged: {problem}")
    if not any(version.is_active for version in undamaged):
        say(f"no undamaged version is active. Export again, or activate one: rankline rollback {recipe} --to VERSION")


def status_command(
    recipe: OptionalRecipeName = None,
    *,
    repository: Repository = REPOSITORY,
    url: ServedUrl = None,
    json_file: JsonFile = None,
) -> None:
    """Show the active version of each exported ensemble, or of one recipe, with its activation time, run and data.

    **Examples**

    rankline status

    rankline status movielens

    rankline status --url 127.0.0.1:8001
    """
    check_writable(json_file)
    from rankline.api.pipeline import write_json
    from rankline.registry.status import status_of, statuses
    from rankline.terminal.summary import print_statuses

    if recipe is None:
        if not (found := list(statuses(repository, url))):
            raise ArtifactError(f"{repository} contains no ensemble. Export one: rankline export movielens")
    else:
        found = [status_of(exported_workspace(recipe, repository=repository).ensemble, url)]
    if json_file:
        write_json({"ensembles": [one.to_dict() for one in found]}, json_file)
    print_statuses(found, CONSOLE)


def register_command(
    recipe: RecipeName = "movielens",
    *,
    version: Annotated[int | None, _number("Version to register. [default: the newest]")] = None,
    work_dir: WorkDir = WORK_DIR,
    repository: Repository = REPOSITORY,
) -> None:
    """Register a version in MLflow's model registry with its workflow, model, spec, parity report and benchmark.

    The version gets the alias champion if it is active, and candidate otherwise. Afterwards promote, rollback and
    export keep the alias champion up to date.

    **Examples**

    rankline register movielens

    rankline register movielens --version 3
    """
    from rankline.registry.activation import register

    ensemble = _version(recipe, repository, version)
    from rankline.runs.store import catch_up, server, uri_of_run  # slow to import: only once the version exists

    catch_up(work_dir)
    uri = server() or uri_of_run(ensemble.tracking_uri, work_dir)
    registered = register(ensemble, uri)
    role = "champion" if ensemble.is_active else "candidate"
    say(f"{registered.words}: {role} of the registered model {registered.name} in {uri}")


def promote_command(
    recipe: RecipeName = "movielens",
    *,
    to: Annotated[int | None, _number("Version to activate. [default: the newest]")] = None,
    repository: Repository = REPOSITORY,
) -> None:
    """Activate a version that was exported with --no-promote or did not meet --if-better.

    **Examples**

    rankline promote movielens

    rankline promote movielens --to 3
    """
    from rankline.registry.activation import make_active

    wanted = _version(recipe, repository, to)
    make_active(wanted)
    _say_moved(wanted)


def rollback_command(
    recipe: RecipeName = "movielens",
    *,
    to: Annotated[int | None, _number("Version to roll back to. [default: the previous one]")] = None,
    repository: Repository = REPOSITORY,
) -> None:
    """Activate an earlier version; `rankline serve --watch` switches to it immediately.

    **Examples**

    rankline rollback movielens

    rankline rollback movielens --to 1
    """
    from rankline.registry.activation import make_active
    from rankline.serving.repository.ensemble import ExportedEnsemble, before

    path = exported_workspace(recipe, repository=repository).ensemble
    wanted = before(path) if to is None else ExportedEnsemble.load(path, to)
    make_active(wanted, is_urgent=True)
    _say_moved(wanted)


def _version(recipe: str, repository: Path, number: int | None) -> "ExportedEnsemble":
    from rankline.serving.repository.ensemble import ExportedEnsemble, version_numbers

    path = exported_workspace(recipe, repository=repository).ensemble
    return ExportedEnsemble.load(path, version_numbers(path)[-1] if number is None else number)


def _say_moved(version: "ExportedEnsemble") -> None:
    kept = "a server started without --watch or --follow keeps its current version"
    say(f"{version.path}: version {version.version} is active; {kept}")
