import json
from numbers import Integral
from typing import Any, TypeVar

from rankline.workflows.core.errors import ConfigError, SpecError

MAX_INT32 = (1 << 31) - 1
"""The largest integer accepted as an option: some code counts ids, rows and widths in 32 bits."""
MAX_PADDED_LENGTH = 1 << 16
"""The largest accepted list length: with padding, each row takes as much memory as the longest list."""
MAX_SEED = (1 << 63) - 1
MAX_BUCKETS = 1 << 26
"""Maximum number of ids for unseen values: an export contains a table of them for each column."""


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def check_choice(config: Any, name: str, is_valid: bool, expected: str, *, prefix: str = "") -> None:
    if not is_valid:
        raise ConfigError(f"{prefix}{name} is {getattr(config, name)!r}, expected {expected}.")


def check_at_least(config: Any, minimum: int, *names: str, maximum: int = MAX_INT32, prefix: str = "") -> None:
    for name in names:
        number = getattr(config, name)
        is_least = isinstance(number, Integral) and int(number) >= minimum
        expected = f"at most {maximum}" if is_least else f"an integer of at least {minimum}"
        check_choice(config, name, is_least and number <= maximum, expected, prefix=prefix)


_Kind = TypeVar("_Kind")
_SHOWN = 80


def validated(kind: type[_Kind], value: Any, place: str) -> _Kind:
    """Validate a value composed of built-in types and convert it to the dataclass `kind`. Quoted numbers are strings.

    Raises:
        SpecError: a value is missing, unknown or of the wrong type; the message names the place.
    """
    from pydantic import TypeAdapter, ValidationError  # takes 0.4 s

    try:
        return TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        got = "" if first["type"] == "missing" else f" is {repr(first['input'])[:_SHOWN]}"
        raise SpecError(f"{f'{place}{path}'.lstrip('.')}{got}: {first['msg'].lower()}.") from None
    except TypeError as error:  # dates and other values that JSON cannot represent
        raise SpecError(f"{place}: {error}.") from None
