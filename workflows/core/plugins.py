"""Plug-ins of installed packages, found by entry points (https://packaging.python.org/specifications/entry-points/)."""

import logging
from importlib.metadata import entry_points
from typing import TypeVar

_LOGGER = logging.getLogger(__name__)
_Kind = TypeVar("_Kind")


def installed(group: str, kind: type[_Kind]) -> dict[str, _Kind]:
    """Load every entry point of a group, by name.

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
            "package %s: its entry point %r of %s %s. It is left out; repair or remove the package.",
            package,
            point.value,
            group,
            problem,
        )
    return found
