"""Optional dependencies: said once where they are needed, with the line that installs them."""

from importlib.util import find_spec

from workflows.errors import MissingExtraError


def require(module: str, *, feature: str, extra: str) -> None:
    """Refuse to go on without an optional module; nothing is imported.

    Args:
        module: top-level module that the extra brings.
        feature: what needs it.
        extra: its name in pyproject.toml.

    Raises:
        MissingExtraError: it is not installed.
    """
    if find_spec(module) is None:
        raise MissingExtraError(feature, extra)
