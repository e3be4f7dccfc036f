"""Values of a file as dataclasses, checked by pydantic, which takes 0.4 s to import."""

import json
from typing import Any, TypeVar

from rankline.workflows.core.errors import SpecError

_Kind = TypeVar("_Kind")
_SHOWN = 80


def validated(kind: type[_Kind], value: Any, place: str) -> _Kind:
    """Make a dataclass of plain values; a number in quotes is text.

    Raises:
        SpecError: a value is of another kind, missing or unknown; the message has its place.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        got = "" if first["type"] == "missing" else f" is {repr(first['input'])[:_SHOWN]}"
        raise SpecError(f"{f'{place}{path}'.lstrip('.')}{got}: {first['msg'].lower()}.") from None
    except TypeError as error:  # dates and the like, which JSON cannot hold
        raise SpecError(f"{place}: {error}.") from None
