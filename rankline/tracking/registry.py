"""Versions of an ensemble in MLflow's model registry: everything that answers and what speaks for it, as one.

A registered version is a logged model of the run that trained it:

    MLmodel                `mlflow.pyfunc.load_model` scores raw rows with it
    ensemble/              the version, as a model repository holds it, with its manifest
    feature_spec.yaml      of the data that it was trained on
    parity.json            how served and offline results were compared
    bench/                 the report of its last benchmark

It becomes a version of the registered model only when all of that is in the store, so an alias never names half of one.
"""

import json
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlflow.artifacts
from mlflow import MlflowClient
from mlflow.entities import LoggedModelStatus, RunStatus
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.models import Model

from rankline.tracking.exports import CHAMPION as CHAMPION
from rankline.tracking.exports import ENGINE, VERSION
from rankline.tracking.reading import open_reader
from rankline.tracking.reports import read_report
from rankline.tracking.store import directory_of, reason_of, stored_id
from serving.ensemble import ExportedEnsemble
from training.tracking import TrackingConfig
from training.tracking.delivery import experiment_id
from workflows.artifacts import MANIFEST
from workflows.errors import ArtifactError
from workflows.feature_spec import FILE_NAME
from workflows.words import quality_figure

CANDIDATE = "candidate"
"""Alias of the version that was registered last."""
ENSEMBLE = "ensemble"
_FINGERPRINT = "fingerprint"
_LOADER = "rankline.tracking.loading"
_NO_SUCH = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")  # a model of that name, an alias of it
_THERE_ALREADY = "RESOURCE_ALREADY_EXISTS"


class RegistryError(ArtifactError):
    """The registry does not answer, or does not take what it is given."""


@dataclass(frozen=True, kw_only=True)
class RegisteredVersion:
    """A version of a registered model.

    Attributes:
        name: of the model, which is that of the ensemble.
        number: MLflow's number of the version.
        version: the ensemble's own; 0 where it is not one of Rankline's.
        fingerprint: of its manifest; empty where it is not one of Rankline's.
    """

    name: str
    number: int
    version: int
    fingerprint: str

    @classmethod
    def of(cls, found: ModelVersion) -> "RegisteredVersion":
        """What MLflow says of one."""
        name, _, version = found.tags.get(VERSION, "").rpartition(" ")
        is_ours = name == found.name and version.isdecimal()
        return cls(
            name=found.name,
            number=int(found.version),
            version=int(version) if is_ours else 0,
            fingerprint=found.tags.get(_FINGERPRINT, "") if is_ours else "",
        )

    @property
    def words(self) -> str:
        """Such as: movielens version 3, registered as 2."""
        return f"{self.name} version {self.version}, registered as {self.number}"


