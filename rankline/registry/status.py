"""The active version of each ensemble, with its activation time, run and data.

The status also shows whether the alias `champion` and a running server agree with it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankline.registry.activation import registry_uri
from rankline.runs.store import CHAMPION, VERSION
from rankline.workflows.core.errors import ArtifactError, ServerError

if TYPE_CHECKING:
    from rankline.serving.repository.ensemble import ExportedEnsemble

_SHORT = 12


@dataclass(frozen=True, kw_only=True)
class Status:
    """The active version of an ensemble, with its quality, provenance and registry alias.

    Attributes:
        since: activation time of the version, in UTC.
        run_id: MLflow run that trained the model; empty if it was trained elsewhere.
        data: prefix of the fingerprint of the training data; empty if unknown.
        others: inactive versions.
        registry: tracking URI of the registry; None if the ensemble was never registered.
        champion: version that the alias champion names; None if there is none.
        trouble: why the alias is unknown; empty if it is known.
        served: version that the server has loaded; None if no server was queried.
    """

    name: str
    version: int
    since: datetime
    run_id: str
    metrics: dict[str, float]
    data: str
    engine: str
    others: tuple[int, ...]
    registry: str | None = None
    champion: int | None = None
    trouble: str = ""
    served: int | None = None

    @property
    def disagreements(self) -> tuple[str, ...]:
        found = []
        if self.trouble:
            found.append(f"{self.name}: {self.trouble}")
        elif self.registry and self.champion != self.version:
            named = f"points to version {self.champion}" if self.champion else "points to no version"
            found.append(
                f"{self.name}: version {self.version} is active, but the alias champion {named}. To sync them: "
                f"rankline promote {self.name} --to {self.version}"
            )
        if self.served not in (None, self.version):
            found.append(
                f"{self.name}: version {self.version} is active, but the server has loaded version {self.served}. "
                "The server is still loading the active version, failed to load it (see its output), or was started "
                "without --watch or --follow."
            )
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "since": self.since.isoformat(timespec="seconds"), "others": list(self.others)} | {
            "disagreements": list(self.disagreements)
        }


def statuses(repository: Path, url: str | None = None) -> Iterator[Status]:
    """Yield the state of each ensemble in a model repository, including the version that the server at `url` loaded."""
    from rankline.serving.repository.ensemble import CONFIG

    paths = sorted(path.parent for path in repository.glob(f"*/*/{CONFIG}") if path.parent.name == path.parents[1].name)
    for path in paths:
        yield status_of(path.parent, url)


def status_of(path: Path, url: str | None = None) -> Status:
    from rankline.serving.repository.ensemble import CONFIG, ExportedEnsemble, versions
    from rankline.workflows.preprocess.prepared_data import KIND

    active = ExportedEnsemble.load(path)
    changed = (path / active.name / CONFIG).stat().st_mtime
    return Status(
        name=active.name,
        version=active.version,
        since=datetime.fromtimestamp(changed, timezone.utc),
        run_id=active.run_id,
        metrics=active.offline_metrics,
        data=active.manifest.made_from.get(KIND, "")[:_SHORT],
        engine=str(active.manifest.details["engine"]),
        others=tuple(one.version for one in versions(path) if one.version != active.version),
        served=served_version(url, active) if url else None,
        **_registered(active),
    )


def _registered(active: "ExportedEnsemble") -> dict[str, Any]:
    uri = registry_uri(active.path)
    if uri is None:
        return {}
    from rankline.runs.reader import open_reader

    try:
        tags = open_reader(uri).alias(active.name, CHAMPION)
    except ArtifactError as error:
        return {"registry": uri, "trouble": str(error)}
    name, _, version = (tags or {}).get(VERSION, "").rpartition(" ")
    return {"registry": uri, "champion": int(version) if name == active.name and version.isdecimal() else None}


def served_version(url: str, ensemble: "ExportedEnsemble") -> int:
    """Return the version of the ensemble that the server at `url` has loaded."""
    from tritonclient.grpc import InferenceServerClient
    from tritonclient.utils import InferenceServerException

    from rankline.serving.client.config import proxy_options

    try:
        with InferenceServerClient(url, channel_args=proxy_options(url)) as client:
            config = client.get_model_config(ensemble.name).config
    except InferenceServerException as error:
        raise ServerError(f"{url} did not return the configuration of {ensemble.name!r}: {error.message()}.") from None
    found = re.fullmatch(r".*_v(\d+)", config.ensemble_scheduling.step[0].model_name)
    if found is None:
        raise ServerError(f"{url} serves model {ensemble.name!r}, which was not exported by Rankline.")
    return int(found.group(1))
