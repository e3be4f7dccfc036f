"""Upload a run's journal to MLflow, during the run or later. Importing MLflow takes seconds."""

import os
import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from mlflow import MlflowClient
from mlflow.entities import (
    Dataset,
    DatasetInput,
    InputTag,
    LifecycleStage,
    LoggedModelOutput,
    LoggedModelStatus,
    Metric,
    Param,
    Run,
    RunTag,
    ViewType,
)
from mlflow.entities import LoggedModel as StoredModel
from mlflow.exceptions import MlflowException
from mlflow.models import Model
from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT, MLFLOW_RUN_NOTE

from rankline.training.tracking.config import OWN_ID, TrackingConfig, artifacts_of
from rankline.training.tracking.errors import reason_of
from rankline.training.tracking.journal import Entry, InUse, Journal, left_in, undelivered
from rankline.training.tracking.moved import adopt_artifacts
from rankline.workflows.core.errors import ArtifactError, ConfigError, RanklineError
from rankline.workflows.core.tracking_uri import VARIABLE, file_of, with_credentials

OPENS_ON_RUNS = {"mlflow.experimentKind": "custom_model_development"}
"""Tag of an experiment that makes MLflow's page open on its runs instead of on traces."""
MODEL = "model"
"""Name of a run's logged model."""
_OWN_ENTRY = "rankline.entry"  # tag of a logged model: its entry in a journal
_RETRIES = "3"  # about ten seconds; MLflow's default of 7 means minutes without any message
_EVERY_S = 5.0
_BATCH = "batch"
_BATCHED = ("metrics", "params", "tags")  # entry kinds that are combined in one request
_MAX_METRICS = 1000  # MLflow's limit per request
_ANSWERS_LATER = ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED")


def client_of(uri: str) -> MlflowClient:
    """Return a client that fails within seconds if the server does not respond. A missing file store is created."""
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # it would overwrite a progress bar
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", _RETRIES)
    if file := file_of(uri):
        if file.exists():
            adopt_artifacts(file)
        else:
            _make_store(file)
    try:
        return MlflowClient(tracking_uri=with_credentials(uri))
    except Exception as error:  # MLflow, SQLAlchemy and drivers raise arbitrary exceptions
        raise ConfigError(
            f"MLflow cannot open the store {uri!r}: {reason_of(error)}. Set {VARIABLE} to http://HOST:PORT, "
            "sqlite:////PATH/mlflow.db or the URI of another database."
        ) from None


def _make_store(file: Path) -> None:
    """Create an empty store atomically, because MLflow rejects an incomplete store left by a killed process."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".mlflow-", dir=file.parent) as scratch:
        made = Path(scratch) / file.name
        MlflowClient(tracking_uri=f"sqlite:///{made}").search_experiments(max_results=1)
        with suppress(FileExistsError):  # another process was first
            os.link(made, file)


def experiment_id(client: MlflowClient, config: TrackingConfig) -> str:
    experiment = client.get_experiment_by_name(config.experiment)
    if experiment is None:
        # A server chooses the location of artifacts itself.
        location = None if config.server else artifacts_of(config.directory.resolve()).as_uri()
        return str(client.create_experiment(config.experiment, artifact_location=location, tags=OPENS_ON_RUNS))
    if experiment.lifecycle_stage == LifecycleStage.DELETED:
        raise ConfigError(
            f"experiment {config.experiment!r} was deleted in {config.uri}. "
            f"Restore it: {VARIABLE}={shlex.quote(config.uri)} mlflow experiments restore -x {experiment.experiment_id}"
        )
    return str(experiment.experiment_id)


def stored_run(client: MlflowClient, run_id: str) -> Run | None:
    """Return the run with the given MLflow or journal id, or None if it does not exist or was deleted."""
    try:
        run = client.get_run(run_id)
        return run if run.info.lifecycle_stage == LifecycleStage.ACTIVE else None
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
    experiments = [one.experiment_id for one in client.search_experiments(view_type=ViewType.ACTIVE_ONLY)]
    return next(iter(_runs_called(client, experiments, run_id)), None)


def _runs_called(client: MlflowClient, experiments: list[str], own_id: str) -> list[Run]:
    """Return a journal's runs in a fixed order, so that all callers pick the same first run."""
    return list(
        client.search_runs(
            experiments, f"tags.`{OWN_ID}` = '{own_id}'", order_by=["attributes.start_time", "attributes.run_id"]
        )
    )


