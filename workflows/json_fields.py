"""Objects of a JSON file that somebody else wrote: each field is looked at before it is used."""

import json
from typing import Any

from workflows.errors import ArtifactError

NULL: type = type(None)
_WORDS = {
    int: "a whole number", float: "a number", str: "text", bool: "true or false", list: "a list", dict: "an object",
    NULL: "null",
}  # fmt: skip
_REQUIRED = object()
_LONGEST = 60  # of what is shown of a value


class Fields:
    """One object.

    Args:
        values: what the file has there.
        where: what messages call it.

    Raises:
        ArtifactError: it is no object.
    """

    def __init__(self, values: Any, where: str) -> None:
        if type(values) is not dict:
            raise ArtifactError(f"{where} is {_shown(values)}, expected an object")
        self.where = where
        self._values = values

    def take(self, name: str, *kinds: type, default: Any = _REQUIRED) -> Any:
        """A field.

        Args:
            name: of the field.
            kinds: what it may be; `float` takes whole numbers too, `int` no booleans.
            default: what it is where the file does not have it; without one it must be there.

        Raises:
            ArtifactError: it is missing, or something else.
        """
        value = self._values.get(name, default)
        if value is _REQUIRED:
            raise ArtifactError(f"{self.where} has no {name!r}")
        if name in self._values:
            _check(value, kinds, f"{name!r} of {self.where}")
        return value

    def inner(self, name: str) -> "Fields":
        """A field that is an object; an empty one where it is missing or null."""
        return Fields(self.take(name, dict, NULL, default=None) or {}, f"{name!r} of {self.where}")

    def each(self, name: str, *kinds: type) -> list[Any]:
        """A field that is a list of such values; an empty one where it is missing or null."""
        values: list[Any] = self.take(name, list, NULL, default=None) or []
        for value in values:
            _check(value, kinds, f"{name!r} of {self.where} contains what")
        return values

    def objects(self, name: str) -> list["Fields"]:
        """A field that is a list of objects; an empty one where it is missing or null."""
        return [Fields(value, f"what {name!r} of {self.where} contains") for value in self.each(name, dict)]

    def by_name(self, name: str, *kinds: type) -> dict[str, Any]:
        """A field that is an object of such values; an empty one where it is missing or null."""
        inner = self.inner(name)
        return {key: inner.take(key, *kinds) for key in inner._values}

    def either(self, name: str, *kinds: type, default: Any = _REQUIRED) -> Any:
        """A field that is one such value for all columns, or an object of them by column."""
        is_by_column = type(self._values.get(name)) is dict
        return self.by_name(name, *kinds) if is_by_column else self.take(name, *kinds, default=default)


def _check(value: Any, kinds: tuple[type, ...], what: str) -> None:
    if type(value) not in kinds and not (type(value) is int and float in kinds):
        expected = " or ".join(_WORDS[kind] for kind in kinds)
        raise ArtifactError(f"{what} is {_shown(value)}, expected {expected}")


def _shown(value: Any) -> str:
    shown = json.dumps(value)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"