class Registry:
    """The registry of an MLflow store.

    Args:
        client: of the store.
    """

    def __init__(self, client: MlflowClient) -> None:
        self._client = client

    def register(self, ensemble: ExportedEnsemble) -> RegisteredVersion:
        """Put a version into the registry, as `CANDIDATE`; one that is in it already is left as it is.

        Args:
            ensemble: the version; its files are checked first.

        Raises:
            ArtifactError: a file is damaged, or the run that trained it failed, was killed or is gone.
            RegistryError: the store does not take it.
        """
        with self._explained(f"{ensemble.name} version {ensemble.version} was not registered"):
            if found := self._find(ensemble):
                return found
            ensemble.check_files()
            experiment, run_id = self._origin(ensemble)
            with TemporaryDirectory(prefix="rankline-register-") as directory:
                self._fill(Path(directory), ensemble, run_id)
                source, model_id = self._upload(Path(directory), experiment, run_id)
            self._make_model(ensemble.name)
            made = self._client.create_model_version(
                ensemble.name,
                source=source,
                run_id=run_id or None,
                model_id=model_id if run_id else None,  # MLflow 3.17 would look for its run in another store
                tags={
                    VERSION: f"{ensemble.name} {ensemble.version}",
                    _FINGERPRINT: ensemble.manifest.fingerprint,
                    ENGINE: str(ensemble.manifest.details[ENGINE]),
                },
                description=_description(ensemble),
            )
            registered = RegisteredVersion.of(made)
            self.move(CANDIDATE, registered)
            return registered

    def at(self, name: str, alias: str) -> RegisteredVersion | None:
        """The version that an alias names; None if it names none, or there is no such model.

        Raises:
            RegistryError: the store does not answer.
        """
        with self._explained(f"models:/{name}@{alias} cannot be looked up"):
            try:
                return RegisteredVersion.of(self._client.get_model_version_by_alias(name, alias))
            except MlflowException as error:
                if error.error_code in _NO_SUCH:
                    return None
                raise

    def numbered(self, name: str, number: int) -> RegisteredVersion:
        """A version by MLflow's number.

        Raises:
            RegistryError: there is none, or the store does not answer.
        """
        with self._explained(f"models:/{name}/{number} cannot be looked up"):
            return RegisteredVersion.of(self._client.get_model_version(name, str(number)))

    def move(self, alias: str, to: RegisteredVersion) -> None:
        """Let an alias name a version; a champion is no candidate any more.

        Raises:
            RegistryError: the store does not take it.
        """
        with self._explained(f"alias {alias!r} was not moved to {to.words}"):
            self._client.set_registered_model_alias(to.name, alias, str(to.number))
            if alias == CHAMPION and self.at(to.name, CANDIDATE) == to:
                self._client.delete_registered_model_alias(to.name, CANDIDATE)

    def download(self, registered: RegisteredVersion, directory: Path) -> Path:
        """Fetch a version's files.

        Args:
            registered: what to fetch.
            directory: gets them.

        Returns:
            What holds them as a model repository does. Nothing of it is checked.

        Raises:
            RegistryError: the store does not answer, or has none of its files.
        """
        with self._explained(f"models:/{registered.name}/{registered.number} cannot be fetched"):
            uri = self._client.get_model_version_download_uri(registered.name, str(registered.number))
            path = mlflow.artifacts.download_artifacts(
                artifact_uri=f"{uri.rstrip('/')}/{ENSEMBLE}",
                dst_path=str(directory),
                tracking_uri=self._client.tracking_uri,
            )
        return Path(path)

    def _find(self, ensemble: ExportedEnsemble) -> RegisteredVersion | None:
        found = self._client.search_model_versions(
            f"name = '{ensemble.name}' and tags.{_FINGERPRINT} = '{ensemble.manifest.fingerprint}'"
        )
        return RegisteredVersion.of(found[0]) if found else None

    def _origin(self, ensemble: ExportedEnsemble) -> tuple[str, str]:
        """Experiment, and run that trained the model; no run where that was elsewhere."""
        uri = self._client.tracking_uri
        if ensemble.run_id and ensemble.tracking_uri == uri:
            run = self._client.get_run(stored_id(self._client, ensemble.run_id))
            if run.info.status != RunStatus.to_string(RunStatus.FINISHED) or run.info.lifecycle_stage != "active":
                state = "was deleted" if run.info.lifecycle_stage != "active" else f"is {run.info.status}"
                raise ArtifactError(
                    f"{ensemble.name} version {ensemble.version} was not registered: MLflow run {ensemble.run_id}, "
                    f"which trained it, {state}, expected FINISHED. Train and export again."
                )
            return str(run.info.experiment_id), str(run.info.run_id)
        directory = directory_of(uri)
        config = TrackingConfig(
            directory=directory or Path(), experiment=ensemble.name, server=None if directory else uri
        )
        return experiment_id(self._client, config), ""

    def _fill(self, directory: Path, ensemble: ExportedEnsemble, run_id: str) -> None:
        """What belongs to a version; its own files as links, since tables may be large."""
        manifest = f"{ensemble.name}/{ensemble.version}/{MANIFEST}"
        for name in (*ensemble.manifest.files, manifest):
            link = directory / ENSEMBLE / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to((ensemble.path / name).resolve())
        parity = ensemble.manifest.details["parity"]
        (directory / "parity.json").write_text(json.dumps(parity, indent=2) + "\n", encoding="utf-8")
        if run_id:
            self._client.download_artifacts(run_id, FILE_NAME, str(directory))
            self._copy_report(directory, ensemble, run_id)
        model = Model(run_id=run_id or None)
        model.add_flavor(
            "python_function", loader_module=_LOADER, data=ENSEMBLE, python_version=platform.python_version()
        )
        model.save(directory / "MLmodel")

    def _copy_report(self, directory: Path, ensemble: ExportedEnsemble, run_id: str) -> None:
        """The run's benchmark, if it is of this version."""
        try:
            report = read_report(open_reader(self._client.tracking_uri), run_id)
        except ArtifactError:  # it was not measured
            return
        if report.version == ensemble.version:
            (directory / "bench").mkdir()
            (directory / "bench" / "bench.json").write_text(report.to_json(), encoding="utf-8")

    def _upload(self, directory: Path, experiment: str, run_id: str) -> tuple[str, str]:
        """Where the files lie, and the id of the logged model that they are."""
        model = self._client.create_logged_model(
            experiment, name=ENSEMBLE, source_run_id=run_id or None, model_type=ENSEMBLE
        )
        try:
            self._client.log_model_artifacts(model.model_id, str(directory))
        except BaseException:
            self._client.finalize_logged_model(model.model_id, LoggedModelStatus.FAILED)
            raise
        self._client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
        return str(model.artifact_location), str(model.model_id)

    def _make_model(self, name: str) -> None:
        try:
            self._client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != _THERE_ALREADY:
                raise

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except (MlflowException, OSError) as error:
            raise RegistryError(f"{what}, in {self._client.tracking_uri}: {reason_of(error)}.") from None


def _description(ensemble: ExportedEnsemble) -> str:
    """What MLflow's page of a version shows."""
    details: dict[str, Any] = dict(ensemble.manifest.details)
    figures = ", ".join(f"{name} {quality_figure(value)}" for name, value in ensemble.offline_metrics.items())
    return f"Engine {details[ENGINE]}; parity on {details['parity']['num_rows']:,} rows. {figures}".strip()
