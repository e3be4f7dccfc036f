"""MLflow deployment plugin (`mlflow deployments -t rankline`): each ensemble in a model repository is a deployment.

A deployment stands for the active version of its ensemble. MLflow finds this module through an entry point and
uses the only `BaseDeploymentClient` subclass in it.
"""

import re
import threading
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click
import pandas as pd
from mlflow.deployments import BaseDeploymentClient
from mlflow.exceptions import MlflowException

from rankline.api import verbs as api
from rankline.recipes.workspace import NAMES, REPOSITORY, WORK_DIR, Workspace, exported_workspace
from rankline.registry.activation import make_active
from rankline.registry.mlflow_registry import RegisteredVersion, Registry, RegistryError, ensure_downloaded
from rankline.registry.pyfunc import frame_of, with_times
from rankline.registry.status import Status, status_of, statuses
from rankline.runs.store import open_store, uri_of
from rankline.serving.client import Client, ModelSchema
from rankline.serving.repository.ensemble import ExportedEnsemble, versions
from rankline.terminal.console import note, say
from rankline.workflows.core.errors import ArtifactError, ConfigError, RanklineError
from rankline.workflows.schema.model_artifact import TrainedModel

_FLAVOR = "python_function"
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class DeploymentError(MlflowException, click.ClickException):  # type: ignore[misc]  # both bases define `message`
    """An `MlflowException` that MLflow's command line prints on one line, without a traceback."""


