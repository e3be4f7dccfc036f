from typing import Any

from rankline.workflows.core.errors import ConfigError

MOST = (1 << 31) - 1
"""The largest integer accepted as an option: some code counts ids, rows and widths in 32 bits."""
LONGEST_PADDED = 1 << 16
"""The largest accepted list length: with padding, each row takes as much memory as the longest list."""
MOST_SEED = (1 << 63) - 1


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def check_choice(config: Any, name: str, is_valid: bool, expected: str, *, prefix: str = "") -> None:
    if not is_valid:
        raise ConfigError(f"{prefix}{name} is {getattr(config, name)!r}, expected {expected}.")


def check_at_least(config: Any, least: int, *names: str, most: int = MOST, prefix: str = "") -> None:
    for name in names:
        number = getattr(config, name)
        expected = f"a whole number of at least {least}" if number < least else f"at most {most}"
        check_choice(config, name, least <= number <= most, expected, prefix=prefix)
