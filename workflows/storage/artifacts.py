"""Directories on disk that are whole or not there: manifest, checksums, atomic publish.

Every noun of the flow (prepared data, trained model, exported ensemble) is one directory with a `manifest.json`:
what it is, what it was made from, which versions made it, and the SHA-256 and size of each file. A stage fills a
hidden sibling, which then takes the place of the old directory in one exchange, so a killed stage, or a power cut,
leaves the old artifact or the new one, never a mixture.
"""

import ctypes
import hashlib
import json
import os
import platform
import shlex
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rankline.workflows.core.errors import ArtifactError, in_short
from rankline.workflows.storage.atomic import staging_for, sync, sync_all
from rankline.workflows.storage.regular_files import open_regular, read_regular

MANIFEST = "manifest.json"
FORMAT_VERSION = 1
CALLED: dict[str, str] = {}
"""Name of a recipe → what it was asked for by, such as its file, which is what a command to make something takes."""

_LONGEST_NAME = 255  # bytes that Linux takes for one part of a path
_MOST_MANIFEST_BYTES = 8 << 20  # of some 50,000 files; JSON takes 25 times as much in memory
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
    """What a directory holds and where it comes from.

    Attributes:
        kind: noun, e.g. "prepared-data".
        fingerprint: SHA-256 over kind, origin and the checksums of all files: the artifact's identity.
        made_from: name → fingerprint of each artifact or source that went in.
        details: counts and choices worth showing; JSON values only.
        files: POSIX path below the directory → record.
        versions: package → version that made it.
        created_at: UTC, ISO 8601; not part of the fingerprint.
    """

    kind: str
    fingerprint: str
    made_from: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, FileRecord] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    created_at: str = ""

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
        """Read `manifest.json` of `directory` without looking at the files it lists.

        Raises:
            ArtifactError: no manifest, or one that cannot be read.
        """
        path = directory / MANIFEST
        try:
            document = json.loads(read_regular(path, _MOST_MANIFEST_BYTES))
            format_version = document.pop("format_version")
            if format_version != FORMAT_VERSION:
                raise ArtifactError(
                    f"{path} has format version {format_version!r:.50}, this Rankline reads {FORMAT_VERSION}. "
                    "Make it again."
                )
            files = {name: FileRecord(**record) for name, record in document.pop("files").items()}
            manifest = cls(files=files, **document)
            manifest._check_types()
            return manifest
        except FileNotFoundError:
            raise ArtifactError(f"{directory} is not an artifact: it has no {MANIFEST}.") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ArtifactError(f"{path} cannot be read ({in_short(error)}). Make the artifact again.") from None

    def check_fingerprint(self, expected: str, source: Path) -> None:
        """Refuse another artifact than the one that was meant, also one whose manifest says that it is that one."""
        found = _fingerprint(self.kind, self.made_from, self.files)
        if found != expected.lower():
            raise ArtifactError(
                f"{source} has the fingerprint {found}, expected {expected}. Get the right {self.kind}."
            )

    def _check_types(self) -> None:
        texts = [self.kind, self.fingerprint, self.created_at]
        for name, mapping in (("made_from", self.made_from), ("details", self.details), ("versions", self.versions)):
            if not isinstance(mapping, dict):
                raise TypeError(f"{name} is not an object")
        texts += [*self.made_from.values(), *self.versions.values(), *(file.sha256 for file in self.files.values())]
        if odd := [text for text in texts if not (isinstance(text, str) and text.isprintable())]:
            raise TypeError(f"{odd[0]!r:.200} is not a line of text")
        for name, record in self.files.items():
            if type(record.num_bytes) is not int or record.num_bytes < 0:
                raise TypeError(f"{name} has {record.num_bytes!r} bytes")
            parts = Path(name).parts
            is_long = any(len(part.encode()) > _LONGEST_NAME for part in parts)
            if Path(name).is_absolute() or ".." in parts or not name.isprintable() or is_long:
                raise ValueError(f"{name!r:.200} is not the path of a file of it")