class Delivery:
    """Uploads a journal's entries to a store in order. The upload can be retried safely.

    A response can be lost after the store has processed the request, so uploads must be idempotent. A metric is
    identified by name, step, time and value, which MLflow's database stores once (its primary key), and the times come
    from the journal. Parameters and tags are identified by name, files by path, datasets by name and digest. A remark
    is searched for in the description. A run or a logged model has a tag that identifies its entry, and is searched for
    before it is created. If a delayed first request nevertheless creates a second run, this one is deleted at the end.
    """

    def __init__(self, journal: Journal, goes_on: Callable[[], bool] = lambda: True) -> None:
        self._journal, self._goes_on = journal, goes_on
        self._at = journal.delivered
        self._params: set[str] | None = None
        self._client: MlflowClient | None = None
        self.is_reopened = False
        """Whether the run already existed when it was opened."""
        self.start_ms = 0
        """Start of the run; 0 if not known yet."""
        self.has_ended = False
        """Whether the last uploaded entry is the end of the run."""

    @property
    def run_id(self) -> str:
        return self._at.run_id

    @property
    def end(self) -> int:
        """End of the last uploaded entry, as a position in the journal."""
        return self._at.end

    def step(self) -> None:
        self._journal.sync()
        while entries := list(self._journal.read(self._at.end)):
            for kind, several in groupby(entries, lambda entry: _BATCH if entry.kind in _BATCHED else entry.kind):
                for some in _chunks(list(several)) if kind == _BATCH else ([entry] for entry in several):
                    if not self._goes_on():
                        return
                    self._deliver(kind, some)
                    self._at = self._at._replace(end=some[-1].end, failure="")
                    self._journal.note_delivered(self._at)
                    self.has_ended = kind == "end"

    def note_failure(self, error: Exception) -> None:
        self._at = self._at._replace(failure=reason_of(error))
        with suppress(OSError):  # on a full disk, only the reason is lost
            self._journal.note_delivered(self._at)

    def _deliver(self, kind: str, entries: list[Entry]) -> None:
        first = entries[0]
        match kind:
            case "open":
                self._open(first.content)
            case "remark":
                self._add_remark(self.run_id, first.content["text"])
            case "dataset":
                self._log_dataset(first)
            case "artifact":
                self._log_artifact(first)
            case "model":
                self._log_model(first)
            case "end":
                self._end(first)
            case _:
                self._log_batch(entries)

    @property
    def _store(self) -> MlflowClient:
        """Client of the store in which the run was last opened."""
        if self._client is None:
            entries = (entry for entry in self._journal.read() if entry.end <= self._at.end)
            *_, opening = (entry for entry in entries if entry.kind == "open")
            self._client = client_of(_config_of(self._journal, opening.content).uri)
        return self._client

    def _open(self, opening: Mapping[str, Any]) -> None:
        client = self._client = client_of(_config_of(self._journal, opening).uri)
        known = self.run_id or opening["resumed"]
        if run := stored_run(client, known) if known else None:
            client.update_run(run.info.run_id, status="RUNNING")
            self.is_reopened = True
        else:
            run = self._new_run(client, opening)
            if known:
                self._add_remark(run.info.run_id, f"Continues run {known}, which no longer exists.")
        self._params, self.start_ms = set(run.data.params), run.info.start_time
        self._at = self._at._replace(run_id=run.info.run_id)

    def _new_run(self, client: MlflowClient, opening: Mapping[str, Any]) -> Run:
        config = _config_of(self._journal, opening)
        experiment = experiment_id(client, config)
        if found := _runs_called(client, [experiment], self._journal.id):
            return found[0]
        tags = {**opening["tags"], OWN_ID: self._journal.id}
        return client.create_run(experiment, start_time=opening["start_ms"], tags=tags, run_name=config.run_name)

    def _log_batch(self, entries: Iterable[Entry]) -> None:
        metrics, params, tags = list[Metric](), dict[str, str](), list[RunTag]()
        for entry in entries:
            values = entry.content["values"]
            if entry.kind == "metrics":
                metrics += self._metrics(entry.content)
            elif entry.kind == "params":
                params |= {name: value for name, value in values.items() if name not in {*params, *self._known_params}}
            else:
                tags += [RunTag(name, value) for name, value in values.items()]
        self._store.log_batch(self.run_id, metrics, [Param(name, value) for name, value in params.items()], tags)
        self._known_params.update(params)

    @property
    def _known_params(self) -> set[str]:
        """Names of the parameters already stored, which a resumed run must not overwrite."""
        if self._params is None:
            self._params = set(self._store.get_run(self.run_id).data.params)
        return self._params

    def _metrics(self, content: Mapping[str, Any]) -> Iterator[Metric]:
        of_model: dict[str, Any] = {}
        if content["of_model"]:
            datasets = (entry.content for entry in self._journal.read() if entry.kind == "dataset")
            valid = next((one for one in datasets if one["split"] == "valid"), {})
            of_model = {"dataset_name": valid.get("name"), "dataset_digest": valid.get("digest")}
            of_model["model_id"] = self._last_model()
        for name, value in content["values"].items():
            yield Metric(name, value, content["ms"], content["step"], run_id=self.run_id, **of_model)

    def _add_remark(self, run_id: str, text: str) -> None:
        before = self._store.get_run(run_id).data.tags.get(MLFLOW_RUN_NOTE, "")
        if text not in before:
            self._store.set_tag(run_id, MLFLOW_RUN_NOTE, f"{before} {text}".strip())

    def _log_dataset(self, entry: Entry) -> None:
        fields = dict(entry.content)
        context = InputTag(MLFLOW_DATASET_CONTEXT, fields.pop("split"))
        self._store.log_inputs(self.run_id, [DatasetInput(Dataset(**fields), [context])])

    def _log_artifact(self, entry: Entry) -> None:
        path = self._journal.directory / entry.content["path"]
        if path.is_dir():
            self._store.log_artifacts(self.run_id, str(path), path.name)
        else:
            self._store.log_artifact(self.run_id, str(path))

    def _log_model(self, entry: Entry) -> None:
        directory, called = self._journal.directory / entry.content["path"], entry.content["path"]
        stored = self._found_model(called) or self._new_model(called)
        if stored.status == LoggedModelStatus.READY:
            return
        model = Model.load(directory)
        model.run_id, model.model_id, model.model_uuid = self.run_id, stored.model_id, stored.model_id
        model.artifact_path = stored.artifact_location
        model.save(directory / "MLmodel")
        outputs = self._store.get_run(self.run_id).outputs
        if stored.model_id not in {one.model_id for one in (outputs.model_outputs if outputs else [])}:
            self._store.log_outputs(self.run_id, [LoggedModelOutput(stored.model_id, step=0)])
        self._store.log_model_artifacts(stored.model_id, str(directory))
        self._store.finalize_logged_model(stored.model_id, LoggedModelStatus.READY)

    def _new_model(self, called: str) -> StoredModel:
        run = self._store.get_run(self.run_id)
        return self._store.create_logged_model(
            run.info.experiment_id,
            name=MODEL,
            source_run_id=self.run_id,
            params=run.data.params,
            tags={_OWN_ENTRY: self._mark(called)},
        )

    def _found_model(self, called: str) -> StoredModel | None:
        experiment = self._store.get_run(self.run_id).info.experiment_id
        found = self._store.search_logged_models(
            [experiment], f"source_run_id = '{self.run_id}' AND tags.`{_OWN_ENTRY}` = '{self._mark(called)}'"
        )
        return found[0] if found else None

    def _last_model(self) -> str | None:
        logged = [entry.content["path"] for entry in self._journal.read() if entry.kind == "model"]
        found = self._found_model(logged[-1]) if logged else None
        return found.model_id if found else None

    def _mark(self, called: str) -> str:
        return f"{self._journal.id}/{called}"

    def _end(self, entry: Entry) -> None:
        experiment = self._store.get_run(self.run_id).info.experiment_id
        for run in _runs_called(self._store, [experiment], self._journal.id):
            if run.info.run_id != self.run_id:
                self._store.delete_run(run.info.run_id)
        self._store.set_terminated(self.run_id, entry.content["status"], entry.content["ms"])