def _for_mlflow(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    @wraps(function)
    def call(*arguments: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        try:
            return function(*arguments, **options)
        except RanklineError as error:
            raise DeploymentError(str(error)) from None

    return call


def target_help() -> str:
    """Return the help text that `mlflow deployments help -t rankline` prints."""
    return f"""Ensembles in a Rankline model repository, served by `rankline serve --watch`.

Target: rankline, for ./{REPOSITORY}, or rankline:PATH for another directory.

--model-uri
  models:/NAME/3, models:/NAME@champion   a version registered by `rankline register`: downloaded, checked, activated
  runs:/RUN_ID                            the newest export of that run; if there is none, the model in the work
                                          directory is exported, provided that run trained it
-C work_dir=PATH   directory of prepared data, models and MLflow's store, unless MLFLOW_TRACKING_URI names a server

run-local also accepts -C port=8001 (gRPC) and -C repository=PATH, because MLflow does not pass it the target.

A deployment is named after its ensemble. predict scores in this process; from Python,
predict(name, rows, endpoint="HOST:PORT") asks a server. delete is refused because servers may be using
the ensemble."""


@_for_mlflow
def run_local(name: str, model_uri: str, flavor: str | None = None, config: Mapping[str, Any] | None = None) -> None:
    """Deploy a model and serve it until Ctrl-C.

    MLflow does not pass the target to this function, so the repository is an option.
    """
    options = dict(config or {})
    port, repository = str(options.pop("port", 0)), Path(options.pop("repository", REPOSITORY))
    if not port.isdecimal():
        raise ConfigError(f"port is {port!r}, expected an integer.")
    RanklineDeployments(f"rankline:{repository}").deploy(name, model_uri, flavor, options)
    with api.serve(name, port=int(port), repository=repository) as endpoints:
        say(f"{repository / name}: gRPC {endpoints.grpc}; press Ctrl-C to stop")
        threading.Event().wait()


class RanklineDeployments(BaseDeploymentClient):
    """Deployment client for the target `rankline` or `rankline:PATH`, where PATH is a model repository."""

    def __init__(self, target_uri: str) -> None:
        super().__init__(target_uri)  # type: ignore[no-untyped-call]
        self.repository = Path(target_uri.partition(":")[2] or REPOSITORY)

    @_for_mlflow
    def create_deployment(
        self,
        name: str,
        model_uri: str,
        flavor: str | None = None,
        config: Mapping[str, Any] | None = None,
        endpoint: str | None = None,
    ) -> dict[str, Any]:
        _refuse_endpoint(endpoint)
        if not re.fullmatch(NAMES, name):
            raise ConfigError(f"the deployment name is {name!r}, expected only letters, digits, - and _.")
        if (self.repository / name).exists():
            raise ConfigError(
                f"{self.repository / name} already exists. Update the deployment: mlflow deployments update"
            )
        return self.deploy(name, model_uri, flavor, config)

    @_for_mlflow
    def update_deployment(
        self,
        name: str,
        model_uri: str | None = None,
        flavor: str | None = None,
        config: Mapping[str, Any] | None = None,
        endpoint: str | None = None,
    ) -> dict[str, Any]:
        """Activate the version in `model_uri`. A server started with `--watch` switches without dropping requests."""
        _refuse_endpoint(endpoint)
        self._status(name)
        if model_uri is None:
            raise ConfigError(
                "no version to deploy was specified. Pass --model-uri models:/NAME/VERSION or runs:/RUN_ID."
            )
        return self.deploy(name, model_uri, flavor, config)

    @_for_mlflow
    def delete_deployment(
        self,
        name: str,
        config: Mapping[str, Any] | None = None,  # noqa: ARG002  (MLflow's signature)
        endpoint: str | None = None,  # noqa: ARG002
    ) -> None:
        self._status(name)
        raise ConfigError(
            f"{name!r} was not deleted because servers may be using it. Stop them, then remove "
            f"{self.repository / name}."
        )

    @_for_mlflow
    def list_deployments(self, endpoint: str | None = None) -> list[dict[str, Any]]:
        _refuse_endpoint(endpoint)
        return [_described(status) for status in statuses(self.repository)]

    @_for_mlflow
    def get_deployment(self, name: str, endpoint: str | None = None) -> dict[str, Any]:
        _refuse_endpoint(endpoint)
        return _described(self._status(name))

    @_for_mlflow
    def predict(
        self, deployment_name: str | None = None, inputs: Any = None, endpoint: str | None = None
    ) -> pd.DataFrame:
        """Score rows in this process, or on the server at `endpoint` (HOST:PORT) if it is given."""
        if deployment_name is None:
            raise ConfigError(
                "--name is missing. Pass the name of the ensemble; the endpoint identifies only the server."
            )
        rows = frame_of(inputs)
        if endpoint is None:
            ensemble = ExportedEnsemble.load(exported_workspace(deployment_name, repository=self.repository).ensemble)
            scored = api.predict(ensemble, with_times(rows, ModelSchema.from_config(ensemble.model_config)))
        else:
            with Client(endpoint, deployment_name) as client:
                scored = api.predict(client, with_times(rows, client.schema))
        scored[list(rows)] = rows  # return times in the caller's format
        return scored

    def deploy(self, name: str, model_uri: str, flavor: str | None, config: Mapping[str, Any] | None) -> dict[str, Any]:
        options = dict(config or {})
        work_dir = Path(options.pop("work_dir", WORK_DIR))
        if options:
            raise ConfigError(f"unknown option {', '.join(sorted(options))}. Available: work_dir.")
        if flavor not in (None, _FLAVOR):
            raise ConfigError(f"flavor is {flavor!r}, expected {_FLAVOR}.")
        kind, _, rest = model_uri.partition(":/")
        if kind == "models":
            ensemble = self._registered(name, rest, work_dir)
        elif kind == "runs":
            ensemble = self._of_run(name, rest.partition("/")[0], work_dir)
        else:
            raise ConfigError(f"the model URI is {model_uri!r}, expected models:/NAME/VERSION or runs:/RUN_ID.")
        if not ensemble.is_active:
            make_active(ensemble)
        return _described(self._status(name))

    def _registered(self, name: str, rest: str, work_dir: Path) -> ExportedEnsemble:
        found = re.fullmatch(rf"({NAMES})(?:/(\d+)|@({NAMES}))", rest)
        if found is None or found[1] != name:
            raise ConfigError(
                f"the model URI is models:/{rest}, expected models:/{name}/VERSION or models:/{name}@ALIAS."
            )
        registry = Registry(open_store(uri_of(work_dir)))
        wanted: RegisteredVersion | None
        wanted = registry.numbered(name, int(found[2])) if found[2] else registry.at(name, found[3])
        if wanted is None:
            raise RegistryError(f"models:/{rest} does not exist. Register a version: rankline register {name}")
        return ensure_downloaded(registry, wanted, self.repository / name, note)

    def _of_run(self, name: str, run_id: str, work_dir: Path) -> ExportedEnsemble:
        """Return the newest version exported from a run, or export the run's model if it has not been exported yet."""
        path = self.repository / name
        exported = [one for one in versions(path) if one.run_id == run_id] if path.is_dir() else []
        if exported:
            return exported[-1]
        trained = TrainedModel.load(Workspace(recipe=name, root=work_dir).model)
        if trained.run_id != run_id:
            raise ArtifactError(
                f"{path} contains no export of run {run_id}, and the model of that run cannot be exported because "
                f"{trained.path} contains the model of run {trained.run_id}. Deploy a registered version: "
                "models:/NAME/VERSION."
            )
        return api.export(name, work_dir=work_dir, repository=self.repository, progress=False)

    def _status(self, name: str) -> Status:
        if not re.fullmatch(NAMES, name) or not (self.repository / name).is_dir():
            raise ArtifactError(
                f"{self.repository} does not contain ensemble {name!r}. Create a deployment: mlflow deployments create"
            )
        return status_of(self.repository / name)


def _described(status: Status) -> dict[str, Any]:
    return {**status.to_dict(), "flavor": _FLAVOR}


def _refuse_endpoint(endpoint: str | None) -> None:
    if endpoint is not None:
        raise ConfigError(f"endpoint is {endpoint!r}, but a model repository has no endpoints. Omit the endpoint.")
