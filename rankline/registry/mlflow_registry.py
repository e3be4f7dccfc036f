"""Versions of an ensemble in MLflow's model registry, each with its spec, parity report and benchmark report.

A registered version is a logged model of the run that trained it:

    MLmodel                metadata with which `mlflow.pyfunc.load_model` loads the version to score raw rows
    requirements.txt, …    the environment that `mlflow models serve` creates for it
    ensemble/              the version with its manifest, in the layout of a model repository
    feature_spec.yaml      feature spec of the training data
    parity.json            comparison of served and offline results
    bench/                 report of its last benchmark

The model version is created only once all files are in the store, so an alias never names an incomplete version.
"""

import hashlib
import json
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import packages_distributions, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlflow.artifacts
import mlflow.pyfunc
import yaml
from mlflow import MlflowClient
from mlflow.entities import LoggedModelStatus, RunStatus
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from mlflow.types import ColSpec, Schema
from mlflow.types.schema import AnyType

from rankline.runs.bench_reports import read_report
from rankline.runs.reader import open_reader
from rankline.runs.store import CHAMPION, ENGINE, VERSION, stored_id
from rankline.serving.client import ModelSchema
from rankline.serving.engines import engines
from rankline.serving.export.config import ExportConfig
from rankline.serving.repository.ensemble import ExportedEnsemble, add_version, versions
from rankline.training.tracking import TrackingConfig, quiet
from rankline.training.tracking.errors import reason_of
from rankline.training.tracking.upload import experiment_id
from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.core.formatting import quality_figure
from rankline.workflows.core.tracking_uri import file_of, without_credentials
from rankline.workflows.schema.feature_spec import FILE_NAME
from rankline.workflows.storage.artifacts import MANIFEST
from rankline.workflows.storage.atomic import staging_for

CANDIDATE = "candidate"
"""Alias of the most recently registered version."""
ENSEMBLE = "ensemble"
_FINGERPRINT, _INPUTS = "fingerprint", "inputs"
_LOADER = "rankline.registry.pyfunc"
_NO_SUCH = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")  # for an unknown model and for an unknown alias
_THERE_ALREADY = "RESOURCE_ALREADY_EXISTS"


class RegistryError(ArtifactError):
    pass


@dataclass(frozen=True, kw_only=True)
class RegisteredVersion:
    """A version of a registered model.

    Attributes:
        number: MLflow's version number.
        version: the ensemble's own version number; 0 if Rankline did not register it.
        fingerprint: fingerprint of the manifest; empty if Rankline did not register it.
    """

    name: str
    number: int
    version: int
    fingerprint: str

    @classmethod
    def of(cls, found: ModelVersion) -> "RegisteredVersion":
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
        """A short description, such as "movielens version 3, registered as 2"."""
        return f"{self.name} version {self.version}, registered as {self.number}"


