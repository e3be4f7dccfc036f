"""Fetch a dataset's archive: streamed, resumed where it broke off, checked, unpacked whole or not at all."""

import hashlib
import http.client
import os
import re
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from workflows.durable import staging_for, sync, sync_all
from workflows.errors import DownloadError
from workflows.progress import SILENT, Progress

_BLOCK_BYTES = 1 << 18
_MOST_UNPACKED = 100  # times as large as the zip; texts of numbers come to ten
_MOST_FILES = 10_000
_INSTEAD = "Use files that are already on disk with --data-dir DIR, or generate data: leave out --download."


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A zip file on a server.

    Attributes:
        name: name of the directory that the archive becomes.
        url: where it lies.
        md5: MD5 of the zip, hexadecimal. None where the publisher changes the file: then the MD5 that the server gives
            at `url` + ".md5" counts, and with none there only the checksums inside the zip do.
    """

    name: str
    url: str
    md5: str | None = None


def download(archive: Archive, directory: Path, *, progress: Progress = SILENT, timeout_s: float = 30.0) -> Path:
    """Fetch and unpack an archive; does nothing when that was done before.

    A broken transfer goes on where it stopped, in this call as long as the server sends more, and in a later one.

    Args:
        archive: what to fetch.
        directory: where `archive.name` is put; made if missing.
        progress: told the bytes received.
        timeout_s: longest silence of the server that is waited for.

    Returns:
        `directory / archive.name`, holding what the zip holds, without a top folder that wraps everything.

    Raises:
        DownloadError: not reachable, refused, cut off, damaged, or not writable. No half archive is left in place.
    """
    target = directory / archive.name
    if target.is_dir():
        return target
    part = directory / f"{archive.name}.part"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _fetch(archive.url, part, progress, timeout_s)
        _verify(archive, part, timeout_s)
        _unpack(archive, part, target)
        part.unlink()
    except OSError as error:  # those of the network are DownloadErrors by now
        raise DownloadError(f"{archive.name} cannot be stored in {directory} ({error.strerror or error}).") from None
    return target


def _fetch(url: str, part: Path, progress: Progress, timeout_s: float) -> None:
    """Bring `part` to its full length, resuming for as long as each attempt gets further than all before it."""
    furthest = -1
    while not _receive(url, part, progress, timeout_s):
        size = part.stat().st_size
        if size <= furthest:
            raise DownloadError(f"{url} broke off after {size} bytes. Run it again to go on from there.")
        furthest = size


def _receive(url: str, part: Path, progress: Progress, timeout_s: float) -> bool:
    """One request for what `part` lacks; tells whether `part` is whole now."""
    have = part.stat().st_size if part.exists() else 0
    try:
        response = _open(url, timeout_s, {"Range": f"bytes={have}-"} if have else {})
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise _refused(url, error) from None
        # Nothing lies behind what is there: it is either whole already, or of another file.
        whole = error.headers.get("Content-Range") == f"bytes */{have}"
        error.close()
        if not whole:
            part.unlink()
        return whole or _receive(url, part, progress, timeout_s)
    with response:
        resumed = response.status == 206
        length = response.headers.get("Content-Length")
        done = have if resumed else 0
        total = None if length is None else done + int(length)
        with part.open("ab" if resumed else "wb") as stream:
            while block := _read(response):
                stream.write(block)
                done += len(block)
                progress.update(done, total or done, part.stem)
    return block is not None and (total is None or done >= total)


def _open(url: str, timeout_s: float, headers: Mapping[str, str] | None = None) -> http.client.HTTPResponse:
    request = urllib.request.Request(url, headers={"User-Agent": "rankline", **(headers or {})})
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=timeout_s)
    except urllib.error.HTTPError:
        raise
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise DownloadError(f"{url} could not be reached ({reason}). {_INSTEAD}") from None
    return response


def _read(response: http.client.HTTPResponse) -> bytes | None:
    """The next block; empty at the end, None where the connection broke."""
    try:
        return response.read1(_BLOCK_BYTES)
    except (OSError, http.client.HTTPException):
        return None


def _refused(url: str, error: urllib.error.HTTPError) -> DownloadError:
    error.close()
    return DownloadError(f"{url} answered {error.code} {error.reason}, expected the file. {_INSTEAD}")


def _verify(archive: Archive, part: Path, timeout_s: float) -> None:
    expected = archive.md5 or _published_md5(archive.url + ".md5", timeout_s)
    if expected is None:
        return
    digest = hashlib.md5(usedforsecurity=False)
    with part.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    if digest.hexdigest() != expected:
        part.unlink()
        raise DownloadError(
            f"{archive.url} came with MD5 {digest.hexdigest()}, expected {expected}. It was removed: run it again."
        )


def _published_md5(url: str, timeout_s: float) -> str | None:
    """The first thing in the file at `url` that looks like an MD5; None where the server has no such file."""
    try:
        with _open(url, timeout_s) as response:
            text = (_read(response) or b"").decode("ascii", errors="replace")
    except urllib.error.HTTPError as error:
        if error.code == 404:
            error.close()
            return None
        raise _refused(url, error) from None
    found = re.search(r"\b[0-9a-fA-F]{32}\b", text)
    if found is None:
        raise DownloadError(f"{url} holds {text[:40]!r}, expected an MD5 checksum. Run it again later.")
    return found.group().lower()


def _unpack(archive: Archive, part: Path, target: Path) -> None:
    with staging_for(target) as staging:
        try:
            with part.open("rb") as stream:
                _extract(archive, stream, staging)
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            part.unlink()
            raise DownloadError(
                f"{archive.url} is not a complete zip file ({error}). It was removed: run it again."
            ) from None
        except (RuntimeError, NotImplementedError) as error:  # a password, or a compression that Python lacks
            part.unlink()
            raise DownloadError(f"{archive.url} cannot be unpacked ({error}). It was removed. {_INSTEAD}") from None
        entries = list(staging.iterdir())
        whole = entries[0] if len(entries) == 1 and entries[0].is_dir() else staging
        sync_all(whole)
        whole.rename(target)
        sync(target.parent)


def _extract(archive: Archive, stream: BinaryIO, directory: Path) -> None:
    with zipfile.ZipFile(stream) as bundle:
        entries = bundle.infolist()
        num_bytes, limit = sum(entry.file_size for entry in entries), _MOST_UNPACKED * _size_of(stream)
        if num_bytes > limit or len(entries) > _MOST_FILES:
            raise DownloadError(
                f"{archive.url} would unpack to {num_bytes:,} bytes in {len(entries):,} files, expected at most "
                f"{limit:,} in {_MOST_FILES:,}. Not unpacked."
            )
        for name in bundle.namelist():
            path = PurePosixPath(name.replace("\\", "/"))
            if path.is_absolute() or ".." in path.parts:
                raise DownloadError(f"{archive.url} holds {name!r}, which would lie outside its folder. Not unpacked.")
        bundle.extractall(directory)


def _size_of(stream: BinaryIO) -> int:
    return os.fstat(stream.fileno()).st_size
