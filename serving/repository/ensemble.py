"""Exported ensembles on disk. A directory is a Triton model repository with all versions of one ensemble.

    NAME/config.pbtxt      the active version; the only file that ever changes
    NAME/N/manifest.json   metadata of version N, with the checksums of all its files
    NAME/N/config.pbtxt    copied to NAME/config.pbtxt while version N is active
    NAME_score_vN/         the step of a fused version; otherwise NAME_transform_vN/ and NAME_predict_vN/

Step names contain the version because Triton keeps one config per model: two versions with different columns could not
be loaded side by side under one name, and replacing a step of a running ensemble would briefly combine the workflow of
one export with the model of another. Adding a version does not affect serving until Triton reloads the ensemble itself,
which it does between two requests.

Cheap to import: serving an ensemble does not need TensorFlow in this process.
"""

import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2 as pb

from rankline.serving.engines import backend_names, engines
from rankline.serving.triton.config import PYTHON_RUNTIME
from rankline.serving.triton.step import (
    CANDIDATES,
    CLASSES,
    MANIFEST_PARAMETER,
    MAX_LIST_LENGTH,
    PLAN,
    check_step_files,
)
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
from rankline.workflows.storage.atomic import DirectoryLock, is_in_use, sync, sync_all
from rankline.workflows.storage.untrusted import read_regular

