"""Configuration of tracking. Importing this module does not import MLflow."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.tracking_uri import STORE, VARIABLE, file_of, uri_of_file, without_credentials

OWN_ID = "rankline.id"
"""Tag of a run with the id of its journal, which identifies a run that the store had not created at the start."""
FAILURE = "failure"
"""Tag of a failed run with the error message."""


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """Settings for where to record a run.

    Attributes:
        directory: directory of `mlflow.db` and `mlartifacts/`, created if missing.
        experiment: name of the experiment; one per recipe.
        run_name: name of the run; None lets MLflow choose one.
        server: tracking URI of another store, instead of the one in `directory`. It must not contain a password; MLflow
            reads passwords from the environment.
        parent: id of the parent run; None for none.
    """

    directory: Path
    experiment: str
    run_name: str | None = None
    server: str | None = None
    parent: str | None = None

    def __post_init__(self) -> None:
        if not self.experiment:
            raise ConfigError("the experiment has no name. Set one, such as the name of the recipe.")
        if self.server is not None and without_credentials(self.server) != self.server:
            raise ConfigError(
                f"the tracking URI {without_credentials(self.server)} contains a password, which would be saved. "
                f"Remove it, and set {VARIABLE}, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD."
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, str | None], directory: Path) -> "TrackingConfig":
        """Build a config from the output of `to_dict` and the current path of its work directory."""
        server = values.get("server")  # earlier versions kept the password
        return cls(**{**values, "directory": directory, "server": server and without_credentials(server)})  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, str | None]:
        """Return the config as JSON-serializable values, excluding the directory, which may be moved."""
        return {name: value for name, value in vars(self).items() if name != "directory"}

    @property
    def journals(self) -> Path:
        return journals_of(self.directory)

    @property
    def is_local(self) -> bool:
        """Whether the store is a local file, so that waiting for it needs no timeout."""
        return file_of(self.uri) is not None

    @property
    def uri(self) -> str:
        """The tracking URI, for `mlflow ui --backend-store-uri`."""
        return store_uri(self.directory, self.server)


def store_uri(directory: Path, server: str | None = None) -> str:
    """Return the tracking URI of a work directory's runs: the server, or `mlflow.db` in the directory."""
    return server or uri_of_file(directory / STORE)


def journals_of(directory: Path) -> Path:
    """Return the subdirectory of a work directory that holds runs until they are uploaded to the store."""
    return directory / "tracking"


def artifacts_of(directory: Path) -> Path:
    """Return the artifact directory of a work directory's local MLflow store."""
    return directory / "mlartifacts"
