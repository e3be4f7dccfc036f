"""Utilities for optional packages: installation checks, plug-ins and import hooks."""

import logging
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, entry_points, requires, version
from importlib.util import find_spec
from types import ModuleType
from typing import Any, TypeVar

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
    """Return why the installed TensorFlow does not match the pinned version and how to fix it, or None if it does."""
    found = installed_versions(_TENSORFLOWS)
    listed = " and ".join(f"{name} {release}" for name, release in found.items())
    remedy = f"pip uninstall -y {' '.join(found)}, then {install_line(extra)}"
    if len(found) > 1:
        return f"{listed} are both installed and overwrite each other's files. Run: {remedy}"
    expected = _expected_release()
    if expected and found and expected not in found.values():
        return f"{listed} is installed, expected {expected}. Run: {remedy}"
    return None


def installed_versions(names: Iterable[str]) -> dict[str, str]:
    """Return a dict from name to version of those of the packages that are installed."""
    found = {}
    for name in names:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _expected_release() -> str | None:
    """Return the TensorFlow version pinned in Rankline's metadata, or None if Rankline is not installed."""
    try:
        declared = requires("rankline") or ()
    except PackageNotFoundError:
        return None
    pins = (line.partition(";")[0].split("==") for line in declared)
    return next(release.strip() for name, *rest in pins if name in _TENSORFLOWS for release in rest)


class LoadHook(MetaPathFinder):
    """An import hook that delegates the execution of the named modules to a function."""

    def __init__(
        self, names: Collection[str], load: Callable[[Callable[[ModuleType], None], ModuleType], None]
    ) -> None:
        self._names, self._load = names, load

    def install(self) -> None:
        """Activate the hook permanently. Further calls have no effect."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in self._names else None
        if spec is not None and spec.loader is not None:
            # Keep the loader: TensorFlow locates its files through it.
            spec.loader.exec_module = partial(self._load, spec.loader.exec_module)  # type: ignore[method-assign]
        return spec


@contextmanager
def stand_ins(modules: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Within the block, substitute stand-ins for modules not yet imported. Later imports load the real modules."""
    absent = modules.keys() - sys.modules.keys()
    for name in absent:
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(modules[name])
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


_LOGGER = logging.getLogger(__name__)
_Kind = TypeVar("_Kind")


def installed(group: str, kind: type[_Kind]) -> dict[str, _Kind]:
    """Load the entry points of a group, keyed by name.

    An entry point that cannot be loaded or is of another type is left out with a warning in the log: a broken package
    must not take the others away.

    Args:
        group: such as "rankline.engines".
        kind: the type that each object must have.
    """
    found = {}
    for point in entry_points(group=group):
        try:
            thing = point.load()
        except Exception as error:  # raised by the plug-in's own code
            problem = f"cannot be loaded ({type(error).__name__}: {error})"
        else:
            if isinstance(thing, kind):
                found[point.name] = thing
                continue
            problem = f"is a {type(thing).__name__}, expected {kind.__name__}"
        package = point.dist.name if point.dist else "?"
        _LOGGER.warning(
            "package %s: entry point %r of %s %s and was skipped. Repair or remove the package.",
            package,
            point.value,
            group,
            problem,
        )
    return found