@contextmanager
def publish(
    target: Path, kind: str, *, made_from: Mapping[str, str] | None = None, details: dict[str, Any] | None = None
) -> Iterator[Path]:
    """Fill a new artifact and put it at `target` in one step when the block ends without an error.

    Args:
        target: directory to make or replace. One that exists and is not an artifact is refused, so that a wrong path
            never costs anybody their files.
        kind: noun written into the manifest.
        made_from: name → fingerprint of what went in.
        details: written into the manifest; the block may go on filling it.

    Yields:
        The hidden sibling directory to write into.

    Raises:
        ArtifactError: `target` is a file or a directory that is not an artifact.
    """
    target = target.resolve()  # what a link points to is replaced, not the link
    refuse_foreign(target, kind)
    with staging_for(target) as staging:
        yield staging
        manifest = describe(staging, kind, made_from or {}, details or {})
        (staging / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
        sync_all(staging)
        _replace(staging, target, exchange_paths)
        sync(target.parent)  # from here on the hidden name holds the old artifact, if there was one


def refuse_foreign(target: Path, kind: str) -> None:
    """Refuse a target that holds something else than an artifact of `kind`."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    try:
        found = Manifest.read(target).kind
    except (ArtifactError, NotADirectoryError):
        found = "something that is not an artifact of Rankline"
    if found != kind:
        raise ArtifactError(f"{target} holds {found}, and a {kind} would replace it. Choose another path.")


def load_manifest(directory: Path, kind: str) -> Manifest:
    """Read the manifest of an artifact and check it against the files.

    Args:
        directory: the artifact.
        kind: what the caller expects it to be.

    Raises:
        ArtifactError: missing, of another kind, or a file is missing, damaged or not of the artifact.
    """
    if not directory.is_dir():
        raise ArtifactError(f"{directory.absolute()} does not exist. Expected {kind}: {remedy(kind, directory)}.")
    manifest = Manifest.read(directory)
    if manifest.kind != kind:
        raise ArtifactError(f"{directory} holds {manifest.kind}, expected {kind}. Give the directory of the {kind}.")
    refuse_links(directory, kind)
    check_files(directory, manifest.files, kind)
    refuse_unlisted(directory, {*manifest.files, MANIFEST}, kind)
    return manifest


def refuse_unlisted(directory: Path, names: Collection[str], kind: str) -> None:
    """Refuse files that an artifact does not list."""
    if foreign := sorted({name for name, _ in files_below(directory)} - set(names)):
        raise ArtifactError(f"{directory / foreign[0]} is not in the manifest of the {kind}. Remove it.")


def check_files(directory: Path, files: Mapping[str, FileRecord], kind: str) -> None:
    """Check files of an artifact against what its manifest says."""
    for name, expected in files.items():
        path = directory / name
        if not path.is_file():
            raise ArtifactError(f"{path} is missing from the {kind}. Make the {kind} again.")
        if path.stat().st_size != expected.num_bytes:
            raise ArtifactError(
                f"{path} has {path.stat().st_size} bytes, expected {expected.num_bytes}. Make the {kind} again."
            )
        if sha256_of(path) != expected.sha256:
            raise ArtifactError(f"{path} does not match its checksum in the manifest. Make the {kind} again.")


def refuse_links(directory: Path, kind: str) -> None:
    """Refuse links below a directory of an artifact: what they lead to is not the artifact's, and may change."""
    for path in sorted(directory.rglob("*")):
        if path.is_symlink():
            raise ArtifactError(f"{path} is a link, and this {kind} may hold only files. Put the file in its place.")
        if not (path.is_file() or path.is_dir()):
            raise ArtifactError(f"{path} is not a regular file, and this {kind} may hold only files. Remove it.")


def remedy(kind: str, directory: Path) -> str:
    """The command that makes an artifact where the command line keeps it."""
    directory = directory.absolute()
    parent = directory.parent
    recipe, exported = (shlex.quote(CALLED.get(name, name)) for name in (parent.name, directory.name))
    commands = {
        "prepared-data": f"rankline prepare {recipe} --work-dir {parent.parent}",
        "trained-model": f"rankline train {recipe} --work-dir {parent.parent}",
        "ensemble": f"rankline export {exported} --repository {parent}; rankline run {exported} does all of it",
        "sample": f"rankline export --model PATH --sample FILE --name {parent.name} --work-dir {parent.parent}",
    }
    return f"make it with: {commands[kind]}" if kind in commands else "make it first"


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A hidden sibling to write, which takes the place of `path` when the block ends without an error.

    The directory of `path` is made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        staging = Path(file.name)
    try:
        yield staging
        staging.chmod(0o644)
        sync(staging)
        staging.replace(path)
        sync(path.parent)
    except BaseException:
        staging.unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, its directory included."""
    with whole_file(path) as staging:
        staging.write_bytes(content)


def sha256_of(path: Path) -> str:
    """SHA-256 of a regular file's bytes, as hexadecimal digits."""
    digest = hashlib.sha256()
    with open_regular(path) as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that shape an artifact."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def describe(directory: Path, kind: str, made_from: Mapping[str, str], details: Mapping[str, Any]) -> Manifest:
    """The manifest of everything below a directory."""
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
    """Every file below a directory with its POSIX path, in order."""
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            yield path.relative_to(directory).as_posix(), path


def code_fingerprint(*packages: Path) -> str:
    """12 characters of a SHA-256 over the Python sources of packages."""
    files = [
        f"{package.name}/{name} {sha256_of(path)}"
        for package in packages
        for name, path in files_below(package)
        if path.suffix == ".py"
    ]
    return hashlib.sha256("\n".join(files).encode()).hexdigest()[:12]


def _replace(staging: Path, target: Path, exchange: Callable[[Path, Path], bool]) -> None:
    """Put `staging` at `target`; an old artifact ends up under the name of `staging`."""
    if not target.exists():
        staging.rename(target)
    elif not exchange(staging, target):  # a file system without exchange: two renames, the old kept until the end
        aside = staging.with_name(staging.name + ".old")
        target.rename(aside)
        try:
            staging.rename(target)
        except OSError:
            aside.rename(target)
            raise
        aside.rename(staging)


def exchange_paths(first: Path, second: Path) -> bool:
    """Swap two paths atomically with Linux's renameat2; False where the system cannot."""
    at_fdcwd, rename_exchange = -100, 2
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    return bool(renameat2(at_fdcwd, os.fsencode(first), at_fdcwd, os.fsencode(second), rename_exchange) == 0)
