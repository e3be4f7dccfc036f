"""What verbs that measure do with a report, once it was shown."""

from typing import TYPE_CHECKING

from rankline.display import say
from rankline.workspace import Workspace

if TYPE_CHECKING:
    from serving.benchmark.report import BenchmarkReport
    from serving.ensemble import ExportedEnsemble


def save_report(report: "BenchmarkReport", ensemble: "ExportedEnsemble", workspace: Workspace) -> None:
    """Write it with its drawings, log it to the run that trained the model, and say where it is.

    Raises:
        ArtifactError: it could not be saved completely.
    """
    from rankline.tracking.reports import log_report
    from rankline.tracking.store import catch_up

    catch_up(workspace.root)

    log_report(report, ensemble.tracking_uri, ensemble.run_id, workspace.report)
    logged = f"logged to MLflow run {ensemble.run_id}; " if ensemble.run_id else ""
    say(f"{logged}page, table, JSON and plot in {workspace.report}")


def say_waiting(ensemble: "ExportedEnsemble") -> None:
    """What lets an exported version answer, where another one does."""
    if not ensemble.is_active:
        say(f"another version answers; to let this one: rankline promote {ensemble.name} --to {ensemble.version}")
