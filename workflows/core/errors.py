"""Everything that a user can cause, as one tree of exceptions.

A message says what was got, what was expected and what to do, in one or two lines. The command line prints it
without a traceback and exits with status 1.
"""

import re

PINNED = "pinned"  # a group in pyproject.toml: packages that are installed without what they declare
PINNED_PACKAGES = (
    "nvtabular==23.8.0",
    "merlin-core==23.8.0",
    "merlin-systems==23.8.0",
    "tensorflow-metadata==1.21.0",
    "nvidia-pytriton==0.7.0",
    "tf_keras==2.21.0",
)
_TWO_STOPS = re.compile(r"(?<=[^\s./])\.(\)?)\.(?=\s|$)")
"""One at the end of a quotation and one after it, not what is in a path."""


def in_short(error: Exception) -> str:
    """What a library says is wrong, in one line of bounded length that ends without a full stop."""
    return " ".join(str(error).split())[:200].rstrip(".")


class RanklineError(Exception):
    """Anything that a user can cause and correct.

    Args:
        message: may quote what a library said, which may end with a full stop of its own and hold bytes of a file; the
            stop is left out before ours, and what a terminal cannot print is escaped.
    """

    def __init__(self, message: str) -> None:
        once = _TWO_STOPS.sub(r"\1.", message)
        super().__init__("".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in once))


class DataError(RanklineError):
    """Raw rows or files are not what was expected."""


class DownloadError(DataError):
    """A dataset could not be fetched whole."""


class SpecError(RanklineError):
    """A feature spec is not valid, or does not fit the data."""


class ArtifactError(RanklineError):
    """Something on disk is missing, damaged, or belongs to something else."""


class ConfigError(RanklineError):
    """An option is out of its range, or options contradict each other."""


class MissingExtraError(RanklineError):
    """A feature needs an optional dependency.

    Args:
        feature: what was asked for.
        extra: name of the extra in pyproject.toml that brings it, or `PINNED`.
    """

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs packages that are not installed: {install_line(extra)}")
        self.feature, self.extra = feature, extra

    def __reduce__(self) -> tuple[type["MissingExtraError"], tuple[str, str]]:
        return type(self), (self.feature, self.extra)


def install_line(extra: str) -> str:
    """Return the command that installs an extra, or the packages of `PINNED`."""
    if extra == PINNED:
        # Not by pip: from 26.3 on, it refuses merlin-systems for an extra that nobody asks for.
        return f"pip install uv && python -m uv pip install --no-deps {' '.join(PINNED_PACKAGES)}"
    return f"pip install 'rankline[{extra}]'"


class WorkersError(RanklineError):
    """Several workers cannot train together. All of them raise it, so that it is enough that one tells."""


class WorkerLostError(WorkersError):
    """Another worker ended, or does not answer; why, it may have told itself."""


class ClusterError(RanklineError):
    """A Dask cluster cannot be reached, is not fit for the work, or is lost."""


class ExportError(RanklineError):
    """Workflow and model cannot become an ensemble."""


class LoweringError(ExportError):
    """An NVTabular operator has no compiled form."""


class ParityError(ExportError):
    """Offline and served results differ."""


class ServingError(RanklineError):
    """A server or a request failed."""


class ServerError(ServingError):
    """The server did not start, died, or does not answer."""


class ServerBusyError(ServerError):
    """Too many requests wait for a model: its queue is full, or one waited longer than it allows."""


class DeadlineError(ServerError):
    """No answer came in time."""


class RequestError(ServingError):
    """The server refused a request."""


class UnfitError(RequestError):
    """A column of a request holds a number or a list that is too large for the model's input."""
