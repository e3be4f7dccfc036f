"""Read access to MLflow stores, for `runs`, `compare` and `status`.

Importing MLflow takes longer than these commands need for everything else. So stores in a file are queried with SQL, in
tables that MLflow has had since 1.11 (tested with 3.17); servers are queried with MLflow's client.
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote, urlsplit

from rankline.runs.store import existing_file
from rankline.training.tracking.config import OWN_ID
from rankline.training.tracking.errors import reason_of
from rankline.training.tracking.moved import adopt_artifacts
from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.core.tracking_uri import file_of

if TYPE_CHECKING:
    from mlflow.entities import Run

PARENT = "mlflow.parentRunId"
"""Tag of a child run."""
SHORT_ID = 8
"""Number of digits of a run's id that tables show, which suffice to find the run."""
_NAME = "mlflow.runName"
_MAX_IDS = 500  # per statement; old versions of SQLite allow 999 parameters


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """A run in a store. Timestamps are Unix times in ms, and `metrics` contains the last value of each metric."""

    run_id: str
    experiment: str
    status: str
    start_ms: int
    end_ms: int | None
    metrics: Mapping[str, float]
    params: Mapping[str, str]
    tags: Mapping[str, str]

    @property
    def name(self) -> str:
        return self.tags.get(_NAME, "")


def open_reader(uri: str) -> "Reader":
    path = existing_file(uri)
    return _File(uri, path) if path else _Server(uri)


def check_run(uri: str, run_id: str) -> None:
    """Raise `ArtifactError` if the store is a file without this run. Servers are not asked, since they may be down."""
    if file_of(uri):
        open_reader(uri).run(run_id)