KIND = "ensemble"
CONFIG = "config.pbtxt"
REGISTRY = ".registry.json"
"""File that names the registry of the versions, if they are in a registry; see `rankline.registry.activation`."""
MADE_IN, INPUTS = "made_in", "inputs"
"""Keys in a manifest's details: path of the trained model relative to the model repository, and raw column names."""
_LOCK = ".lock"
_LOCK_TIMEOUT_S = 60.0
_STAGING = ".export-"
_REPLACES = "replaces"  # key in a manifest's details: the previously active version
_MAX_CONFIG_BYTES = 1 << 20
_MAX_INSTANCES = 999
_STEP_FIELDS = {
    "name", "backend", "platform", "max_batch_size", "input", "output", "instance_group", "dynamic_batching",
    "parameters", "runtime",
}  # fmt: skip
_ENSEMBLE_FIELDS = {
    "name", "platform", "version_policy", "max_batch_size", "input", "output", "ensemble_scheduling", "parameters",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ExportedEnsemble:
    """One version of an ensemble in the model repository at `path`.

    `steps` are the names of the models that it runs, in order. The backends verify their files against the manifest
    when they load them.
    """

    path: Path
    name: str
    version: int
    steps: tuple[str, ...]
    manifest: Manifest = field(repr=False)

    @classmethod
    def load(cls, path: Path, version: int | None = None) -> "ExportedEnsemble":
        """Open a version of an ensemble, by default the active one.

        Raises:
            ArtifactError: the ensemble or version does not exist, its config or manifest is damaged, or a step would
                run code other than Rankline's backends.
        """
        name = _name_in(path)
        # Read once: another version may become active at any time.
        active = None
        if version is None:
            config, active = path / name / CONFIG, _config_bytes(path / name)
            version = _version_in(_parsed(active, config), config)
        if version not in (numbers := _numbers(path / name)):
            what_to_do = "" if active is None else " Roll back, or export again."
            raise ArtifactError(
                f"{path} has no version {version}. Available: {', '.join(map(str, numbers))}.{what_to_do}"
            )
        directory = path / name / str(version)
        manifest = Manifest.read(directory)
        steps = _read_steps(path, directory)
        if active is not None and active != _config_bytes(directory):
            raise ArtifactError(f"{path / name / CONFIG} does not match version {version}. Roll back, or export again.")
        return cls(path=path, name=name, version=version, steps=steps, manifest=manifest)

    def _repr_html_(self) -> str:
        from rankline.workflows.page.page import Page, embedded, metric_tiles  # only notebooks need it

        page = Page(
            title=self.name,
            chips=[f"version {self.version}{' · active' if self.is_active else ''}"],
            meta=[str(self.path), f"engine {self.manifest.details['engine']}", f"{self.num_bytes / 1e6:.1f} MB"],
            tiles=metric_tiles(self.offline_metrics),
        )
        return embedded(page)

    def check_made_from(self, prepared: Manifest) -> None:
        """Raise ArtifactError unless the model was trained on the prepared data that `prepared` describes."""
        origin = self.manifest.made_from.get(prepared.kind, "(unknown)")
        if origin != prepared.fingerprint:
            raise ArtifactError(
                f"{self.path} was exported from prepared data {origin[:12]}, but the current data is "
                f"{prepared.fingerprint[:12]}. Export again."
            )

    def check_fingerprint(self, expected: str | None) -> None:
        """Raise ArtifactError unless this version has the expected fingerprint. None skips the check."""
        if expected is not None:
            self.manifest.check_fingerprint(expected, self.path / self.name / str(self.version))

    def check_files(self) -> None:
        """Verify all files against the manifest, as the backends do on loading."""
        files = self.manifest.files
        for step in self.steps:
            check_step_files(self.path / step, files)
        others = {name: record for name, record in files.items() if name.partition("/")[0] not in self.steps}
        check_files(self.path, others, KIND)

    def activate(self, *, in_place_of: int | None = None, then: Callable[[], None] = lambda: None) -> None:
        """Activate this version. A server that watches the directory then switches to it.

        If it was compared with the version `in_place_of`, that one must still be active. `then` is called before
        another version can become active.

        Raises:
            ArtifactError: another version has become active in the meantime, or a file is missing, damaged or not in
                the manifest.
        """
        if not (self.path / self.name / str(self.version) / MANIFEST).is_file():
            raise _deleted(self)
        self.check_files()
        with _locked(self.path):
            active = _active_or_none(self.path, self.name)
            if in_place_of not in (None, active):
                raise ArtifactError(
                    f"{self.path}: version {self.version} was compared with version {in_place_of}, but version "
                    f"{active} is active now. Export again to compare with version {active}."
                )
            if not (self.path / self.name / str(self.version) / MANIFEST).is_file():
                raise _deleted(self)
            _activate(self.path, self.name, self.version)
            then()

    def use(self) -> DirectoryLock:
        """Protect this version from deletion by exports as long as the returned object is alive."""
        try:
            return DirectoryLock(self.path / self.name / str(self.version))
        except OSError:
            raise _deleted(self) from None

    @property
    def is_active(self) -> bool:
        return _active_or_none(self.path, self.name) == self.version

    @property
    def model_config(self) -> Any:
        return _read_config(self.path / self.name / str(self.version) / CONFIG)

    @property
    def output_names(self) -> list[str]:
        return [output.name for output in self.model_config.output]

    def step_config(self, step: str) -> Any:
        return _read_config(self.path / step / CONFIG)

    @property
    def num_bytes(self) -> int:
        files = (file for step in self.steps for file in (self.path / step).rglob("*"))
        return sum(file.stat().st_size for file in files if file.is_file())

    @property
    def config(self) -> str:
        """The model configuration as JSON, which Triton accepts instead of `config.pbtxt`."""
        return str(json_format.MessageToJson(self.model_config, preserving_proto_field_name=True))

    @property
    def run_id(self) -> str:
        return str(self.manifest.details["run_id"])

    @property
    def tracking_uri(self) -> str:
        return found_uri(str(self.manifest.details["tracking_uri"]), self.path)

    @property
    def offline_metrics(self) -> dict[str, float]:
        """Metrics of the model on the validation set, computed during training."""
        return dict(self.manifest.details["metrics"])


def _deleted(ensemble: ExportedEnsemble) -> ArtifactError:
    numbers = ", ".join(map(str, _numbers(ensemble.path / ensemble.name)))
    return ArtifactError(
        f"{ensemble.path}: version {ensemble.version} was deleted by a later export (see --keep-versions). "
        f"Available: {numbers}."
    )


def versions(path: Path) -> list[ExportedEnsemble]:
    """Return the versions of the ensemble in a model repository, oldest first, skipping damaged ones."""
    return open_versions(path)[0]


def open_versions(path: Path) -> tuple[list[ExportedEnsemble], dict[int, str]]:
    """Return the undamaged versions, oldest first, and the number of each damaged version with the reason.

    The active version counts as damaged if it is missing.
    """
    name = _name_in(path)
    active = _active_or_none(path, name)
    undamaged, damaged = list[ExportedEnsemble](), dict[int, str]()
    for number in sorted({*_numbers(path / name), *(() if active is None else (active,))}):
        try:
            undamaged.append(ExportedEnsemble.load(path, None if number == active else number))
        except ArtifactError as error:
            damaged[number] = str(error)
    return undamaged, damaged


def version_numbers(path: Path) -> list[int]:
    """Return the version numbers in a model repository without opening the versions."""
    return _numbers(path / _name_in(path))


def names_in(path: Path) -> list[str]:
    """Return the names of the ensembles in a model repository, or an empty list if the directory does not exist."""
    # `path.glob` also visits the hidden staging directories of exports, and fails if one disappears meanwhile.
    manifests = glob(f"*/*/{MANIFEST}", root_dir=path)  # noqa: PTH207
    return sorted({Path(manifest).parts[0] for manifest in manifests})


def active_versions(repository: Path) -> dict[str, str]:
    """Return a mapping from MLflow run id to the active version that the run trained, such as "movielens 3".

    Damaged versions, and those trained elsewhere, are left out.
    """
    found = {}
    for path in repository.glob("*"):
        with suppress(ArtifactError):
            active = ExportedEnsemble.load(path)
            if active.run_id:
                found[active.run_id] = f"{active.name} {active.version}"
    return found


def before(path: Path) -> ExportedEnsemble:
    """Return the version that was active before the current one, or the newest undamaged version before that.

    The current version may be damaged.

    Raises:
        ArtifactError: there is no such version, or the active version is unknown.
    """
    name = _name_in(path)
    numbers = _numbers(path / name)
    available = f"Available: {', '.join(map(str, numbers))}."
    active = _active_or_none(path, name)
    if active is None:
        raise ArtifactError(f"{path / name / CONFIG} does not name the active version. Pass --to VERSION. {available}")
    earlier = [number for number in numbers if number < active]
    if (replaced := _replaced_by(path / name / str(active))) in numbers:
        earlier.append(replaced)
    problems = []
    for number in reversed(earlier):
        try:
            found = ExportedEnsemble.load(path, number)
            found.check_files()
        except ArtifactError as error:
            problems.append(str(error))
        else:
            return found
    if problems:
        raise ArtifactError(f"{path}: all versions before the active version {active} are damaged. {problems[0]}")
    raise ArtifactError(f"{path} has no version before the active version {active}. {available}")


def _replaced_by(directory: Path) -> Any:
    try:
        return Manifest.read(directory).details.get(_REPLACES)
    except ArtifactError:
        return None


def active_version(path: Path, name: str) -> int:
    config = path / name / CONFIG
    return _version_in(_read_config(config), config)


def _version_in(config: Any, path: Path) -> int:
    numbers = config.version_policy.specific.versions
    if len(numbers) != 1:
        raise ArtifactError(f"{path} lists versions {list(numbers)}, expected exactly one. Export again.")
    return int(numbers[0])


def refuse_other_project(path: Path, name: str, model: Path, inputs: Collection[str]) -> None:
    """Raise ArtifactError if the active version is from another project with different input columns."""
    number = _active_or_none(path, name)
    try:
        details = Manifest.read(path / name / str(number)).details
    except ArtifactError:  # missing or damaged: the export replaces it
        return
    if MADE_IN not in details or set(details[INPUTS]) == set(inputs):
        return
    origin = (path.resolve() / details[MADE_IN]).resolve()
    if origin != model.resolve():
        raise ArtifactError(
            f"{path} serves version {number} of a model from another project, {origin}. The active model requires "
            f"{listed(details[INPUTS], 5)}, but the new model requires {listed(list(inputs), 5)}. Use another "
            f"--repository, or export with --no-promote and then replace the active model: rankline promote {name}"
        )


@dataclass(frozen=True, kw_only=True)
class NewVersion:
    """A version that is being written to a staging directory."""

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
) -> Iterator[NewVersion]:
    """Add a version to a model repository and activate it. Then delete old versions that no server is running.

    If anything fails before activation, the previous version stays active and unchanged. The first version is always
    activated. At least the new version and the previous one are kept.

    Raises:
        ArtifactError: `path` contains something else, or another export does not finish in time.
    """
    path = path.resolve()
    with _adding(path, name):
        replaced = _active_or_none(path, name)
        number = max(_highest_number(path / name), replaced or 0) + 1
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
            _prune_old_versions(path, name, keep, {replaced, number}, staging)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def add_version(source: Path, path: Path, name: str, *, fingerprint: str, keep: int) -> ExportedEnsemble:
    """Move a version that was published elsewhere into a model repository. It is activated only if it is the
    repository's first version.

    `source` is a model repository with only this version, on the same file system as `path`.

    Raises:
        ArtifactError: the version has another name or fingerprint, a file is missing, altered or not in the manifest,
            `path` contains something else, or already has another version with the same number.
    """
    if (found := names_in(source)) != [name]:
        raise ArtifactError(f"{source} contains {', '.join(found) or 'no ensemble'}, expected a version of {name!r}.")
    (number,) = _numbers(source / name)
    manifest = Manifest.read(source / name / str(number))
    check_files(source, manifest.files, KIND)
    refuse_unlisted(source, {*manifest.files, f"{name}/{number}/{MANIFEST}"}, KIND)
    manifest.check_fingerprint(fingerprint, source / name / str(number))
    _read_steps(source, source / name / str(number))
    path = path.resolve()
    with _adding(path, name):
        if number in _numbers(path / name):
            own = ExportedEnsemble.load(path, number)
            if own.manifest.fingerprint != fingerprint:
                raise ArtifactError(
                    f"{path} already has a version {number} from another export. Use another --repository."
                )
            return own
        replaced = _active_or_none(path, name)
        shutil.rmtree(path / name / str(number), ignore_errors=True)  # left without a manifest
        _move_in(source, path, name, number)
        if replaced is None:
            _activate(path, name, number)
        _prune_old_versions(path, name, keep, {replaced, number}, source)
    return ExportedEnsemble.load(path, number)


