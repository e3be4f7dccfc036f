"""Tags that record on a run which ensemble was exported from it."""

from pathlib import Path
from typing import TYPE_CHECKING

from rankline.runs.store import open_store, stored_id, uri_of_run
from rankline.training.tracking.errors import reason_of
from rankline.workflows.core.errors import ArtifactError, RanklineError

if TYPE_CHECKING:
    from rankline.serving.repository.ensemble import ExportedEnsemble

VERSION, ENGINE = "version", "engine"
"""Names of tags on a run."""
CHAMPION = "champion"
"""Alias of the active version in the registry."""
MEGABYTES = "serving/megabytes"


def record_export(ensemble: "ExportedEnsemble", work_dir: Path) -> None:
    """Tag the run that trained a model with version, engine and size of its export."""
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
            f"MLflow run {ensemble.run_id} in {uri} does not say that it was exported as version "
            f"{ensemble.version}: {reason_of(error)}. The ensemble is whole."
        ) from None
