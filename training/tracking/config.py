"""Where runs are recorded. Imports no MLflow."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.tracking_uri import STORE, VARIABLE, file_of, uri_of_file, without_credentials

OWN_ID = "rankline.id"
"""Tag of a run: the id of its journal, by which it is known where the store gave no id when it began."""


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """Where a run is recorded.

    Attributes:
        directory: holds `mlflow.db` and `mlartifacts/`; made if it is not there.
        experiment: name of the experiment; one per recipe.
        run_name: name of the run; None lets MLflow make one up.
        server: tracking URI of a store elsewhere, in place of the one in `directory`. It contains no password, which
            MLflow takes from the environment.
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
        if self.server is not None and without_credentials(self.server) != self.server:
            raise ConfigError(
                f"the tracking URI {without_credentials(self.server)} was given with a password, which would be saved. "
                f"Set {VARIABLE}, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD."
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, str | None], directory: Path) -> "TrackingConfig":
        """The opposite of `to_dict`.

        Args:
            values: plain values.
            directory: the work directory in which they were found.
        """
        server = values.get("server")  # earlier versions kept the password
        return cls(**{**values, "directory": directory, "server": server and without_credentials(server)})  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, str | None]:
        """Return plain values for JSON, without the directory, which may be moved."""
        return {name: value for name, value in vars(self).items() if name != "directory"}

    @property
    def journals(self) -> Path:
        """Where runs are until the store has them."""
        return journals_of(self.directory)

    @property
    def is_local(self) -> bool:
        """Whether the store is a file, for which nobody waits in vain."""
        return file_of(self.uri) is not None

    @property
    def uri(self) -> str:
        """The tracking URI, for `mlflow ui --backend-store-uri`."""
        return store_uri(self.directory, self.server)


def store_uri(directory: Path, server: str | None = None) -> str:
    """Return the tracking URI of a work directory's runs: that of the server, or of `mlflow.db` in the directory.

    Raises:
        ConfigError: MLflow cannot open a store in a directory of that name.
    """
    return server or uri_of_file(directory / STORE)


def journals_of(directory: Path) -> Path:
    """Where runs of a work directory are until their store has them."""
    return directory / "tracking"


def artifacts_of(directory: Path) -> Path:
    """Return the directory where the local MLflow store of a work directory keeps artifacts."""
    return directory / "mlartifacts"
