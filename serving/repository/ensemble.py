"""Exported ensembles on disk: one directory is a Triton model repository that holds the versions of one ensemble.

    NAME/config.pbtxt      which version is active: the one file that ever changes
    NAME/N/manifest.json   what version N is, with the checksums of all its files
    NAME/N/config.pbtxt    what the first file says while version N is active
    NAME_score_vN/         its step; not fused, NAME_transform_vN/ and NAME_predict_vN/

The steps carry the version in their names. Triton keeps one config per model, so two versions with different columns
could not be loaded side by side under one name, and a step that changes under a running ensemble would for a moment
join the workflow of one export with the model of another. A new version changes nothing that is being served until the
ensemble itself is loaded again, which Triton does between two requests.

Light to import: serving an ensemble needs no TensorFlow in this process.
"""

import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2 as pb

from rankline.serving.engines import engines
from rankline.serving.repository.backends import backend_names
from rankline.serving.triton.checksums import MANIFEST_PARAMETER, check_step_files
from rankline.serving.triton.config import PYTHON_RUNTIME
from rankline.serving.triton.parameters import CANDIDATES, CLASSES, MAX_LIST_LENGTH, PLAN
from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.core.formatting import listed
from rankline.workflows.core.tracking_uri import found_uri
from rankline.workflows.storage.artifacts import (
    MANIFEST,
    Manifest,
    check_files,
    describe,
    refuse_unlisted,
    remedy,
    write_whole,
)
from rankline.workflows.storage.atomic import Use, is_used, sync, sync_all
from rankline.workflows.storage.regular_files import read_regular