class Registry:
    def __init__(self, client: MlflowClient) -> None:
        self._client, self._uri = client, without_credentials(client.tracking_uri)

    def register(self, ensemble: ExportedEnsemble) -> RegisteredVersion:
        """Register a version as `CANDIDATE`. A version that is already registered stays unchanged."""
        with self._explained(f"{ensemble.name} version {ensemble.version} was not registered"):
            if found := self._find(ensemble):
                return found
            self._refuse_other_project(ensemble)
            ensemble.check_files()
            experiment, run_id = self._origin(ensemble)
            with TemporaryDirectory(prefix="rankline-register-") as directory:
                self._fill(Path(directory), ensemble, run_id)
                source, model_id = self._upload(Path(directory), experiment, run_id)
            self._make_model(ensemble.name)
            with quiet():
                made = self._client.create_model_version(
                    ensemble.name,
                    source=source,
                    run_id=run_id or None,
                    model_id=model_id if run_id else None,  # without a run, MLflow 3.17 looks in another store
                    tags={
                        VERSION: f"{ensemble.name} {ensemble.version}",
                        _FINGERPRINT: ensemble.manifest.fingerprint,
                        ENGINE: str(ensemble.manifest.details[ENGINE]),
                        _INPUTS: _inputs(ensemble),
                    },
                    description=_description(ensemble),
                )
            registered = RegisteredVersion.of(made)
            self.move(CANDIDATE, registered)
            return registered

    def at(self, name: str, alias: str) -> RegisteredVersion | None:
        """Return the version that an alias names, or None if there is no such alias or model."""
        with self._explained(f"models:/{name}@{alias} cannot be looked up"):
            try:
                return RegisteredVersion.of(self._client.get_model_version_by_alias(name, alias))
            except MlflowException as error:
                if error.error_code in _NO_SUCH:
                    return None
                raise

    def numbered(self, name: str, number: int) -> RegisteredVersion:
        """Return the version with MLflow's version number `number`."""
        with self._explained(f"models:/{name}/{number} cannot be looked up"):
            return RegisteredVersion.of(self._client.get_model_version(name, str(number)))

    def move(self, alias: str, to: RegisteredVersion) -> None:
        """Point an alias at a version. A version that becomes champion loses the alias candidate."""
        with self._explained(f"alias {alias!r} was not moved to {to.words}"):
            self._client.set_registered_model_alias(to.name, alias, str(to.number))
            if alias == CHAMPION and self.at(to.name, CANDIDATE) == to:
                self._client.delete_registered_model_alias(to.name, CANDIDATE)

    def download(self, registered: RegisteredVersion, directory: Path) -> Path:
        """Download a version to `directory` in the layout of a model repository. The files are not verified."""
        with self._explained(f"models:/{registered.name}/{registered.number} cannot be downloaded"):
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

    def _refuse_other_project(self, ensemble: ExportedEnsemble) -> None:
        found = self._client.search_model_versions(f"name = '{ensemble.name}'")
        own = {version.manifest.fingerprint for version in versions(ensemble.path)}
        if not found or any(one.tags.get(_FINGERPRINT) in own for one in found):
            return
        newest = max(found, key=lambda one: int(one.version))
        is_ours = _FINGERPRINT in newest.tags
        if not is_ours or newest.tags.get(_INPUTS, _inputs(ensemble)) != _inputs(ensemble):
            origin = "another project, whose requests have different columns" if is_ours else "another program"
            raise ArtifactError(
                f"the registered model {ensemble.name!r} in {self._uri} belongs to {origin}. Rename or delete it in "
                "MLflow, or export under another name."
            )

    def _origin(self, ensemble: ExportedEnsemble) -> tuple[str, str]:
        """Return the ids of the model's experiment and run. The run id is empty if the model was trained elsewhere."""
        uri = self._uri
        if ensemble.run_id and ensemble.tracking_uri == uri:
            run = self._client.get_run(stored_id(self._client, ensemble.run_id))
            is_deleted = run.info.lifecycle_stage != "active"
            if is_deleted or run.info.status != RunStatus.to_string(RunStatus.FINISHED):
                state = "was deleted" if is_deleted else f"has status {run.info.status} instead of FINISHED"
                raise ArtifactError(
                    f"{ensemble.name} version {ensemble.version} was not registered because MLflow run "
                    f"{ensemble.run_id}, which trained the model, {state}. Train and export again."
                )
            return str(run.info.experiment_id), str(run.info.run_id)
        file = file_of(uri)
        directory, server = (file.parent, None) if file else (Path(), uri)
        config = TrackingConfig(directory=directory, experiment=ensemble.name, server=server)
        return experiment_id(self._client, config), ""

    def _fill(self, directory: Path, ensemble: ExportedEnsemble, run_id: str) -> None:
        """Write a registered version's files, symlinking the ensemble because embedding tables may be large."""
        manifest = f"{ensemble.name}/{ensemble.version}/{MANIFEST}"
        for name in (*ensemble.manifest.files, manifest):
            link = directory / ENSEMBLE / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to((ensemble.path / name).resolve())
        parity = ensemble.manifest.details["parity"]
        (directory / "parity.json").write_text(json.dumps(parity, indent=2) + "\n", encoding="utf-8")
        if run_id:
            if not any(one.path == FILE_NAME for one in self._client.list_artifacts(run_id)):
                place = self._client.get_run(run_id).info.artifact_uri
                raise RegistryError(
                    f"{ensemble.name} version {ensemble.version} was not registered because the artifacts of MLflow "
                    f"run {run_id} in {place} do not include {FILE_NAME}. Restore the file, or train and export again."
                )
            self._client.download_artifacts(run_id, FILE_NAME, str(directory))
            self._copy_report(directory, ensemble, run_id)
        model = Model(run_id=run_id or None, signature=_signature(ensemble))
        _write_environment(directory, ensemble)
        mlflow.pyfunc.add_to_model(
            model, loader_module=_LOADER, data=ENSEMBLE, conda_env="conda.yaml", python_env="python_env.yaml"
        )
        model.save(directory / "MLmodel")

    def _copy_report(self, directory: Path, ensemble: ExportedEnsemble, run_id: str) -> None:
        try:
            report = read_report(open_reader(self._uri), run_id)
        except ArtifactError:  # the version was not benchmarked
            return
        if report.version == ensemble.version:
            (directory / "bench").mkdir()
            (directory / "bench" / "bench.json").write_text(report.to_json(), encoding="utf-8")

    def _upload(self, directory: Path, experiment: str, run_id: str) -> tuple[str, str]:
        """Upload the files, and return their location and the ID of the logged model."""
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
            raise RegistryError(f"{what}, in {self._uri}: {reason_of(error)}.") from None


