"""The store of a work directory: `mlflow.db` in it, or the server that `MLFLOW_TRACKING_URI` names."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow import MlflowClient

from training.tracking import store_uri
from workflows.errors import ArtifactError

if TYPE_CHECKING:
    from serving.ensemble import ExportedEnsemble

_RETRIES = "3"  # some ten seconds; MLflow's own 7 are minutes, in which nobody knows why nothing happens


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
    _, is_file, path = uri.partition("sqlite:///")
    return Path(path).parent if is_file else None


def open_store(uri: str) -> MlflowClient:
    """The store, which is there.

    Raises:
        ArtifactError: it is a file, and there is none: no run was recorded.
    """
    _, is_file, path = uri.partition("sqlite:///")
    if is_file and not Path(path).exists():
        raise ArtifactError(
            f"there are no runs: {path} does not exist. Train something (rankline run movielens), or give --work-dir."
        )
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", _RETRIES)
    return MlflowClient(tracking_uri=uri)
