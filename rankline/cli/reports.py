"""What verbs that measure do with a report, once it was shown."""

from typing import TYPE_CHECKING

from rankline.display import say
from rankline.workspace import Workspace

if TYPE_CHECKING:
    from serving.benchmark.report import BenchmarkReport
    from serving.ensemble import ExportedEnsemble


def save_report(report: "BenchmarkReport", ensemble: "ExportedEnsemble", workspace: Workspace) -> None:
    """Save the report and its pictures, log it to the run that trained the model, and say where it is.

    Raises:
        ArtifactError: it could not be saved completely.
    """
    from rankline.tracking.reports import log_report
    from rankline.tracking.store import catch_up, uri_of_run

    catch_up(workspace.root)
    uri = uri_of_run(ensemble.tracking_uri, workspace.root)
    log_report(report, uri, ensemble.run_id, workspace.report)
    logged = f"logged to MLflow run {ensemble.run_id}; " if ensemble.run_id else ""
    say(f"{logged}page, table, JSON and plot in {workspace.report}")


def say_active(ensemble: "ExportedEnsemble", why_not: str = "--no-promote") -> None:
    """Say which version is active after an export; if it is another one, why, and how to activate this one."""
    from serving.ensemble import active_version

    active = active_version(ensemble.path, ensemble.name)
    if active == ensemble.version:
        say(f"{ensemble.path}: version {active} is active")
    else:
        say(
            f"{ensemble.path}: version {active} stays active: {why_not}. To let the new one answer: "
            f"rankline promote {ensemble.name} --to {ensemble.version}"
        )
