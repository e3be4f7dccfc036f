"""Validation of file contents with pydantic, imported lazily because the import takes 0.4 s."""

import json
from typing import Any, TypeVar

from rankline.workflows.core.errors import SpecError

_Kind = TypeVar("_Kind")
_SHOWN = 80


def validated(kind: type[_Kind], value: Any, place: str) -> _Kind:
    """Convert plain values to a dataclass; a quoted number counts as text.

    Raises:
        SpecError: a value is missing, unknown or of the wrong type; the message names the place.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        got = "" if first["type"] == "missing" else f" is {repr(first['input'])[:_SHOWN]}"
        raise SpecError(f"{f'{place}{path}'.lstrip('.')}{got}: {first['msg'].lower()}.") from None
    except TypeError as error:  # dates and other values that JSON cannot represent
        raise SpecError(f"{place}: {error}.") from None