@contextmanager
def _adding(path: Path, name: str) -> Iterator[None]:
    _refuse_foreign(path, name)
    path.mkdir(parents=True, exist_ok=True)
    with _locked(path):
        _clear_unfinished(path, name)
        yield
        _clear_unfinished(path, name)


def _move_in(staging: Path, path: Path, name: str, number: int) -> None:
    """Move a staged version into the repository. The manifest is moved last because it makes the version visible."""
    sync_all(staging)
    for step in staging.iterdir():
        if step.name != name:
            step.rename(path / step.name)
    (path / name).mkdir(exist_ok=True)
    (staging / name / str(number)).rename(path / name / str(number))
    sync(path / name)
    sync(path)


def _prune_old_versions(path: Path, name: str, keep: int, spared: Collection[int | None], target: Path) -> None:
    """Move all but the latest `keep` versions to `target`, unless in `spared` or in use. Each move is atomic."""
    for old in _numbers(path / name)[: -max(keep, 2)]:
        directory = path / name / str(old)
        if old not in spared and not is_in_use(directory):
            directory.rename(target / f"{old}.old")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        with FileLock(path / _LOCK, timeout=_LOCK_TIMEOUT_S):
            yield
    except Timeout:
        raise ArtifactError(
            f"{path} has been locked by another export for {_LOCK_TIMEOUT_S:g} s. Wait until it finishes, or stop it."
        ) from None