def _signature(ensemble: ExportedEnsemble) -> ModelSignature:
    """Return the MLflow signature: the raw input columns and whether each is required.

    The ensemble accepts any type that can hold a column's values.
    """
    columns = ModelSchema.from_config(ensemble.model_config).columns
    any_type: Any = AnyType  # has no annotations
    inputs: list[Any] = [ColSpec(any_type(), column.name, required=column.is_required) for column in columns]
    return ModelSignature(inputs=Schema(inputs))


def _write_environment(directory: Path, ensemble: ExportedEnsemble) -> None:
    """Write the files from which MLflow creates pip, virtualenv and conda environments."""
    python = platform.python_version()
    engine = engines().get(ensemble.manifest.details[ENGINE])
    needed = ["rankline", "mlflow", *packages_distributions().get(engine.module if engine else "", [])]
    pip = [f"{name}=={version(name)}" for name in needed]
    (directory / "requirements.txt").write_text("\n".join(pip) + "\n", encoding="utf-8")
    environments: dict[str, Any] = {
        "python_env.yaml": {"python": python, "build_dependencies": ["pip"], "dependencies": ["-r requirements.txt"]},
        "conda.yaml": {
            "name": "mlflow-env",
            "channels": ["conda-forge"],
            "dependencies": [f"python={python}", "pip", {"pip": pip}],
        },
    }
    for name, content in environments.items():
        (directory / name).write_text(yaml.safe_dump(content), encoding="utf-8")


def _inputs(ensemble: ExportedEnsemble) -> str:
    """Return a digest of the input names, because the names themselves may be too long for a tag."""
    names = sorted(one.name for one in ensemble.model_config.input)
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:12]


def _description(ensemble: ExportedEnsemble) -> str:
    details: dict[str, Any] = dict(ensemble.manifest.details)
    figures = ", ".join(f"{name} {quality_figure(value)}" for name, value in ensemble.offline_metrics.items())
    return f"Engine {details[ENGINE]}; parity on {details['parity']['num_rows']:,} rows. {figures}".strip()


def ensure_downloaded(
    registry: Registry, wanted: RegisteredVersion, path: Path, report: Callable[[str], None]
) -> ExportedEnsemble:
    """Return a registered version from the model repository, downloading it first if necessary.

    Its files are verified against the manifest, and the manifest against the registry.
    """
    if not wanted.fingerprint:
        raise ArtifactError(
            f"version {wanted.number} of the registered model {wanted.name!r} is not an ensemble with that name. "
            "Choose a version registered by `rankline register`."
        )
    if found := _there(wanted, path):
        found.check_files()
        return found
    with staging_for(path.resolve()) as directory:
        report(f"fetching {wanted.words}")
        source = registry.download(wanted, directory)
        return add_version(source, path, wanted.name, fingerprint=wanted.fingerprint, keep=ExportConfig.keep_versions)


def _there(wanted: RegisteredVersion, path: Path) -> ExportedEnsemble | None:
    try:
        found = ExportedEnsemble.load(path, wanted.version)
    except ArtifactError:
        return None
    return found if found.manifest.fingerprint == wanted.fingerprint else None
