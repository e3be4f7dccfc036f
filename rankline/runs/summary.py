"""Summaries of stored runs."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rankline.runs.bench_reports import FIGURES, read_report
from rankline.runs.reader import SHORT_ID, Reader, StoredRun, open_reader
from rankline.runs.store import ENGINE, MEGABYTES, VERSION
from rankline.serving.loadtest.report.report import BenchmarkReport
from rankline.training.evaluation import OBJECTIVES
from rankline.training.evaluation.validation_scores import FILE, FOLDER, ValidationScores
from rankline.training.tracking.config import FAILURE, OWN_ID
from rankline.workflows.core.errors import ArtifactError, ConfigError
from rankline.workflows.core.formatting import quality_figure

_OF_MODEL = "model/valid_"
_MIN_DIGITS = 4
_MAX_LISTED_RUNS = 20  # maximum number of runs listed in a message


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """The summary of a stored run, for tables and comparisons.

    Attributes:
        name: settings that differ from the recipe.
        recipe: name of the experiment.
        duration_s: None while the run is active.
        quality: metrics of the validation rows.
        serving: `FIGURES` of the last benchmark, and megabytes of the last export.
        engine, version: engine and version of the last export; empty if there is none.
        data, code: fingerprints of the training data and the code.
        own_id: id that the run started with, if its store was unreachable then.
        failure: why the run failed; empty unless it did.
        candidates: scores of the models that `auto` compared, with their spread and share in the chosen model.
        called: name by which the user chose the run, such as movielens@3; empty for a run ID.
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
    own_id: str = ""
    failure: str = ""
    candidates: Mapping[str, str] = field(default_factory=dict, repr=False)
    params: Mapping[str, str] = field(default_factory=dict, repr=False)
    called: str = ""

    @classmethod
    def of(cls, run: StoredRun) -> "RunSummary":
        metrics, tags = run.metrics, run.tags
        serving = {name: metrics[f"serving/{name}"] for name in FIGURES if f"serving/{name}" in metrics}
        if MEGABYTES in metrics:
            serving["megabytes"] = metrics[MEGABYTES]
        return cls(
            run_id=run.run_id,
            name=run.name,
            recipe=run.experiment,
            status=run.status,
            started=datetime.fromtimestamp(run.start_ms / 1000, timezone.utc),
            duration_s=(run.end_ms - run.start_ms) / 1000 if run.end_ms else None,
            quality={n.removeprefix(_OF_MODEL): v for n, v in metrics.items() if n.startswith(_OF_MODEL)},
            serving=serving,
            engine=tags.get(ENGINE, ""),
            version=tags.get(VERSION, ""),
            data=tags.get("data", ""),
            code=tags.get("code", ""),
            own_id=tags.get(OWN_ID, ""),
            failure=tags.get(FAILURE, "") if run.status == "FAILED" else "",
            candidates=_candidates(metrics),
            params=run.params,
        )

    @property
    def short_id(self) -> str:
        return self.run_id[:SHORT_ID]

    @property
    def label(self) -> str:
        return self.called or self.short_id

    def active_version(self, active: Mapping[str, str]) -> str:
        """Return the active version that the run trained, such as "movielens 3", or an empty string."""
        return active.get(self.run_id) or active.get(self.own_id, "")

    @property
    def objective(self) -> tuple[str, float] | None:
        """Title and value of the objective, or None if it was not measured."""
        return next(((o.title, self.quality[o.name]) for o in OBJECTIVES if o.name in self.quality), None)

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "started": self.started.isoformat(timespec="seconds")}


def _candidates(metrics: Mapping[str, float]) -> dict[str, str]:
    found = {}
    for name in re.findall(r"compared_(\w+)_spread", " ".join(metrics)):
        prefix = f"compared_{name}_"
        figures = {key.removeprefix(prefix): value for key, value in metrics.items() if key.startswith(prefix)}
        score = next(figures[objective.name] for objective in OBJECTIVES if objective.name in figures)
        share = f", {figures['weight']:.0%} of the model" if figures["weight"] else ""
        found[f"compared: {name}"] = f"{quality_figure(score)} ± {quality_figure(figures['spread'])}{share}"
    return found


def runs_in(store: Reader, recipe: str | None = None, limit: int = 1000) -> list[RunSummary]:
    found = [RunSummary.of(run) for run in store.runs(recipe, limit)]
    if not found and recipe is not None and recipe not in store.experiments():
        raise ConfigError(f"{store.uri} contains no run of {recipe!r}.")
    return found


def find_run(store: Reader, named: str) -> RunSummary:
    if re.fullmatch("[0-9a-f]{32}", named):
        return RunSummary.of(store.run(named))
    if not re.fullmatch(f"[0-9a-f]{{{_MIN_DIGITS},31}}", named):
        raise ConfigError(
            f"{named!r} does not identify a run. Pass at least the first {_MIN_DIGITS} digits of the run ID, as "
            "listed by `rankline runs`, or an exported version, such as movielens@3."
        )
    found = [RunSummary.of(run) for run in store.runs_called(named, _MAX_LISTED_RUNS)]
    if len(found) != 1:
        ids = f": {', '.join(run.short_id for run in found)}" if found else ""
        raise ConfigError(f"expected one run, but {named!r} matches {len(found) or 'no'} runs in {store.uri}{ids}.")
    return found[0]


def find_report(named: str, tracking_uri: str) -> BenchmarkReport:
    path = Path(named)
    if path.exists():
        return BenchmarkReport.read(path)
    if not re.fullmatch(f"[0-9a-f]{{{_MIN_DIGITS},32}}", named):
        raise ArtifactError(
            f"{named} is neither an existing file nor the beginning of an MLflow run ID (at least {_MIN_DIGITS} "
            "hexadecimal digits). Pass a file, or a run ID as listed by `rankline runs`."
        )
    store = open_reader(tracking_uri)
    return read_report(store, find_run(store, named).run_id)


def validation_of(store: Reader, run: RunSummary) -> ValidationScores | None:
    with store.artifact(run.run_id, f"{FOLDER}/{FILE}") as path:
        return ValidationScores.read(path) if path else None


def differences(runs: Sequence[RunSummary]) -> dict[str, list[str]]:
    """Return the settings that differ, each with one value per run, or a dash for runs without the setting."""
    described = [
        {**run.params, **run.candidates, "data": run.data, "code": run.code, "engine": run.engine} for run in runs
    ]
    names = dict.fromkeys(name for one in described for name in one)
    rows = {name: [one.get(name) or "–" for one in described] for name in names}
    return {name: values for name, values in rows.items() if len(set(values)) > 1}