KIND = "ensemble"
CONFIG = "config.pbtxt"
REGISTRY = ".registry.json"
"""Says in which registry the versions are, where they are in one; see `rankline.registry.activation`."""
MADE_IN, INPUTS = "made_in", "inputs"
"""Keys in a manifest's details: path of the trained model relative to the model repository, and its raw columns."""
_LOCK = ".lock"
_STAGING = ".export-"
_REPLACES = "replaces"  # in a manifest's details: the version that was active before
_MOST_CONFIG_BYTES = 1 << 20
_MOST_INSTANCES = 999
_STEP_FIELDS = {
    "name", "backend", "platform", "max_batch_size", "input", "output", "instance_group", "dynamic_batching",
    "parameters", "runtime",
}  # fmt: skip
_ENSEMBLE_FIELDS = {
    "name", "platform", "version_policy", "max_batch_size", "input", "output", "ensemble_scheduling", "parameters",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ExportedEnsemble:
    """One version of an ensemble.

    Attributes:
        path: the model repository.
        name: of the ensemble model.
        version: its number.
        steps: names of the models that it runs, first to last.
        manifest: what its `manifest.json` says. The backends check their files against it when they load them.
    """

    path: Path
    name: str
    version: int
    steps: tuple[str, ...]
    manifest: Manifest = field(repr=False)

    @classmethod
    def load(cls, path: Path, version: int | None = None) -> "ExportedEnsemble":
        """Open a version of an ensemble.

        Args:
            path: the model repository.
            version: None for the active one.

        Raises:
            ArtifactError: there is no such ensemble or version, its description is damaged, or a step would run code
                that is not ours.
        """
        name = _name_in(path)
        # Read once: another version may become the active one at any time.
        active = None
        if version is None:
            config, active = path / name / CONFIG, _config_bytes(path / name)
            version = _version_in(_parsed(active, config), config)
        if version not in (numbers := _numbers(path / name)):
            raise ArtifactError(f"{path} has no version {version}. Available: {', '.join(map(str, numbers))}.")
        directory = path / name / str(version)
        manifest = Manifest.read(directory)
        steps = _read_steps(path, directory)
        if active is not None and active != _config_bytes(directory):
            raise ArtifactError(
                f"{path / name / CONFIG} is not what version {version} says. Roll back, or export again."
            )
        return cls(path=path, name=name, version=version, steps=steps, manifest=manifest)

    def check_made_from(self, prepared: Manifest) -> None:
        """Refuse prepared data that the model was not trained on."""
        origin = self.manifest.made_from.get(prepared.kind, "that is not known")
        if origin != prepared.fingerprint:
            raise ArtifactError(
                f"{self.path} was exported from prepared data {origin[:12]}, this is {prepared.fingerprint[:12]}. "
                "Export again."
            )

    def check_fingerprint(self, expected: str | None) -> None:
        """Refuse another version than the one that was meant; None takes any."""
        if expected is not None:
            self.manifest.check_fingerprint(expected, self.path / self.name / str(self.version))

    def check_files(self) -> None:
        """Compare all its files with the manifest, as the backends do when they load them."""
        files = self.manifest.files
        for step in self.steps:
            check_step_files(self.path / step, files)
        others = {name: record for name, record in files.items() if name.partition("/")[0] not in self.steps}
        check_files(self.path, others, KIND)

    def activate(self, *, in_place_of: int | None = None, then: Callable[[], None] = lambda: None) -> None:
        """Make this the active version; a server that watches the directory switches to it.

        Args:
            in_place_of: the version that it was compared with; None for any.
            then: what is to follow before another version can become the active one.

        Raises:
            ArtifactError: another version has become the active one since, or a file is missing, damaged or not in
                the manifest.
        """
        if not (self.path / self.name / str(self.version) / MANIFEST).is_file():
            raise _deleted(self)
        self.check_files()
        with _locked(self.path):
            active = _replaced_version(self.path, self.name)
            if in_place_of not in (None, active):
                raise ArtifactError(
                    f"{self.path}: version {self.version} was compared with version {in_place_of}, and version "
                    f"{active} has taken over since. Export again, to compare with that one."
                )
            if not (self.path / self.name / str(self.version) / MANIFEST).is_file():
                raise _deleted(self)
            _activate(self.path, self.name, self.version)
            then()

    def use(self) -> Use:
        """Keep exports from deleting this version for as long as the object lives that is returned."""
        try:
            return Use(self.path / self.name / str(self.version))
        except OSError:
            raise _deleted(self) from None

    @property
    def is_active(self) -> bool:
        return active_version(self.path, self.name) == self.version

    @property
    def model_config(self) -> Any:
        return _read_config(self.path / self.name / str(self.version) / CONFIG)

    def step_config(self, step: str) -> Any:
        return _read_config(self.path / step / CONFIG)

    @property
    def num_bytes(self) -> int:
        files = (file for step in self.steps for file in (self.path / step).rglob("*"))
        return sum(file.stat().st_size for file in files if file.is_file())

    @property
    def config(self) -> str:
        """Its configuration as JSON, which Triton takes in place of the file."""
        return str(json_format.MessageToJson(self.model_config, preserving_proto_field_name=True))

    @property
    def run_id(self) -> str:
        return str(self.manifest.details["run_id"])

    @property
    def tracking_uri(self) -> str:
        return found_uri(str(self.manifest.details["tracking_uri"]), self.path)

    @property
    def offline_metrics(self) -> dict[str, float]:
        """Metrics of the model on the validation rows, as training measured them."""
        return dict(self.manifest.details["metrics"])


def _deleted(ensemble: ExportedEnsemble) -> ArtifactError:
    numbers = ", ".join(map(str, _numbers(ensemble.path / ensemble.name)))
    return ArtifactError(
        f"{ensemble.path}: version {ensemble.version} was deleted by an export since, see --keep-versions. "
        f"Available: {numbers}."
    )


def versions(path: Path) -> list[ExportedEnsemble]:
    """All versions of the ensemble in a model repository, oldest first."""
    return [ExportedEnsemble.load(path, number) for number in version_numbers(path)]


def version_numbers(path: Path) -> list[int]:
    """Numbers of these versions, of which nothing is read."""
    return _numbers(path / _name_in(path))


def names_in(path: Path) -> list[str]:
    """Names of the ensembles that a model repository holds; of one that does not exist, none."""
    # `path.glob` looks into what an export is writing, too, whose name begins with a dot, and fails if that is gone.
    manifests = glob(f"*/*/{MANIFEST}", root_dir=path)  # noqa: PTH207
    return sorted({Path(manifest).parts[0] for manifest in manifests})


def active_runs(repository: Path) -> frozenset[str]:
    """MLflow runs whose models are the active versions of the ensembles under a directory; damaged ones have none."""
    found = set()
    for path in repository.glob("*"):
        try:
            found.add(ExportedEnsemble.load(path).run_id)
        except ArtifactError:
            continue
    return frozenset(found)


def before(path: Path) -> ExportedEnsemble:
    """The version that was active before the active one."""
    active = ExportedEnsemble.load(path)
    numbers = _numbers(path / active.name)
    earlier = [number for number in numbers if number < active.version]
    if (replaced := active.manifest.details.get(_REPLACES)) in numbers:
        earlier.append(replaced)
    if not earlier:
        raise ArtifactError(
            f"{path} has nothing before version {active.version}, which is active. "
            f"Available: {', '.join(map(str, numbers))}."
        )
    return ExportedEnsemble.load(path, earlier[-1])


def active_version(path: Path, name: str) -> int:
    """Number of the active version."""
    config = path / name / CONFIG
    return _version_in(_read_config(config), config)


def _version_in(config: Any, path: Path) -> int:
    numbers = config.version_policy.specific.versions
    if len(numbers) != 1:
        raise ArtifactError(f"{path} names the versions {list(numbers)}, expected one. Export again.")
    return int(numbers[0])


def refuse_other_project(path: Path, name: str, model: Path, inputs: Collection[str]) -> None:
    """Refuse to replace the active version with one of another project that takes other columns."""
    number = _replaced_version(path, name)
    try:
        details = Manifest.read(path / name / str(number)).details
    except ArtifactError:  # there is none, or a damaged one, which the export replaces
        return
    if MADE_IN not in details or set(details[INPUTS]) == set(inputs):
        return
    origin = (path.resolve() / details[MADE_IN]).resolve()
    if origin != model.resolve():
        raise ArtifactError(
            f"{path} serves version {number} from another project, of the model in {origin}: it takes "
            f"{listed(details[INPUTS], 5)}, and this one {listed(list(inputs), 5)}. Choose another --repository. Or "
            f"export with --no-promote, and then replace it: rankline promote {name}"
        )


@dataclass(frozen=True, kw_only=True)
class NewVersion:
    """A version that is being written."""

    directory: Path
    number: int


@contextmanager
def publish_version(
    path: Path,
    name: str,
    *,
    made_from: Mapping[str, str],
    details: Mapping[str, Any],
    keep: int,
    promote: bool = True,
    timeout_s: float = 60,
) -> Iterator[NewVersion]:
    """Add a version to a model repository, make it the active one, and delete the oldest but those that a server runs.

    Whatever happens before the last step, the old version stays as it was.

    Args:
        path: the model repository, made if it does not exist.
        name: of the ensemble.
        made_from: name → fingerprint of what went in.
        details: for the manifest.
        keep: versions to keep, at least this one and the one before.
        promote: make it the active one; the first version is, in any case.
        timeout_s: longest wait for another export into the same directory.

    Raises:
        ArtifactError: `path` holds something else, or another export does not come to an end.
    """
    path = path.resolve()
    _refuse_foreign(path, name)
    path.mkdir(parents=True, exist_ok=True)
    with _locked(path, timeout_s):
        _clear_unfinished(path, name)
        number = max(_numbers(path / name), default=0) + 1
        replaced = _replaced_version(path, name)
        staging = Path(tempfile.mkdtemp(prefix=_STAGING, dir=path))
        try:
            staging.chmod(0o755)
            yield NewVersion(directory=staging, number=number)
            manifest = describe(staging, KIND, made_from, {**details, _REPLACES: replaced})
            version = staging / name / str(number)
            (version / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
            _move_in(staging, path, name, number)
            if promote or replaced is None:
                _activate(path, name, number)
            _take_oldest(path, name, keep, {replaced, number}, staging)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        _clear_unfinished(path, name)


def add_version(source: Path, path: Path, name: str, *, fingerprint: str, keep: int) -> ExportedEnsemble:
    """Add a version that was published elsewhere to a model repository; it waits, unless it is the first.

    Args:
        source: holds that one version as a model repository does, on the file system of `path`; its files are moved.
        path: the model repository, made if it does not exist.
        name: of the ensemble.
        fingerprint: that its manifest must have.
        keep: versions to keep, at least this one and the active one.

    Raises:
        ArtifactError: it is of another name, a file is missing, was altered or does not belong there; or `path` holds
            something else, or another version of the same number.
    """
    if (found := names_in(source)) != [name]:
        raise ArtifactError(f"{source} holds {', '.join(found) or 'no ensemble'}, expected a version of {name!r}.")
    (number,) = _numbers(source / name)
    manifest = Manifest.read(source / name / str(number))
    check_files(source, manifest.files, KIND)
    refuse_unlisted(source, {*manifest.files, f"{name}/{number}/{MANIFEST}"}, KIND)
    manifest.check_fingerprint(fingerprint, source / name / str(number))
    _read_steps(source, source / name / str(number))
    path = path.resolve()
    _refuse_foreign(path, name)
    path.mkdir(parents=True, exist_ok=True)
    with _locked(path):
        _clear_unfinished(path, name)
        if number in _numbers(path / name):
            own = ExportedEnsemble.load(path, number)
            if own.manifest.fingerprint != fingerprint:
                raise ArtifactError(
                    f"{path} has a version {number} of its own, which is another export. Give another --repository."
                )
            return own
        replaced = _replaced_version(path, name)
        _move_in(source, path, name, number)
        if replaced is None:
            _activate(path, name, number)
        _take_oldest(path, name, keep, {replaced, number}, source)
        _clear_unfinished(path, name)
    return ExportedEnsemble.load(path, number)


def _move_in(staging: Path, path: Path, name: str, number: int) -> None:
    """Put a version where it stays: its steps, and last what makes it one."""
    sync_all(staging)
    for step in staging.iterdir():
        if step.name != name:
            step.rename(path / step.name)
    (path / name).mkdir(exist_ok=True)
    (staging / name / str(number)).rename(path / name / str(number))
    sync(path / name)
    sync(path)


def _take_oldest(path: Path, name: str, keep: int, spared: Collection[int | None], target: Path) -> None:
    """Move the oldest versions elsewhere, in one step each, but for those that are spared or used."""
    for old in _numbers(path / name)[: -max(keep, 2)]:
        directory = path / name / str(old)
        if old not in spared and not is_used(directory):
            directory.rename(target / f"{old}.old")


@contextmanager
def _locked(path: Path, timeout_s: float = 60) -> Iterator[None]:
    try:
        with FileLock(path / _LOCK, timeout=timeout_s):
            yield
    except Timeout:
        raise ArtifactError(
            f"{path} has been locked by another export for {timeout_s:g} s. Wait until it has ended, or stop it."
        ) from None


def _activate(path: Path, name: str, number: int) -> None:
    write_whole(path / name / CONFIG, (path / name / str(number) / CONFIG).read_bytes())


def _clear_unfinished(path: Path, name: str) -> None:
    """Remove what exports that were killed have left, and the steps of versions that are gone."""
    whole = {f"_v{number}" for number in _numbers(path / name)}
    for entry in path.iterdir():
        stem, _, number = entry.name.rpartition("_v")
        is_step = stem.startswith(f"{name}_") and number.isdecimal() and f"_v{number}" not in whole
        if is_step or entry.name.startswith(_STAGING):
            shutil.rmtree(entry, ignore_errors=True)


def _refuse_foreign(path: Path, name: str) -> None:
    try:
        foreign = [e.name for e in path.iterdir() if e.name not in (name, _LOCK) and not _is_part(e.name, name)]
    except FileNotFoundError:
        return
    except NotADirectoryError:
        foreign = [path.name]
    if foreign:
        raise ArtifactError(
            f"{path} holds {sorted(foreign)[0]!r}, which is not of the ensemble {name!r}. Choose another path."
        )


def _is_part(entry: str, name: str) -> bool:
    """It is a step, a version that is being written, or of `REGISTRY`, its lock say."""
    return entry.startswith((_STAGING, REGISTRY, f".{REGISTRY}.")) or (entry.startswith(f"{name}_") and "_v" in entry)


def _name_in(path: Path) -> str:
    if not path.is_dir():
        beside = sorted(other.name for other in path.parent.glob("*") if names_in(other))
        there = f" There is {listed(beside, 5)}: name it." if beside else ""
        raise ArtifactError(f"{path.absolute()} does not exist.{there} Expected {KIND}: {remedy(KIND, path)}.")
    if len(names := names_in(path)) != 1:
        raise ArtifactError(f"{path} holds {names or 'no'} ensembles, expected one. Export it again, to another path.")
    return names[0]


def _numbers(ensemble: Path) -> list[int]:
    versions = (manifest.parent.name for manifest in ensemble.glob(f"*/{MANIFEST}"))
    return sorted(int(version) for version in versions if version.isdecimal())


def _read_steps(path: Path, directory: Path) -> tuple[str, ...]:
    """Names of the steps, after a look for anything that would run code which is not ours.

    Triton would run it while it loads a model, before the model's backend can compare files with the manifest.
    """
    whole = _read_config(directory / CONFIG)
    steps = tuple(str(step.model_name) for step in whole.ensemble_scheduling.step)
    if whole.platform != "ensemble" or not steps or _fields(whole) - _ENSEMBLE_FIELDS:
        raise ArtifactError(f"{directory / CONFIG} is not as `rankline export` writes it. Export again.")
    _refuse_entries(directory, {CONFIG, MANIFEST})
    ours = backend_names()
    manifest = (directory / MANIFEST).relative_to(path).as_posix()
    for step in steps:
        config = _read_config(path / step / CONFIG)
        if config.backend not in ours:
            raise ArtifactError(
                f"{path / step} is for the backend {config.backend!r}, expected {', '.join(ours)}. Export again."
            )
        if (
            _fields(config) - _STEP_FIELDS
            or config.parameters[MANIFEST_PARAMETER].string_value != manifest
            or config.parameters.keys() - _parameters()
            or any(not 0 < group.count <= _MOST_INSTANCES for group in config.instance_group)
            or config.runtime not in ("", PYTHON_RUNTIME)
        ):
            raise ArtifactError(f"{path / step / CONFIG} is not as `rankline export` writes it. Export again.")
        _refuse_entries(path / step, {CONFIG, "1"})
        _refuse_entries(path / step / "1", {PLAN, *(engine.format for engine in engines().values())})
    return steps


def _fields(config: Any) -> set[str]:
    return {field.name for field, _ in config.ListFields()}


def _parameters() -> set[str]:
    """Parameters that an export writes: Triton would load a library that TRITON_BATCH_STRATEGY_PATH names."""
    of_engines = {name for engine in engines().values() for name in (*engine.parameters, engine.threads_parameter)}
    return {MANIFEST_PARAMETER, CANDIDATES, MAX_LIST_LENGTH, CLASSES, *of_engines}


def _replaced_version(path: Path, name: str) -> int | None:
    """The active version; None if nothing says which it is, which the export that asks will mend."""
    try:
        return active_version(path, name)
    except ArtifactError:
        return None


def _refuse_entries(directory: Path, expected: set[str]) -> None:
    if not directory.is_dir():
        raise ArtifactError(f"{directory} is missing from the {KIND}. Export again.")
    if directory.is_symlink():
        raise ArtifactError(f"{directory} is a link. An {KIND} holds files alone: put the directory in its place.")
    if foreign := sorted(entry.name for entry in directory.iterdir() if entry.name not in expected):
        raise ArtifactError(f"{directory / foreign[0]} is not of the ensemble. Remove it.")


def _config_bytes(directory: Path) -> bytes:
    path = directory / CONFIG
    try:
        return read_regular(path, _MOST_CONFIG_BYTES)
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read ({error}). Export again.") from None


def _read_config(path: Path) -> Any:
    return _parsed(_config_bytes(path.parent), path)


def _parsed(content: bytes, path: Path) -> Any:
    try:
        return text_format.Parse(content.decode(), pb.ModelConfig())
    except (UnicodeDecodeError, text_format.ParseError) as error:
        raise ArtifactError(f"{path} cannot be read ({error}). Export again.") from None
