import hashlib
import http.client
import re
import urllib.error
import urllib.request
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from rankline.workflows.core.errors import DownloadError
from rankline.workflows.core.progress import SILENT, Progress
from rankline.workflows.storage.atomic import staging_for, sync, sync_all

_BLOCK_BYTES = 1 << 18
_MAX_UNPACKED = 100  # limit on the expansion ratio; numbers as text expand about tenfold
_MAX_FILES = 10_000
_INSTEAD = "Pass --data-dir DIR to use files on disk, or leave out --download to generate data."


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A zip file on a server.

    Without an MD5, as the publisher changes the file, the MD5 published at `url` + ".md5" is checked or, if there is
    none, only the checksums inside the zip file.
    """

    name: str  # name of the directory that the archive is unpacked to
    url: str  # address of the zip file
    md5: str | None = None  # MD5 of the zip file in hexadecimal


def download(archive: Archive, directory: Path, *, progress: Progress = SILENT, timeout_s: float = 30.0) -> Path:
    """Download an archive and unpack it to `directory / archive.name`, unless that directory exists. A single top-level
    folder is stripped.

    Raises:
        DownloadError: the server is unreachable or rejects the request, the transfer breaks off, the file is damaged,
            or the directory is not writable. No partial archive remains.
    """
    target = directory / archive.name
    if target.is_dir():
        return target
    try:
        with staging_for(target) as staging:
            packed, unpacked = staging / "archive.zip", staging / "contents"
            md5 = _fetch(archive, packed, progress, timeout_s)
            expected = archive.md5 or _published_md5(f"{archive.url}.md5", timeout_s)
            if expected not in (None, md5):
                raise DownloadError(f"{archive.url} has MD5 {md5}, expected {expected}. Run the command again.")
            _unpack(archive, packed, unpacked)
            entries = list(unpacked.iterdir())
            whole = entries[0] if len(entries) == 1 and entries[0].is_dir() else unpacked
            sync_all(whole)
            whole.rename(target)
            sync(directory)
    except OSError as error:  # network errors were already converted to DownloadError
        raise DownloadError(f"{archive.name} cannot be stored in {directory} ({error.strerror or error}).") from None
    return target


def _fetch(archive: Archive, path: Path, progress: Progress, timeout_s: float) -> str:
    digest, done = hashlib.md5(usedforsecurity=False), 0
    try:
        response = _open(archive.url, timeout_s)
    except urllib.error.HTTPError as error:
        raise _refused(archive.url, error) from None
    with response, path.open("wb") as stream:
        total = response.length  # None if the server does not send it
        while block := _read(response, archive.url):
            stream.write(block)
            digest.update(block)
            done += len(block)
            progress.update(done, total or done, archive.name)
    if total is not None and done < total:
        raise DownloadError(
            f"the download of {archive.url} stopped after {done} of {total} bytes. Run the command again."
        )
    return digest.hexdigest()


def _open(url: str, timeout_s: float) -> http.client.HTTPResponse:
    request = urllib.request.Request(url, headers={"User-Agent": "rankline"})
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=timeout_s)
    except urllib.error.HTTPError:
        raise
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise DownloadError(f"{url} could not be reached ({reason}). {_INSTEAD}") from None
    return response


def _read(response: http.client.HTTPResponse, url: str) -> bytes:
    try:
        return response.read(_BLOCK_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise DownloadError(f"the download of {url} failed ({error}). Run the command again.") from None


def _refused(url: str, error: urllib.error.HTTPError) -> DownloadError:
    error.close()
    return DownloadError(f"{url} returned {error.code} {error.reason}, expected the file. {_INSTEAD}")


def _published_md5(url: str, timeout_s: float) -> str | None:
    """Return the first MD5 in the file at `url`; None if the server has no such file."""
    try:
        with _open(url, timeout_s) as response:
            text = _read(response, url).decode("ascii", errors="replace")
    except urllib.error.HTTPError as error:
        if error.code == 404:
            error.close()
            return None
        raise _refused(url, error) from None
    found = re.search(r"\b[0-9a-fA-F]{32}\b", text)
    if found is None:
        raise DownloadError(f"{url} contains {text[:40]!r}, expected an MD5 checksum. Try again later.")
    return found.group().lower()


def _unpack(archive: Archive, packed: Path, directory: Path) -> None:
    try:
        with zipfile.ZipFile(packed) as bundle:
            entries = bundle.infolist()
            num_bytes, limit = sum(entry.file_size for entry in entries), _MAX_UNPACKED * packed.stat().st_size
            if num_bytes > limit or len(entries) > _MAX_FILES:
                raise DownloadError(
                    f"{archive.url} would unpack to {num_bytes:,} bytes in {len(entries):,} files, expected at "
                    f"most {limit:,} bytes in {_MAX_FILES:,} files. It was not unpacked."
                )
            for name in bundle.namelist():
                path = PurePosixPath(name.replace("\\", "/"))
                if path.is_absolute() or ".." in path.parts:
                    raise DownloadError(
                        f"{archive.url} contains {name!r}, which would be written outside its directory. It was "
                        "not unpacked."
                    )
            bundle.extractall(directory)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DownloadError(f"{archive.url} is not a complete zip file ({error}). Run the command again.") from None
    except (RuntimeError, NotImplementedError) as error:  # encrypted, or an unsupported compression
        raise DownloadError(f"{archive.url} cannot be unpacked ({error}). {_INSTEAD}") from None
