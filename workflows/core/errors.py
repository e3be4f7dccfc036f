"""Exceptions for problems that a user can cause and fix.

A message states what was received, what was expected and what to do, in one or two lines. The command line prints it
without a traceback and exits with status 1. The errors also derive from the built-in exception for their kind, so that
`except ValueError` catches a wrong option.
"""

import re

PINNED = "pinned"  # a dependency group in pyproject.toml: packages installed without their declared dependencies
PINNED_PACKAGES = (
    "nvtabular==23.8.0",
    "merlin-core==23.8.0",
    "merlin-systems==23.8.0",
    "tensorflow-metadata==1.21.0",
    "nvidia-pytriton==0.7.0",
    "tf_keras==2.21.0",
)
_TWO_STOPS = re.compile(r"(?<=[^\s./])\.(\)?)\.(?=\s|$)")
"""Matches two full stops, one that ends a quotation and one after it, but not dots in paths."""


def in_short(error: Exception) -> str:
    """Return a library's error message as one line of at most 200 characters without a final full stop."""
    return " ".join(str(error).split())[:200].rstrip(".")


class RanklineError(Exception):
    """Base class of errors that a user can cause and fix.

    Args:
        message: may quote a library's message. A doubled full stop at the end of a quotation is removed, and characters
            that a terminal cannot print are escaped.
    """

    def __init__(self, message: str) -> None:
        once = _TWO_STOPS.sub(r"\1.", message)
        super().__init__("".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in once))


class DataError(RanklineError, ValueError):
    """Raw rows or files do not match what was expected."""


class MissingFilesError(DataError, FileNotFoundError):
    """Files of data do not exist."""


class DownloadError(DataError):
    """A dataset could not be downloaded completely."""


class SpecError(RanklineError, ValueError):
    """A feature spec is invalid or does not match the data."""


class ArtifactError(RanklineError):
    """A file or directory is missing, damaged, or belongs to another artifact."""


class ConfigError(RanklineError, ValueError):
    """An option is out of range, or options contradict each other."""


class ArgumentError(ConfigError, TypeError):
    """An argument is unknown, or has a type that is not supported."""


class MissingExtraError(RanklineError, ImportError):
    """A feature needs an optional dependency that is not installed.

    Args:
        feature: the feature that the user asked for.
        extra: the extra in pyproject.toml that provides the dependency, or `PINNED`.
    """

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs packages that are not installed. Run: {install_line(extra)}")
        self.feature, self.extra = feature, extra

    def __reduce__(self) -> tuple[type["MissingExtraError"], tuple[str, str]]:
        return type(self), (self.feature, self.extra)


def install_line(extra: str) -> str:
    """Return the command that installs `extra`, or the pinned packages if `extra` is `PINNED`."""
    if extra == PINNED:
        # Not with pip: from version 26.3 on, pip rejects merlin-systems because of an extra that nobody requested.
        return f"pip install uv && python -m uv pip install --no-deps {' '.join(PINNED_PACKAGES)}"
    return f"pip install 'rankline[{extra}]'"


class WorkersError(RanklineError):
    """Several workers cannot train together. Every worker raises this error, so only one of them has to report it."""


class WorkerLostError(WorkersError):
    """Another worker exited or does not respond. That worker may have reported the reason itself."""


class ClusterError(RanklineError):
    """A Dask cluster is unreachable, unsuitable or lost."""


class ExportError(RanklineError):
    """A workflow and a model cannot be exported as an ensemble."""


class LoweringError(ExportError):
    """An NVTabular operator has no compiled form."""


class ParityError(ExportError):
    """Offline and served results differ."""


class ServingError(RanklineError):
    """A server or a request failed."""


class ServerError(ServingError):
    """The server did not start, died, or does not respond."""


class ServerBusyError(ServerError):
    """The queue of a model is full, or a request waited in it for too long."""


class DeadlineError(ServerError):
    """The deadline passed before a response arrived."""


class RequestError(ServingError):
    """The server rejected a request."""


class UnfitError(RequestError):
    """A request contains a number or a list that is too large for the model's input."""
