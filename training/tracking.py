"""Runs in MLflow: what was trained, on which data, how well, and the model itself. Only this file imports MLflow here.

MLflow 3 on SQLite, all in one work directory: `mlflow.db` and `mlartifacts/`; or on a server. The model is logged as a
plain SavedModel or TorchScript file behind a loader module of ours, so no Python object is pickled and loading runs no
Python code that came with the artifact.
"""

import json
import logging
import os
import subprocess
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
from mlflow.data.meta_dataset import MetaDataset
from mlflow.data.sources import LocalArtifactDatasetSource  # type: ignore[attr-defined]  # made at run time
from mlflow.entities import LifecycleStage
from mlflow.exceptions import MlflowException
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, Schema, TensorSpec
from mlflow.types.schema import Array, DataType
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NOTE

from workflows.errors import ConfigError
from workflows.feature_spec import FeatureSpec
from workflows.heads import output_names

with warnings.catch_warnings():
    # MLflow 3.17 warns about a type hint of its own while it is imported.
    warnings.filterwarnings("ignore", message=".*Any type hint is inferred as AnyType")
    import mlflow.pyfunc

SYSTEM_METRICS_INTERVAL_S = 1
OPENS_ON_RUNS = {"mlflow.experimentKind": "custom_model_development"}
"""Tag of an experiment whose page MLflow opens on its runs; others open on traces."""
_URI_VARIABLE = "MLFLOW_TRACKING_URI"
_GIT_S = 5.0  # it looks at every file of the checkout
_PYFUNC_PACKAGES = ("numpy", "pandas")


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """Where a run is recorded.

    Attributes:
        directory: holds `mlflow.db` and `mlartifacts/`; made if it is not there.
        experiment: name of the experiment; one per recipe.
        run_name: name of the run; None lets MLflow make one up.
        server: tracking URI of a store elsewhere, in place of the one in `directory`.
        parent: id of the run that this one is a part of; None of a run by itself.
    """

    directory: Path
    experiment: str
    run_name: str | None = None
    server: str | None = None
    parent: str | None = None

    def __post_init__(self) -> None:
        if not self.experiment:
            raise ConfigError("the experiment has no name. Give one, such as the recipe's.")

    @property
    def uri(self) -> str:
        """The tracking URI, for `mlflow ui --backend-store-uri`."""
        return store_uri(self.directory, self.server)


def store_uri(directory: Path, server: str | None = None) -> str:
    """Tracking URI of the store that runs of a work directory are in: the server, or `mlflow.db` in the directory."""
    return server or f"sqlite:///{directory.absolute() / 'mlflow.db'}"


class RunLog:
    """The run that is going on.

    Args:
        run_id: its id in the store.
        uri: tracking URI of the store.
        is_reopened: whether it goes on where an earlier process left it.
    """

    def __init__(self, run_id: str, uri: str, *, is_reopened: bool = False) -> None:
        self.run_id = run_id
        self.uri = uri
        self.is_reopened = is_reopened
        self._datasets: dict[str, Any] = {}

    @property
    def has_params(self) -> bool:
        """Whether choices are recorded."""
        return bool(mlflow.MlflowClient(self.uri).get_run(self.run_id).data.params)

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record the choices that were made; once each."""
        mlflow.log_params(dict(params), run_id=self.run_id)

    def log_dataset(self, split: str, directory: Path, *, digest: str, num_rows: int) -> None:
        """Record the data of one split.

        Args:
            split: "train" or "valid"; the context under which MLflow shows it.
            directory: where the split's files are.
            digest: identity of the data; MLflow keeps the first 36 characters.
            num_rows: rows of the split.
        """
        dataset = _Split(
            LocalArtifactDatasetSource(directory.absolute().as_uri()),
            name=f"{directory.parent.name}-{split}",
            digest=digest[:36],
        )
        dataset.num_rows = num_rows
        self._datasets[split] = dataset
        mlflow.log_input(dataset, context=split)

    def log_metrics(self, metrics: Mapping[str, float], step: int, *, model_id: str | None = None) -> None:
        """Record figures at a step or epoch. With `model_id` they also stand at the model, for the valid data."""
        dataset = self._datasets.get("valid") if model_id else None
        mlflow.log_metrics(dict(metrics), step=step, run_id=self.run_id, model_id=model_id, dataset=dataset)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Record what runs are told apart by."""
        client = mlflow.MlflowClient(self.uri)
        for name, value in tags.items():
            client.set_tag(self.run_id, name, value)

    def note(self, text: str) -> None:
        """Add a remark to what MLflow shows as the description of the run."""
        client = mlflow.MlflowClient(self.uri)
        before = client.get_run(self.run_id).data.tags.get(MLFLOW_RUN_NOTE, "")
        client.set_tag(self.run_id, MLFLOW_RUN_NOTE, f"{before} {text}".strip())

    def log_artifact(self, path: Path) -> None:
        """Store a file, or a directory under its own name."""
        if path.is_dir():
            mlflow.log_artifacts(str(path), artifact_path=path.name, run_id=self.run_id)
        else:
            mlflow.log_artifact(str(path), run_id=self.run_id)

    def log_model(
        self,
        path: Path,
        spec: FeatureSpec,
        example: pd.DataFrame | None,
        *,
        loader_module: str,
        packages: Sequence[str],
    ) -> str:
        """Store a model as a logged model named "model", with signature and input example.

        Args:
            path: file or directory that `loader_module` can load.
            spec: says what the model's inputs are.
            example: a few rows of them, on which MLflow tries the model; None for one that is too large to be loaded.
            loader_module: module with `_load_pyfunc(path)`.
            packages: distributions that it needs; those that are installed are recorded with their versions.

        Returns:
            The model's id in the store.
        """
        info = mlflow.pyfunc.log_model(
            name="model",
            data_path=str(path),
            loader_module=loader_module,
            signature=_signature(spec),
            input_example=example,
            pip_requirements=_pip_requirements((*packages, *_PYFUNC_PACKAGES)),
        )
        return str(info.model_id)


