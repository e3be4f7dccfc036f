"""Choices that a user gives, checked one by one."""

from typing import Any

from rankline.workflows.core.errors import ConfigError

MOST = (1 << 31) - 1
"""The largest whole number that a choice may be: ids, rows and widths are counted in 32 bits somewhere."""
LONGEST_PADDED = 1 << 16
"""The longest that lists may be made: each row takes as much memory as the longest of them."""
MOST_SEED = (1 << 63) - 1


def is_number(text: str) -> bool:
    """Whether a text is a number, as Python writes them."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def check_choice(config: Any, name: str, is_valid: bool, expected: str, *, prefix: str = "") -> None:
    """Refuse a choice that is out of its range."""
    if not is_valid:
        raise ConfigError(f"{prefix}{name} is {getattr(config, name)!r}, expected {expected}.")


def check_at_least(config: Any, least: int, *names: str, most: int = MOST, prefix: str = "") -> None:
    """Refuse whole numbers below `least` or above `most`, see `check_choice`."""
    for name in names:
        number = getattr(config, name)
        expected = f"a whole number of at least {least}" if number < least else f"at most {most}"
        check_choice(config, name, least <= number <= most, expected, prefix=prefix)
