"""Choices that a user gives, checked one by one."""

from typing import Any

from workflows.errors import ConfigError


def is_number(text: str) -> bool:
    """Whether a text is a number, as Python writes them."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def check_choice(config: Any, name: str, is_valid: bool, expected: str, *, prefix: str = "") -> None:
    """Refuse a choice that is out of its range.

    Args:
        config: has the choice.
        name: its attribute.
        is_valid: whether it is in its range.
        expected: the range, in words.
        prefix: of the name in the message, such as "--".

    Raises:
        ConfigError: it is out of its range.
    """
    if not is_valid:
        raise ConfigError(f"{prefix}{name} is {getattr(config, name)!r}, expected {expected}.")


def check_at_least(config: Any, least: int, *names: str, prefix: str = "") -> None:
    """Refuse whole numbers below `least`, see `check_choice`."""
    for name in names:
        number = getattr(config, name)
        check_choice(config, name, number >= least, f"a whole number of at least {least}", prefix=prefix)
