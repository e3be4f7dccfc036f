"""The store of a work directory: `mlflow.db` in it, or the server that `MLFLOW_TRACKING_URI` names.

MLflow is imported when something is written, and not before: that takes seconds.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rankline.display import note
from training.tracking import quiet
from training.tracking.config import file_of, journals_of, store_uri
from training.tracking.journal import left_in
from workflows.errors import ArtifactError

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from serving.ensemble import ExportedEnsemble
    from training.tracking.delivery import Outcome


def server() -> str | None:
    """Tracking URI of the server that takes runs in place of the work directory; None for none."""
    return os.environ.get("MLFLOW_TRACKING_URI")


def uri_of(work_dir: Path) -> str:
    """Tracking URI of the store that runs of a work directory are recorded in."""
    return store_uri(work_dir, server())


def uri_of_registry(ensemble: "ExportedEnsemble", work_dir: Path) -> str:
    """Tracking URI of the store that a version is registered in: the server, or the store that has its run.

    Args:
        ensemble: the version.
        work_dir: whose store it is for a model that was trained elsewhere.
    """
    return server() or ensemble.tracking_uri or store_uri(work_dir)


def directory_of(uri: str) -> Path | None:
    """The work directory that a store is in; None of a server."""
    file = file_of(uri)
    return file and file.parent


def existing_file(uri: str) -> Path | None:
    """The file that a store is in; None of a server.

    Raises:
        ArtifactError: it is not there: no run was recorded.
    """
    file = file_of(uri)
    if file and not file.exists():
        raise ArtifactError(
            f"there are no runs: {file} does not exist. Train something (rankline run movielens), or give --work-dir."
        )
    return file


def reason_of(error: Exception) -> str:
    """What MLflow says of a failure, without the rest of a long story: of files that were not copied, the first."""
    files = error.args[0] if isinstance(error, shutil.Error) else ()
    reason = files[0][-1] if files and isinstance(files, list) else error
    return str(reason).strip().partition("\n")[0].rstrip(".")


def deliver(work_dir: Path) -> "Iterator[Outcome]":
    """Give stores what runs of a work directory have left that are over."""
    from training.tracking.delivery import deliver_left

    with quiet():
        yield from deliver_left(journals_of(work_dir))


def catch_up(work_dir: Path) -> None:
    """Do so before something is added to one of these runs; a store that does not answer costs a line."""
    if not left_in(journals_of(work_dir)):
        return
    for outcome in deliver(work_dir):
        if outcome.failure:
            note(f"Warning: {outcome.words}")


def stored_id(client: "MlflowClient", run_id: str) -> str:
    """MLflow's id of a run, which has one of its own where the store did not answer when it began.

    Raises:
        MlflowException: the store does not answer.
    """
    from training.tracking.delivery import stored_run

    run = stored_run(client, run_id)
    return str(run.info.run_id) if run else run_id


def open_store(uri: str) -> "MlflowClient":
    """The store, which is there.

    Raises:
        ArtifactError: it is a file, and there is none: no run was recorded.
    """
    existing_file(uri)
    from training.tracking.delivery import client_of

    return client_of(uri)
