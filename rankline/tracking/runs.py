"""Runs as they are read back: what each was, how good, how fast, and what became of it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from rankline.tracking.exports import ENGINE, MEGABYTES, VERSION
from rankline.tracking.reports import FIGURES
from training.metrics import METRICS, OBJECTIVES
from training.validation import FILE, FOLDER, ValidationScores
from workflows.errors import ArtifactError, ConfigError

_OF_MODEL = "model/valid_"
_SHORT_ID = 8
_FEWEST_DIGITS = 4
_MOST_MEANT = 20  # runs that a message lists
_NO_TRIAL = f"tags.`{MLFLOW_PARENT_RUN_ID}` IS NULL"


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One run.

    Attributes:
        run_id: its id in the store.
        name: what differs from the recipe.
        recipe: of its experiment.
        status: of MLflow: RUNNING, FINISHED, FAILED or KILLED.
        started: when, UTC.
        duration_s: None while it is running.
        quality: metric → figure of the published model on the validation rows.
        serving: name in `rankline.tracking.reports.FIGURES`, and megabytes → figure, of the last benchmark and export.
        engine: that the last export is served by; empty before one.
        version: ensemble and version that it was exported as last; empty before an export.
        data, code: what it was trained on and by.
        params: choices.
    """

    run_id: str
    name: str
    recipe: str
    status: str
    started: datetime
    duration_s: float | None
    quality: Mapping[str, float]
    serving: Mapping[str, float]
    engine: str = ""
    version: str = ""
    data: str = ""
    code: str = ""
    params: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, run: Run, recipe: str) -> "RunSummary":
        """What a run of MLflow says."""
        metrics, tags, info = run.data.metrics, run.data.tags, run.info
        serving = {name: metrics[f"serving/{name}"] for name in FIGURES if f"serving/{name}" in metrics}
        if MEGABYTES in metrics:
            serving["megabytes"] = metrics[MEGABYTES]
        return cls(
            run_id=info.run_id,
            name=info.run_name or "",
            recipe=recipe,
            status=info.status,
            started=datetime.fromtimestamp(info.start_time / 1000, timezone.utc),
            duration_s=(info.end_time - info.start_time) / 1000 if info.end_time else None,
            quality={n.removeprefix(_OF_MODEL): v for n, v in metrics.items() if n.startswith(_OF_MODEL)},
            serving=serving,
            engine=tags.get(ENGINE, ""),
            version=tags.get(VERSION, ""),
            data=tags.get("data", ""),
            code=tags.get("code", ""),
            params=run.data.params,
        )

    @property
    def short_id(self) -> str:
        """Enough of the id to find it by."""
        return self.run_id[:_SHORT_ID]

    @property
    def objective(self) -> tuple[str, float] | None:
        """Title and figure of what the model is judged by; None where it was not measured."""
        return next(((o.title, self.quality[o.name]) for o in OBJECTIVES if o.name in self.quality), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**vars(self), "started": self.started.isoformat(timespec="seconds")}


def runs_in(client: MlflowClient, recipe: str | None = None, limit: int = 1000) -> list[RunSummary]:
    """Runs of a store, the latest first, but for the trials of `rankline tune`.

    Args:
        client: the store.
        recipe: whose runs; None for those of all recipes.
        limit: how many at most.

    Raises:
        ConfigError: no run of the recipe was recorded.
        ArtifactError: the store does not answer.
    """
    with _explained(client):
        names = {one.experiment_id: one.name for one in client.search_experiments()}
        if recipe is not None:
            names = {number: name for number, name in names.items() if name == recipe}
            if not names:
                raise ConfigError(f"no run of {recipe!r} was recorded in {client.tracking_uri}.")
        found = client.search_runs(list(names), _NO_TRIAL, order_by=["attributes.start_time DESC"], max_results=limit)
    return [RunSummary.of(run, names[run.info.experiment_id]) for run in found]


def find_run(client: MlflowClient, named: str) -> RunSummary:
    """One run, by its id or the beginning of its id.

    Raises:
        ConfigError: none is meant, or more than one.
        ArtifactError: the store does not answer.
    """
    if re.fullmatch("[0-9a-f]{32}", named):
        with _explained(client):
            run = client.get_run(named)
            return RunSummary.of(run, client.get_experiment(run.info.experiment_id).name)
    if not re.fullmatch(f"[0-9a-f]{{{_FEWEST_DIGITS},31}}", named):
        raise ConfigError(
            f"{named!r} names no run. Give the first {_FEWEST_DIGITS} digits of its id or more, which `rankline runs` "
            "shows, or a version that it was exported as, such as movielens@3."
        )
    with _explained(client):
        names = {one.experiment_id: one.name for one in client.search_experiments()}
        runs = client.search_runs(list(names), f"attributes.run_id LIKE '{named}%'", max_results=_MOST_MEANT)
    found = [RunSummary.of(run, names[run.info.experiment_id]) for run in runs]
    if len(found) != 1:
        ids = f": {', '.join(run.short_id for run in found)}" if found else ""
        raise ConfigError(f"{named!r} names {len(found) or 'no'} runs of {client.tracking_uri}{ids}, expected one.")
    return found[0]


def validation_of(client: MlflowClient, run: RunSummary) -> ValidationScores | None:
    """Its validation rows as they were scored; None where it keeps none.

    Raises:
        ArtifactError: they cannot be read.
    """
    with _explained(client), TemporaryDirectory(prefix="rankline-scores-") as directory:
        if FILE not in {Path(file.path).name for file in client.list_artifacts(run.run_id, FOLDER)}:
            return None
        path = client.download_artifacts(run.run_id, f"{FOLDER}/{FILE}", directory)
        return ValidationScores.read(Path(path))


def differences(runs: Sequence[RunSummary]) -> dict[str, list[str]]:
    """Name of a choice → its value in each run, of those that are not the same in all; a dash where a run has none."""
    described = [{**run.params, "data": run.data, "code": run.code, "engine": run.engine} for run in runs]
    names = dict.fromkeys(name for one in described for name in one)
    rows = {name: [one.get(name) or "–" for one in described] for name in names}
    return {name: values for name, values in rows.items() if len(set(values)) > 1}


def titles() -> dict[str, str]:
    """Name of a metric of a model → what people call it."""
    return {**{name: metric.title for name, metric in METRICS.items() if metric.title}, "loss": "loss"}


@contextmanager
def _explained(client: MlflowClient) -> Iterator[None]:
    try:
        yield
    except MlflowException as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise ArtifactError(f"{client.tracking_uri} cannot be read: {reason}.") from None
