"""The MLflow store of a work directory: its `mlflow.db`, or the server in `MLFLOW_TRACKING_URI`.

MLflow is imported only where something is written, because the import takes seconds.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rankline.terminal.console import note
from rankline.training.tracking import quiet
from rankline.training.tracking.config import journals_of, store_uri
from rankline.training.tracking.errors import reason_of
from rankline.training.tracking.journal import left_in
from rankline.workflows.core.errors import ArtifactError, RanklineError
from rankline.workflows.core.tracking_uri import VARIABLE, file_of, without_credentials

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from rankline.serving.repository.ensemble import ExportedEnsemble
    from rankline.training.tracking.upload import Outcome

_LOOK_S = "5"


def server() -> str | None:
    return without_credentials(os.environ.get(VARIABLE, "")) or None


def uri_of(work_dir: Path) -> str:
    return store_uri(work_dir, server())


def uri_of_run(tracking_uri: str, work_dir: Path) -> str:
    """Return the tracking URI of the store that contains a run, given the tracking URI recorded in an artifact.

    If `tracking_uri` is empty (the model was trained elsewhere) or a missing file, return the work directory's store.
    """
    file = file_of(tracking_uri)
    return tracking_uri if tracking_uri and (file is None or file.exists()) else store_uri(work_dir)


def check_store(uri: str) -> None:
    """Check that a store can record results, before starting long-running work.

    An unreachable server is accepted, because logged data is kept until the server responds.
    """
    if file := file_of(uri):
        there = next(path for path in (file, *file.absolute().parents) if path.exists())
        if not all(os.access(path, os.W_OK) for path in {there, there if there.is_dir() else there.parent}):
            raise ArtifactError(
                f"{there} is not writable, so the MLflow store cannot be used. Choose another --work-dir."
            )
        return
    from mlflow.exceptions import MlflowException

    from rankline.training.tracking.upload import client_of, is_transient

    try:
        with quiet(), _one_try():
            client_of(uri).search_experiments(max_results=1)
    except MlflowException as error:
        if not is_transient(error):
            raise ArtifactError(f"{uri} rejected the request: {reason_of(error)}.") from None


@contextmanager
def _one_try() -> Iterator[None]:
    """Make MLflow try each request only once, with a short timeout, until the `with` block ends."""
    once = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": _LOOK_S}
    before = {name: os.environ.get(name) for name in once}
    os.environ.update(once)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def existing_file(uri: str) -> Path | None:
    """Return the file of a store, or None for a server. Raise `ArtifactError` if the file does not exist."""
    file = file_of(uri)
    if file and not file.exists():
        raise ArtifactError(
            f"there are no runs because {file} does not exist. Train a model (rankline run movielens), or pass "
            "another --work-dir. Models trained elsewhere have no runs."
        )
    return file


def deliver(work_dir: Path) -> "Iterator[Outcome]":
    from rankline.training.tracking.upload import deliver_left

    with quiet():
        yield from deliver_left(journals_of(work_dir))


def catch_up(work_dir: Path) -> None:
    """Deliver pending run data, and only warn on failure. Call this before adding anything to a run."""
    if not left_in(journals_of(work_dir)):
        return
    for outcome in deliver(work_dir):
        if outcome.failure:
            note(f"Warning: {outcome.words}")


def stored_id(client: "MlflowClient", run_id: str) -> str:
    """Return MLflow's id of a run, which differs from `run_id` if the store was unreachable when the run started."""
    from rankline.training.tracking.upload import stored_run

    run = stored_run(client, run_id)
    return str(run.info.run_id) if run else run_id


def open_store(uri: str) -> "MlflowClient":
    """Return a client for the store at `uri`, or raise `ArtifactError` if it is a file that does not exist."""
    existing_file(uri)
    from rankline.training.tracking.upload import client_of

    return client_of(uri)


@contextmanager
def ending_run(client: "MlflowClient", run_id: str) -> Iterator[None]:
    """Mark the run FINISHED when the block ends, KILLED on Ctrl-C, and FAILED on any other exception."""
    status = "FAILED"
    try:
        yield
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        client.set_terminated(run_id, status)


VERSION, ENGINE = "version", "engine"
"""Names of tags on a run."""
CHAMPION = "champion"
"""Alias of the active version in the registry."""
MEGABYTES = "serving/megabytes"


def record_export(ensemble: "ExportedEnsemble", work_dir: Path) -> None:
    """Record the version, engine and size of an export on the run that trained its model."""
    if not ensemble.run_id:  # the model was trained elsewhere
        return
    from mlflow.exceptions import MlflowException

    uri = uri_of_run(ensemble.tracking_uri, work_dir)
    try:
        client = open_store(uri)
        run_id = stored_id(client, ensemble.run_id)
        client.set_tag(run_id, VERSION, f"{ensemble.name} {ensemble.version}")
        client.set_tag(run_id, ENGINE, str(ensemble.manifest.details["engine"]))
        client.log_metric(run_id, MEGABYTES, ensemble.num_bytes / 1e6)
    except (MlflowException, RanklineError, OSError) as error:
        raise ArtifactError(
            f"MLflow run {ensemble.run_id} in {uri} could not be tagged as exported (version {ensemble.version}): "
            f"{reason_of(error)}. The exported ensemble is complete."
        ) from None
