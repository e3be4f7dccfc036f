"""Which ensemble was exported from a run, on the run."""

from typing import TYPE_CHECKING

from rankline.tracking.store import reason_of, stored_id
from workflows.errors import ArtifactError

if TYPE_CHECKING:
    from serving.ensemble import ExportedEnsemble

VERSION, ENGINE = "version", "engine"
"""Tags of a run."""
CHAMPION = "champion"
"""Alias of the registered version that answers."""
MEGABYTES = "serving/megabytes"


def record_export(ensemble: "ExportedEnsemble") -> None:
    """Say on the run that trained a model which version of which ensemble it was exported as, its engine and size.

    Raises:
        ArtifactError: the store does not take it.
    """
    if not ensemble.run_id:  # trained elsewhere
        return
    from mlflow.exceptions import MlflowException

    from training.tracking.delivery import client_of

    try:
        client = client_of(ensemble.tracking_uri)
        run_id = stored_id(client, ensemble.run_id)
        client.set_tag(run_id, VERSION, f"{ensemble.name} {ensemble.version}")
        client.set_tag(run_id, ENGINE, str(ensemble.manifest.details["engine"]))
        client.log_metric(run_id, MEGABYTES, ensemble.num_bytes / 1e6)
    except (MlflowException, OSError) as error:
        raise ArtifactError(
            f"MLflow run {ensemble.run_id} in {ensemble.tracking_uri} does not say that it was exported as version "
            f"{ensemble.version}: {reason_of(error)}. The ensemble is whole."
        ) from None