class Deliverer:
    """Uploads a journal in a background thread while the run writes it, without blocking the run.

    At the end the thread closes the journal, or deletes it if the store has all entries.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal, self._is_abandoned = journal, False
        self._delivery = Delivery(journal, lambda: not self._is_abandoned)
        self._wake, self._is_leaving = threading.Event(), False
        self._tried = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="tracking", daemon=True)
        self._thread.start()

    def opened(self, limit_s: float | None) -> Delivery:
        """Wait up to `limit_s` for the first attempt to create the run in the store. Raise if the store rejected it."""
        self._tried.wait(limit_s)
        failure = self._failure
        if failure is not None and not self._delivery.run_id and not is_transient(failure):
            self._is_abandoned = True
            self.finish()
            Journal(self._journal.directory).remove()
            if isinstance(failure, RanklineError):
                raise failure
            raise ArtifactError(f"the store rejected the run: {reason_of(failure)}.") from None
        return self._delivery

    def finish(self, limit_s: float | None = None) -> None:
        """Upload the remaining entries. Stop when no entry could be uploaded for `limit_s` seconds."""
        self._is_leaving = True
        self._wake.set()
        before = -1
        while self._thread.is_alive() and self._delivery.end != before:
            before = self._delivery.end
            self._thread.join(limit_s)
        self._is_abandoned = True

    def _run(self) -> None:
        while True:
            is_last = self._is_leaving
            try:
                self._delivery.step()
                self._failure = None
            except Exception as error:  # the run must continue; the entries stay in the journal
                self._failure = error
                self._delivery.note_failure(error)
            self._tried.set()
            if is_last or self._is_abandoned:
                break
            self._wake.wait(_EVERY_S)
        if self._delivery.has_ended and not self._failure:
            self._journal.remove()
        else:
            self._journal.close()


class Outcome(NamedTuple):
    """The result of uploading a leftover journal."""

    directory: Path
    uri: str
    run_id: str
    failure: str

    @property
    def words(self) -> str:
        if self.failure:
            return undelivered(self.directory, self.failure)
        return f"run {self.run_id} is in {self.uri}" if self.run_id else f"{self.directory} was empty"


def deliver_left(journals: Path) -> Iterator[Outcome]:
    """Upload the journals left by finished or interrupted runs, and yield the outcome of each.

    A run that was interrupted is marked as KILLED; it can still be resumed.
    """
    for left in left_in(journals):
        try:
            journal = Journal(left.directory)
        except InUse:  # the run is still active
            continue
        except ArtifactError as error:
            yield Outcome(left.directory, "", left.delivered.run_id, str(error))
            continue
        yield _deliver(journal)


def _deliver(journal: Journal) -> Outcome:
    entries = list(journal.read())
    if not entries:  # the run was interrupted before its first entry
        journal.remove()
        return Outcome(journal.directory, "", "", "")
    uri, delivery, failure = _config_of(journal, entries[0].content).uri, Delivery(journal), ""
    if entries[-1].kind != "end":
        last_ms = max(int(entry.content.get("ms") or entry.content.get("start_ms") or 0) for entry in entries)
        journal.append("end", status="KILLED", ms=last_ms)
    try:
        delivery.step()
        journal.remove()
    except (MlflowException, RanklineError, OSError) as error:
        delivery.note_failure(error)
        journal.close()
        failure = reason_of(error)
    return Outcome(journal.directory, uri, delivery.run_id, failure)


def is_transient(error: Exception) -> bool:
    """Whether the error may be temporary, such as a server error or a missing response."""
    if isinstance(error, MlflowException):
        return error.error_code in _ANSWERS_LATER
    return isinstance(error, OSError)


def _config_of(journal: Journal, opening: Mapping[str, Any]) -> TrackingConfig:
    """Return the tracking config saved in a journal, with the journal's work directory as its directory."""
    return TrackingConfig.from_dict(opening["config"], journal.directory.parents[1])


def _chunks(entries: list[Entry]) -> Iterator[list[Entry]]:
    some, count = list[Entry](), 0
    for entry in entries:
        if some and count + len(entry.content["values"]) > _MAX_METRICS:
            yield some
            some, count = [], 0
        some.append(entry)
        count += len(entry.content["values"])
    if some:
        yield some