def _activate(path: Path, name: str, number: int) -> None:
    write_whole(path / name / CONFIG, (path / name / str(number) / CONFIG).read_bytes())


def _clear_unfinished(path: Path, name: str) -> None:
    """Remove leftovers of killed exports and the steps of deleted versions."""
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
            f"{path} contains {sorted(foreign)[0]!r}, which is not part of the ensemble {name!r}. Use another path."
        )


def _is_part(entry: str, name: str) -> bool:
    """Whether a directory entry is a step, a staging directory or a registry file."""
    return entry.startswith((_STAGING, REGISTRY, f".{REGISTRY}.")) or (entry.startswith(f"{name}_") and "_v" in entry)


def _name_in(path: Path) -> str:
    if not path.is_dir():
        beside = sorted(other.name for other in path.parent.glob("*") if names_in(other))
        there = f" Did you mean {listed(beside, 5)}?" if beside else ""
        raise ArtifactError(f"{path.absolute()} does not exist.{there} Expected {KIND}: {remedy(KIND, path)}.")
    if not (names := names_in(path)):
        raise ArtifactError(f"{path} contains no ensembles. Expected {KIND}: {remedy(KIND, path)}.")
    if len(names) > 1:
        raise ArtifactError(f"{path} contains the ensembles {listed(names, 5)}, expected one. Use one path for each.")
    return names[0]


