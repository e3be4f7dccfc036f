"""The store of a work directory: `mlflow.db` in it, or the server that `MLFLOW_TRACKING_URI` names."""

import os
from pathlib import Path

from mlflow import MlflowClient

from training.tracking import store_uri
from workflows.errors import ArtifactError


def uri_of(work_dir: Path) -> str:
    """Tracking URI of the store that runs of a work directory are recorded in."""
    return store_uri(work_dir, os.environ.get("MLFLOW_TRACKING_URI"))


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
    return MlflowClient(tracking_uri=uri)
