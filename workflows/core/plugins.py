"""Plug-ins of installed packages, found by entry points (https://packaging.python.org/specifications/entry-points/)."""

from importlib.metadata import entry_points
from typing import TypeVar

from rankline.workflows.core.errors import ConfigError

_Kind = TypeVar("_Kind")


def installed(group: str, kind: type[_Kind]) -> dict[str, _Kind]:
    """Load every entry point of a group, by name.

    Args:
        group: such as "rankline.engines".
        kind: the type that each object must have.

    Raises:
        ConfigError: an entry point cannot be loaded, or its object is of another type.
    """
    found = {}
    for point in entry_points(group=group):
        try:
            found[point.name] = thing = point.load()
        except Exception as error:  # raised by the plug-in's own code
            raise ConfigError(
                f"entry point {point.name!r} of {group} cannot be loaded ({type(error).__name__}: {error}). Mend or "
                f"remove the package of {point.value}."
            ) from error
        if not isinstance(thing, kind):
            raise ConfigError(
                f"entry point {point.name!r} of {group} leads to {type(thing).__name__}, expected {kind.__name__}."
            )
    return found
