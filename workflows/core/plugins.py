"""What installed packages add, each by an entry point (https://packaging.python.org/specifications/entry-points/)."""

from importlib.metadata import entry_points
from typing import TypeVar

from rankline.workflows.core.errors import ConfigError

_Kind = TypeVar("_Kind")


def installed(group: str, kind: type[_Kind]) -> dict[str, _Kind]:
    """Name → what the entry points of a group lead to.

    Args:
        group: such as "rankline.engines".
        kind: what each of them has to be.

    Raises:
        ConfigError: an entry point leads to nothing, or to something else.
    """
    found = {}
    for point in entry_points(group=group):
        try:
            found[point.name] = thing = point.load()
        except Exception as error:  # the package's own
            raise ConfigError(
                f"entry point {point.name!r} of {group} cannot be loaded ({type(error).__name__}: {error}). Mend or "
                f"remove the package of {point.value}."
            ) from error
        if not isinstance(thing, kind):
            raise ConfigError(
                f"entry point {point.name!r} of {group} leads to {type(thing).__name__}, expected {kind.__name__}."
            )
    return found