def _numbers(ensemble: Path) -> list[int]:
    versions = (manifest.parent.name for manifest in ensemble.glob(f"*/{MANIFEST}"))
    return sorted(int(version) for version in versions if version.isdecimal())


def _highest_number(ensemble: Path) -> int:
    """Return the highest version number in use, counting directories without a manifest, or 0 if there are none."""
    return max((int(entry.name) for entry in ensemble.glob("*") if entry.name.isdecimal()), default=0)


def _read_steps(path: Path, directory: Path) -> tuple[str, ...]:
    """Return the names of the steps. Raise ArtifactError if anything in the version would run foreign code.

    Triton would run such code while it loads a model, before the model's backend can verify files against the manifest.
    """
    whole = _read_config(directory / CONFIG)
    steps = tuple(str(step.model_name) for step in whole.ensemble_scheduling.step)
    if whole.platform != "ensemble" or not steps or _fields(whole) - _ENSEMBLE_FIELDS:
        raise ArtifactError(f"{directory / CONFIG} differs from what `rankline export` writes. Export again.")
    _refuse_entries(directory, {CONFIG, MANIFEST})
    ours = backend_names()
    manifest = (directory / MANIFEST).relative_to(path).as_posix()
    for step in steps:
        config = _read_config(path / step / CONFIG)
        if config.backend not in ours:
            raise ArtifactError(
                f"{path / step} uses the backend {config.backend!r}, expected {', '.join(ours)}. Export again."
            )
        if (
            _fields(config) - _STEP_FIELDS
            or config.parameters[MANIFEST_PARAMETER].string_value != manifest
            or config.parameters.keys() - _parameters()
            or any(not 0 < group.count <= _MAX_INSTANCES for group in config.instance_group)
            or config.runtime not in ("", PYTHON_RUNTIME)
        ):
            raise ArtifactError(f"{path / step / CONFIG} differs from what `rankline export` writes. Export again.")
        _refuse_entries(path / step, {CONFIG, "1"})
        _refuse_entries(path / step / "1", {PLAN, *(engine.format for engine in engines().values())})
    return steps


def _fields(config: Any) -> set[str]:
    return {field.name for field, _ in config.ListFields()}


def _parameters() -> set[str]:
    """Return the parameters a step may set. Others are refused: TRITON_BATCH_STRATEGY_PATH would load any library."""
    of_engines = {name for engine in engines().values() for name in (*engine.parameters, engine.threads_parameter)}
    return {MANIFEST_PARAMETER, CANDIDATES, MAX_LIST_LENGTH, CLASSES, *of_engines}


def _active_or_none(path: Path, name: str) -> int | None:
    """Return the number of the active version, or None if it cannot be read. An export then replaces it."""
    try:
        return active_version(path, name)
    except ArtifactError:
        return None


def _refuse_entries(directory: Path, expected: set[str]) -> None:
    if not directory.is_dir():
        raise ArtifactError(f"{directory} is missing from the {KIND}. Export again.")
    if directory.is_symlink():
        raise ArtifactError(
            f"{directory} is a link. An {KIND} must contain only files: replace the link with the directory."
        )
    if foreign := sorted(entry.name for entry in directory.iterdir() if entry.name not in expected):
        raise ArtifactError(f"{directory / foreign[0]} is not part of the ensemble. Remove it.")


def _config_bytes(directory: Path) -> bytes:
    path = directory / CONFIG
    try:
        return read_regular(path, _MAX_CONFIG_BYTES)
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read ({error}). Export again.") from None


def _read_config(path: Path) -> Any:
    return _parsed(_config_bytes(path.parent), path)


def _parsed(content: bytes, path: Path) -> Any:
    try:
        return text_format.Parse(content.decode(), pb.ModelConfig())
    except (UnicodeDecodeError, text_format.ParseError) as error:
        raise ArtifactError(f"{path} cannot be read ({error}). Export again.") from None