class _File:
    def __init__(self, uri: str, path: Path) -> None:
        adopt_artifacts(path)
        self.uri, self._path = uri, path

    def experiments(self) -> list[str]:
        return [name for (name,) in self._ask("SELECT name FROM experiments WHERE lifecycle_stage = 'active'")]

    def runs(self, recipe: str | None, limit: int) -> list[StoredRun]:
        """Return up to `limit` top-level runs, latest first, from the experiment `recipe` or from all experiments."""
        no_part = "NOT EXISTS (SELECT 1 FROM tags WHERE tags.run_uuid = r.run_uuid AND tags.key = ?)"
        of_recipe, values = ("AND e.name = ?", [recipe]) if recipe is not None else ("", [])
        where = f"e.lifecycle_stage = 'active' AND r.lifecycle_stage = 'active' AND {no_part} {of_recipe}"
        return self._found(f"{where} ORDER BY r.start_time DESC, r.run_uuid LIMIT ?", [PARENT, *values, limit])

    def runs_called(self, beginning: str, limit: int) -> list[StoredRun]:
        where = "e.lifecycle_stage = 'active' AND r.lifecycle_stage = 'active' AND r.run_uuid LIKE ? LIMIT ?"
        return self._found(where, [f"{beginning}%", limit])

    def run(self, run_id: str) -> StoredRun:
        # A run that started while the store was unreachable has its own id, which artifacts refer to.
        own = "EXISTS (SELECT 1 FROM tags WHERE tags.run_uuid = r.run_uuid AND tags.key = ? AND tags.value = ?)"
        where = f"r.run_uuid = ? OR r.lifecycle_stage = 'active' AND {own} ORDER BY r.start_time, r.run_uuid"
        if found := self._found(where, [run_id, OWN_ID, run_id]):
            return found[0]
        raise ArtifactError(f"{self.uri} cannot be read: Run with id={run_id} not found.")

    def history(self, run_id: str, names: Sequence[str]) -> dict[str, list[tuple[float, float]]]:
        """Return (step, value) of each metric that the run has, in the order of steps; the last value of a step."""
        where = f"run_uuid = ? AND NOT is_nan AND key IN ({','.join('?' * len(names))}) ORDER BY step, timestamp"
        rows = self._ask(f"SELECT key, step, value FROM metrics WHERE {where}", [run_id, *names])
        return {
            name: list({step: (step, value) for key, step, value in rows if key == name}.values()) for name in names
        }

    @contextmanager
    def artifact(self, run_id: str, path: str) -> Iterator[Path | None]:
        """Yield a run's artifact as a path that is valid inside the `with` block, or None if it does not exist."""
        found = self._ask("SELECT artifact_uri FROM runs WHERE run_uuid = ?", [run_id])
        place = urlsplit(found[0][0]) if found else None
        if place is not None and place.scheme not in ("", "file"):  # artifacts are stored elsewhere
            with _Server(self.uri).artifact(run_id, path) as file:
                yield file
            return
        file = Path(unquote(place.path), path) if place else None
        yield file if file and file.is_file() else None

    def alias(self, model: str, alias: str) -> Mapping[str, str] | None:
        """Return the tags of the registered version that an alias names, or None if there is no such version."""
        versions = self._ask(
            "SELECT version FROM registered_model_aliases WHERE name = ? AND alias = ?", [model, alias]
        )
        tags = "SELECT key, value FROM model_version_tags WHERE name = ? AND version = ?"
        return dict(self._ask(tags, [model, versions[0][0]])) if versions else None

    def _found(self, where: str, values: Sequence[Any]) -> list[StoredRun]:
        rows = self._ask(
            "SELECT r.run_uuid, e.name, r.status, r.start_time, r.end_time, r.name FROM runs r "
            f"JOIN experiments e ON e.experiment_id = r.experiment_id WHERE {where}",
            values,
        )
        ids = [row[0] for row in rows]
        metrics = self._by_run("run_uuid, key, CASE WHEN is_nan THEN NULL ELSE value END FROM latest_metrics", ids)
        params, tags = (self._by_run(f"run_uuid, key, value FROM {table}", ids) for table in ("params", "tags"))
        return [
            StoredRun(
                run_id=run_id,
                experiment=experiment,
                status=status,
                start_ms=start_ms,
                end_ms=end_ms,
                metrics={key: float("nan") if value is None else value for key, value in metrics[run_id].items()},
                params=params[run_id],
                tags={_NAME: name or "", **tags[run_id]},
            )
            for run_id, experiment, status, start_ms, end_ms, name in rows
        ]

    def _by_run(self, what: str, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {run_id: {} for run_id in ids}
        for begin in range(0, len(ids), _MAX_IDS):
            some = ids[begin : begin + _MAX_IDS]
            for run_id, key, value in self._ask(f"SELECT {what} WHERE run_uuid IN ({','.join('?' * len(some))})", some):
                found[run_id][key] = value
        return found

    def _ask(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            with closing(sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True, timeout=30)) as store:
                return store.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise ArtifactError(f"{self.uri} cannot be read: {error}.") from None


class _Server:
    def __init__(self, uri: str) -> None:
        from rankline.training.tracking.upload import client_of

        self.uri, self._client = uri, client_of(uri)

    def experiments(self) -> list[str]:
        return list(self._names().values())

    def runs(self, recipe: str | None, limit: int) -> list[StoredRun]:
        names = {number: name for number, name in self._names().items() if recipe in (None, name)}
        return self._search(names, f"tags.`{PARENT}` IS NULL", limit)

    def runs_called(self, beginning: str, limit: int) -> list[StoredRun]:
        return self._search(self._names(), f"attributes.run_id LIKE '{beginning}%'", limit)

    def run(self, run_id: str) -> StoredRun:
        from rankline.runs.store import stored_id

        with self._explained():
            run = self._client.get_run(stored_id(self._client, run_id))
            return _stored(run, self._client.get_experiment(run.info.experiment_id).name)

    def history(self, run_id: str, names: Sequence[str]) -> dict[str, list[tuple[float, float]]]:
        with self._explained():
            found = {name: self._client.get_metric_history(run_id, name) for name in names}
        return {
            name: sorted({one.step: (float(one.step), one.value) for one in own if isfinite(one.value)}.values())
            for name, own in found.items()
        }

    @contextmanager
    def artifact(self, run_id: str, path: str) -> Iterator[Path | None]:
        with TemporaryDirectory(prefix="rankline-artifact-") as directory:
            with self._explained():
                names = {file.path for file in self._client.list_artifacts(run_id, str(Path(path).parent))}
                found = self._client.download_artifacts(run_id, path, directory) if path in names else None
            yield Path(found) if found else None

    def alias(self, model: str, alias: str) -> Mapping[str, str] | None:
        from mlflow.exceptions import MlflowException

        with self._explained():
            try:
                return dict(self._client.get_model_version_by_alias(model, alias).tags)
            except MlflowException as error:
                if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                    return None
                raise

    def _names(self) -> dict[str, str]:
        with self._explained():
            return {one.experiment_id: one.name for one in self._client.search_experiments()}

    def _search(self, names: Mapping[str, str], where: str, limit: int) -> list[StoredRun]:
        order = ["attributes.start_time DESC"]
        with self._explained():
            found = self._client.search_runs(list(names), where, order_by=order, max_results=limit)
        return [_stored(run, names[run.info.experiment_id]) for run in found]

    @contextmanager
    def _explained(self) -> Iterator[None]:
        from mlflow.exceptions import MlflowException

        try:
            yield
        except MlflowException as error:
            raise ArtifactError(f"{self.uri} cannot be read: {reason_of(error)}.") from None


def _stored(run: "Run", experiment: str) -> StoredRun:
    return StoredRun(
        run_id=run.info.run_id,
        experiment=experiment,
        status=run.info.status,
        start_ms=run.info.start_time,
        end_ms=run.info.end_time,
        metrics=run.data.metrics,
        params=run.data.params,
        tags={_NAME: run.info.run_name or "", **run.data.tags},
    )


Reader: TypeAlias = _File | _Server
