"""Where runs are recorded. Imports no MLflow."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workflows.errors import ConfigError

OWN_ID = "rankline.id"
"""Tag of a run: the id of its journal, by which it is known where the store gave no id when it began."""


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

    @classmethod
    def from_dict(cls, values: Mapping[str, str | None]) -> "TrackingConfig":
        """The opposite of `to_dict`."""
        return cls(**{**values, "directory": Path(values["directory"] or "")})  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, str | None]:
        """Plain values, for JSON."""
        return {**vars(self), "directory": str(self.directory.absolute())}

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
    """Tracking URI of the store that runs of a work directory are in: the server, or `mlflow.db` in the directory."""
    return server or f"sqlite:///{directory.absolute() / 'mlflow.db'}"


def file_of(uri: str) -> Path | None:
    """The file that a store is in; None of a server."""
    _, is_file, path = uri.partition("?")[0].partition("sqlite:///")
    return Path(path) if is_file else None


def journals_of(directory: Path) -> Path:
    """Where runs of a work directory are until their store has them."""
    return directory / "tracking"
