from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec

from rankline.workflows.core.errors import MissingExtraError, RanklineError, install_line

_TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "intel-tensorflow", "tf-nightly")
"""Distributions that provide the module `tensorflow`."""


def require(module: str, *, feature: str, extra: str) -> None:
    """Check that an optional module is installed, without importing it.

    Raises:
        MissingExtraError: the module is not installed.
        RanklineError: the module is TensorFlow, and its version is wrong or several distributions provide it.
    """
    if find_spec(module) is None:
        raise MissingExtraError(feature, extra)
    if module == "tensorflow" and (problem := tensorflow_problem(extra)):
        raise RanklineError(f"{feature}: {problem}")


def tensorflow_problem(extra: str) -> str | None:
    """Return why the installed TensorFlow does not match the extra's, and how to fix it; None if it matches."""
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
    """Return the TensorFlow version that Rankline's metadata pins; None if Rankline runs without being installed."""
    try:
        declared = requires("rankline") or ()
    except PackageNotFoundError:
        return None
    pins = (line.partition(";")[0].split("==") for line in declared)
    return next(release.strip() for name, *rest in pins if name in _TENSORFLOWS for release in rest)
