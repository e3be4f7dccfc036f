"""Checks that commands make before the long work starts."""

from pathlib import Path
from tempfile import NamedTemporaryFile

from rankline.terminal.console import STDOUT
from rankline.workflows.core.errors import ConfigError


def batch_sizes_of(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--batch-sizes is {text!r}, expected whole numbers separated by commas: 1,64,4096") from None


def check_writable(path: Path | None) -> None:
    """Refuse a path that cannot be written, before the work starts.

    The directory is not created here, so a refused command leaves nothing behind.
    """
    if path in (None, STDOUT):
        return
    if path.is_dir():
        raise ConfigError(f"{path} is a directory, expected a file to be written: {path / 'result.json'}")
    there = next(parent for parent in path.absolute().parents if parent.exists())
    if not there.is_dir():
        raise ConfigError(f"{there} is a file, expected a directory for {path.name}. Move the file away.")
    with NamedTemporaryFile(dir=there, prefix=f".{path.name}."):
        pass
