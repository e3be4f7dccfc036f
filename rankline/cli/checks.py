"""What verbs check before the long work starts."""

from pathlib import Path
from tempfile import NamedTemporaryFile

from workflows.errors import ConfigError


def batch_sizes_of(text: str) -> tuple[int, ...]:
    """Rows per request of `--batch-sizes`."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--batch-sizes is {text!r}, expected whole numbers separated by commas: 1,64,4096") from None


def check_writable(path: Path | None) -> None:
    """Find out that a result cannot be written before it is worked for, not after."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
            pass