class SilentLog(RunLog):
    """The same run to a worker that records nothing of it."""

    has_params = False

    def log_params(self, params: Mapping[str, Any]) -> None:
        pass

    def log_dataset(self, split: str, directory: Path, *, digest: str, num_rows: int) -> None:
        pass

    def log_metrics(self, metrics: Mapping[str, float], step: int, *, model_id: str | None = None) -> None:
        pass

    def note(self, text: str) -> None:
        pass


class _Split(MetaDataset):
    """A split of prepared data, known by its digest."""

    num_rows = 0

    @property
    def profile(self) -> dict[str, int]:
        return {"num_rows": self.num_rows}

    def to_dict(self) -> dict[str, str]:
        return {**super().to_dict(), "profile": json.dumps(self.profile)}


@contextmanager
def tracked_run(config: TrackingConfig, *, resumed_id: str | None = None) -> Iterator[RunLog]:
    """Record what the block does as one run.

    An exception that leaves the block marks the run as FAILED, Ctrl-C as KILLED. The process-wide tracking URI is put
    back at the end, and so is the environment, where MLflow writes it for processes that it starts: another run would
    take it for a server that the user asks for.

    Args:
        config: where to.
        resumed_id: id of a run to go on with. If the store has it no more, the new run says so in a note.

    Raises:
        ConfigError: the experiment was deleted in MLflow.
    """
    config.directory.mkdir(parents=True, exist_ok=True)
    uri_before, variable_before = mlflow.get_tracking_uri(), os.environ.get(_URI_VARIABLE)
    mlflow.set_tracking_uri(config.uri)
    mlflow.set_system_metrics_sampling_interval(SYSTEM_METRICS_INTERVAL_S)  # type: ignore[no-untyped-call]
    mlflow.set_system_metrics_samples_before_logging(1)  # type: ignore[no-untyped-call]
    try:
        with quiet():
            is_reopened = resumed_id is not None and _has_run(resumed_id)
            run = mlflow.start_run(
                run_id=resumed_id if is_reopened else None,
                experiment_id=None if is_reopened else experiment_id(mlflow.MlflowClient(), config),
                run_name=None if is_reopened else config.run_name,
                tags={MLFLOW_PARENT_RUN_ID: config.parent} if config.parent else None,
                log_system_metrics=True,
            )
        status = "FAILED"
        try:
            with quiet():
                log = RunLog(run.info.run_id, config.uri, is_reopened=is_reopened)
                if resumed_id is not None and not is_reopened:
                    log.note(f"Continues run {resumed_id}, which is gone.")
                yield log
            status = "FINISHED"
        except KeyboardInterrupt:
            status = "KILLED"
            raise
        finally:
            with quiet():
                mlflow.end_run(status)
    finally:
        mlflow.set_tracking_uri(uri_before)
        os.environ.pop(_URI_VARIABLE, None)
        if variable_before is not None:
            os.environ[_URI_VARIABLE] = variable_before


def _has_run(run_id: str) -> bool:
    """Whether the store has the run, and it was not deleted."""
    try:
        stage = mlflow.get_run(run_id).info.lifecycle_stage
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return False
    return bool(stage == LifecycleStage.ACTIVE)


def experiment_id(client: mlflow.MlflowClient, config: TrackingConfig) -> str:
    """The experiment in the store, which is made if it is not there.

    Raises:
        ConfigError: it was deleted in MLflow.
    """
    experiment = client.get_experiment_by_name(config.experiment)
    if experiment is None:
        # A store elsewhere says itself where its artifacts go.
        location = None if config.server else (config.directory.absolute() / "mlartifacts").as_uri()
        return str(client.create_experiment(config.experiment, artifact_location=location, tags=OPENS_ON_RUNS))
    if experiment.lifecycle_stage == LifecycleStage.DELETED:
        raise ConfigError(
            f"experiment {config.experiment!r} was deleted in {config.uri}. "
            f"Restore it (mlflow experiments restore -x {experiment.experiment_id}) or choose another name."
        )
    return str(experiment.experiment_id)


def code_version() -> str:
    """Rankline's version, and where this is a Git checkout its commit, with "-dirty" where files were changed."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude", "*"],
            capture_output=True,
            text=True,
            check=True,
            timeout=_GIT_S,
        )
        commit = f", commit {described.stdout.strip()}"
    except (OSError, subprocess.SubprocessError):  # no Git, or no checkout
        commit = ""
    return f"rankline {version('rankline')}{commit}"


def _signature(spec: FeatureSpec) -> ModelSignature:
    columns: list[ColSpec | TensorSpec] = []
    for feature in (*spec.categorical, *spec.continuous):
        kind = DataType.float if feature.cardinality is None else DataType.long
        columns.append(ColSpec(Array(kind) if feature.is_list else kind, feature.name))
    outputs: list[ColSpec | TensorSpec] = []
    for head, name in zip(spec.heads, output_names(spec.heads), strict=True):
        outputs.append(ColSpec(DataType.float if head.width == 1 else Array(DataType.float), name))
    return ModelSignature(inputs=Schema(columns), outputs=Schema(outputs))


def _pip_requirements(packages: Sequence[str]) -> list[str]:
    found = []
    for package in packages:
        try:
            found.append(f"{package}=={version(package)}")
        except PackageNotFoundError:
            continue
    return found


@contextmanager
def quiet() -> Iterator[None]:
    """Keep MLflow and the migrations of its store from writing over a progress bar; warnings still come through."""
    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
