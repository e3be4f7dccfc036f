"""Optional dependencies: said once where they are needed, with the line that installs them."""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec

from rankline.workflows.core.errors import MissingExtraError, RanklineError, install_line

_TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "intel-tensorflow", "tf-nightly")
"""Distributions that hold the module `tensorflow`."""


def require(module: str, *, feature: str, extra: str) -> None:
    """Refuse to go on without an optional module; nothing is imported.

    Raises:
        MissingExtraError: it is not installed.
        RanklineError: it is TensorFlow, of another version or twice.
    """
    if find_spec(module) is None:
        raise MissingExtraError(feature, extra)
    if module == "tensorflow" and (problem := tensorflow_problem(extra)):
        raise RanklineError(f"{feature}: {problem}")


def tensorflow_problem(extra: str) -> str | None:
    """Why the TensorFlow that is installed is not the one that the extra brings, with the remedy; None if it is."""
    found = dict(_installed_tensorflows())
    listed = " and ".join(f"{name} {release}" for name, release in found.items())
    remedy = f"pip uninstall -y {' '.join(found)}, then {install_line(extra)}"
    if len(found) > 1:
        return f"{listed} are both installed, and each has overwritten files of the other: {remedy}"
    expected = _expected_release()
    if expected and found and expected not in found.values():
        return f"{listed} is installed, expected {expected}: {remedy}"
    return None


def _installed_tensorflows() -> Iterator[tuple[str, str]]:
    for name in _TENSORFLOWS:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


def _expected_release() -> str | None:
    """What Rankline's metadata pin; None where it runs from a folder without being installed."""
    try:
        declared = requires("rankline") or ()
    except PackageNotFoundError:
        return None
    pins = (line.partition(";")[0].split("==") for line in declared)
    return next(release.strip() for name, *rest in pins if name in _TENSORFLOWS for release in rest)
