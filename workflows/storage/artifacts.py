"""Artifacts, which are atomically published directories with a manifest and checksums.

Every artifact (prepared data, trained model, exported ensemble) is one directory with a `manifest.json`: its kind, the
artifacts it was made from, the package versions that made it, and the SHA-256 and size of each file. A stage writes to
a hidden sibling directory, which is then swapped with the old directory in one system call. A killed stage or a power
failure therefore leaves either the old artifact or the new one, never a mixture.
"""

import ctypes
import hashlib
import json
import os
import platform
import shlex
import stat
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rankline.workflows.core.errors import ArtifactError, in_short
from rankline.workflows.core.optional_packages import installed_versions
from rankline.workflows.storage.atomic import staging_for, sync, sync_all
from rankline.workflows.storage.untrusted import open_regular, read_regular

MANIFEST = "manifest.json"
FORMAT_VERSION = 1
CALLED: dict[str, str] = {}
"""Name of a recipe → the argument that the user passed for it, such as a file path, for use in suggested commands."""

_MAX_NAME_BYTES = 255  # bytes that Linux allows in one path component
_MAX_MANIFEST_BYTES = 8 << 20  # enough for about 50,000 files; the parsed JSON takes 25 times as much memory
_PACKAGES = (
    "nvtabular", "merlin-systems", "tensorflow-cpu", "tensorflow", "torch", "pyarrow", "numpy", "mlflow",
    "nvidia-pytriton",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    sha256: str
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Contents and provenance of an artifact."""

    kind: str  # kind of artifact, such as "prepared-data"
    fingerprint: str  # identity of the artifact: SHA-256 over `kind`, `made_from` and the checksums of all files
    made_from: Mapping[str, str] = field(default_factory=dict)  # name → fingerprint of each input artifact or source
    details: Mapping[str, Any] = field(default_factory=dict)  # counts and options worth displaying; JSON values only
    files: Mapping[str, FileRecord] = field(default_factory=dict)  # POSIX path relative to the directory → record
    versions: Mapping[str, str] = field(default_factory=dict)  # package → version that made the artifact
    created_at: str = ""  # UTC, ISO 8601; not part of the fingerprint

    def to_json(self) -> str:
        document = {
            "format_version": FORMAT_VERSION,
            "kind": self.kind,
            "fingerprint": self.fingerprint,
            "created_at": self.created_at,
            "made_from": dict(self.made_from),
            "details": dict(self.details),
            "versions": dict(self.versions),
            "files": {path: {"sha256": f.sha256, "num_bytes": f.num_bytes} for path, f in sorted(self.files.items())},
        }
        return json.dumps(document, indent=2) + "\n"

    @classmethod
    def read(cls, directory: Path) -> "Manifest":
        """Read the `manifest.json` of `directory` without checking the files that it lists.

        Raises:
            ArtifactError: the manifest is missing or cannot be read.
        """
        path = directory / MANIFEST
        try:
            document = json.loads(read_regular(path, _MAX_MANIFEST_BYTES))
            format_version = document.pop("format_version")
            if format_version != FORMAT_VERSION:
                raise ArtifactError(
                    f"{path} has format version {format_version!r:.50}, but this version of Rankline supports "
                    f"only {FORMAT_VERSION}. Create the artifact again."
                )
            files = {name: FileRecord(**record) for name, record in document.pop("files").items()}
            manifest = cls(files=files, **document)
            manifest._check_types()
            return manifest
        except FileNotFoundError:
            raise ArtifactError(f"{directory} is not an artifact: it has no {MANIFEST}.") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ArtifactError(f"{path} cannot be read ({in_short(error)}). Create the artifact again.") from None

    def check_fingerprint(self, expected: str, source: Path) -> None:
        """Recompute the artifact's fingerprint, and raise `ArtifactError` if it differs from `expected`."""
        found = _fingerprint(self.kind, self.made_from, self.files)
        if found != expected.lower():
            raise ArtifactError(
                f"{source} has fingerprint {found}, expected {expected}. Provide the matching {self.kind}."
            )

    def _check_types(self) -> None:
        texts = [self.kind, self.fingerprint, self.created_at]
        for name, mapping in (("made_from", self.made_from), ("details", self.details), ("versions", self.versions)):
            if not isinstance(mapping, dict):
                raise TypeError(f"{name} is not an object")
        texts += [*self.made_from.values(), *self.versions.values(), *(file.sha256 for file in self.files.values())]
        if odd := [text for text in texts if not (isinstance(text, str) and text.isprintable())]:
            raise TypeError(f"{odd[0]!r:.200} is not a single line of text")
        for name, record in self.files.items():
            if type(record.num_bytes) is not int or record.num_bytes < 0:
                raise TypeError(f"{name} has num_bytes {record.num_bytes!r}, expected a nonnegative integer")
            parts = Path(name).parts
            is_long = any(len(part.encode()) > _MAX_NAME_BYTES for part in parts)
            if Path(name).is_absolute() or ".." in parts or not name.isprintable() or is_long:
                raise ValueError(f"{name!r:.200} is not a path within the artifact")


@contextmanager
def publish(
    target: Path, kind: str, *, made_from: Mapping[str, str] | None = None, details: dict[str, Any] | None = None
) -> Iterator[Path]:
    """Yield a directory for a new artifact, and move it to `target` atomically if the block succeeds.

    The block may still add details. An existing `target` that is not an artifact of this kind is rejected, so that a
    wrong path never deletes a user's files.

    Raises:
        ArtifactError: `target` is a file or a directory that is not an artifact.
    """
    target = target.resolve()  # replace the target of a link, not the link itself
    refuse_foreign(target, kind)
    with staging_for(target) as staging:
        yield staging
        manifest = describe(staging, kind, made_from or {}, details or {})
        (staging / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
        sync_all(staging)
        _replace(staging, target, exchange_paths)
        sync(target.parent)  # from here on the hidden name refers to the old artifact, if any


def refuse_foreign(target: Path, kind: str) -> None:
    """Raise `ArtifactError` if the target contains anything other than an artifact of the given `kind`."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    try:
        found = Manifest.read(target).kind
    except (ArtifactError, NotADirectoryError):
        found = "something that is not an artifact of Rankline"
    if found != kind:
        raise ArtifactError(f"{target} contains {found}, which would be replaced by a new {kind}. Choose another path.")


def load_manifest(directory: Path, kind: str) -> Manifest:
    """Read an artifact's manifest and check that the files match it.

    Raises:
        ArtifactError: the artifact is missing or of another kind, or a file is missing, damaged or not listed.
    """
    if not directory.is_dir():
        raise ArtifactError(f"{directory.absolute()} does not exist, expected {kind}; {remedy(kind, directory)}.")
    manifest = Manifest.read(directory)
    if manifest.kind != kind:
        raise ArtifactError(f"{directory} contains {manifest.kind}, expected {kind}. Pass the directory of the {kind}.")
    refuse_links(directory, kind)
    check_files(directory, manifest.files, kind)
    refuse_unlisted(directory, {*manifest.files, MANIFEST}, kind)
    return manifest


def refuse_unlisted(directory: Path, names: Collection[str], kind: str) -> None:
    if foreign := sorted({name for name, _ in files_below(directory)} - set(names)):
        raise ArtifactError(f"{directory / foreign[0]} is not in the manifest of the {kind}. Remove it.")


def check_files(directory: Path, files: Mapping[str, FileRecord], kind: str) -> None:
    for name, expected in files.items():
        path = directory / name
        if not path.is_file():
            raise ArtifactError(f"{path} is missing from the {kind}. Create the {kind} again.")
        if path.stat().st_size != expected.num_bytes:
            raise ArtifactError(
                f"{path} has {path.stat().st_size} bytes, expected {expected.num_bytes}. Create the {kind} again."
            )
        if sha256_of(path) != expected.sha256:
            raise ArtifactError(f"{path} does not match its checksum in the manifest. Create the {kind} again.")


def refuse_links(directory: Path, kind: str) -> None:
    """Reject symbolic links and special files in an artifact. The target of a link could change independently."""
    for path in sorted(directory.rglob("*")):
        if path.is_symlink():
            raise ArtifactError(
                f"{path} is a symbolic link, but the {kind} may contain only files. Replace the link with the file."
            )
        if not (path.is_file() or path.is_dir()):
            raise ArtifactError(f"{path} is not a regular file, but the {kind} may contain only files. Remove it.")


def remedy(kind: str, directory: Path) -> str:
    """Return advice on how to create a missing artifact, usually the command to run."""
    directory = directory.absolute()
    parent = directory.parent
    recipe, exported = (shlex.quote(CALLED.get(name, name)) for name in (parent.name, directory.name))
    commands = {
        "prepared-data": f"rankline prepare {recipe} --work-dir {parent.parent}",
        "trained-model": f"rankline train {recipe} --work-dir {parent.parent}",
        "ensemble": f"rankline export {exported} --repository {parent}, or rankline run {exported} for all steps",
        "sample": f"rankline export --model PATH --sample FILE --name {parent.name} --work-dir {parent.parent}",
    }
    return f"run {commands[kind]}" if kind in commands else "create it first"


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield the path of a hidden temporary file that replaces `path` on success, with the same permissions.

    Missing directories are created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = stat.S_IMODE(path.stat().st_mode) if path.is_file() else 0o644
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        staging = Path(file.name)
    try:
        yield staging
        staging.chmod(mode)
        sync(staging)
        staging.replace(path)
        sync(path.parent)
    except BaseException:
        staging.unlink(missing_ok=True)
        raise


@contextmanager
def output_file(path: Path) -> Iterator[Path]:
    """Yield the path to which to write a file that a user named. The file is replaced completely or not at all.

    If the path is a symbolic link, its target is replaced. A device or a pipe is written directly.
    """
    if path.exists() and not path.is_file():
        yield path
    else:
        with whole_file(path.resolve() if path.is_symlink() else path) as staging:
            yield staging


def write_whole(path: Path, content: bytes) -> None:
    with whole_file(path) as staging:
        staging.write_bytes(content)


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with open_regular(path) as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), **installed_versions(_PACKAGES)}


def describe(directory: Path, kind: str, made_from: Mapping[str, str], details: Mapping[str, Any]) -> Manifest:
    files = {
        name: FileRecord(sha256=sha256_of(path), num_bytes=path.stat().st_size) for name, path in files_below(directory)
    }
    return Manifest(
        kind=kind,
        fingerprint=_fingerprint(kind, made_from, files),
        made_from=made_from,
        details=details,
        files=files,
        versions=versions(),
        created_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def _fingerprint(kind: str, made_from: Mapping[str, str], files: Mapping[str, FileRecord]) -> str:
    identity = [kind, sorted(made_from.items()), sorted((name, record.sha256) for name, record in files.items())]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()


def files_below(directory: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            yield path.relative_to(directory).as_posix(), path


def code_fingerprint(*packages: Path) -> str:
    """Return the first 12 hex digits of a SHA-256 hash of the packages' Python sources."""
    files = [
        f"{package.name}/{name} {sha256_of(path)}"
        for package in packages
        for name, path in files_below(package)
        if path.suffix == ".py"
    ]
    return hashlib.sha256("\n".join(files).encode()).hexdigest()[:12]


def _replace(staging: Path, target: Path, exchange: Callable[[Path, Path], bool]) -> None:
    """Move `staging` to `target`. If `target` exists, swap the two."""
    if not target.exists():
        staging.rename(target)
    elif not exchange(staging, target):  # the file system cannot swap: rename twice, deleting nothing until the end
        aside = staging.with_name(staging.name + ".old")
        target.rename(aside)
        try:
            staging.rename(target)
        except OSError:
            aside.rename(target)
            raise
        aside.rename(staging)


def exchange_paths(first: Path, second: Path) -> bool:
    """Swap two paths atomically with Linux's renameat2. Return whether the swap succeeded."""
    at_fdcwd, rename_exchange = -100, 2
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    return bool(renameat2(at_fdcwd, os.fsencode(first), at_fdcwd, os.fsencode(second), rename_exchange) == 0)
