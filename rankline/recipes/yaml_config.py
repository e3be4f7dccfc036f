"""Reads YAML files into config dataclasses, and derives a JSON schema for editors from the same field types.

Errors give file and line. Where a string is expected, scalars are taken literally: `no` is a string, not a boolean.
"""

import os
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from rankline.recipes.overrides import description_of
from rankline.training.models import TABLE_MODELS, check_table, model_named
from rankline.training.models.config import ModelConfig
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.formatting import did_you_mean
from rankline.workflows.storage.safe_yaml import MAX_BYTES, compose
from rankline.workflows.storage.untrusted import read_regular

Config = TypeVar("Config")
WITHOUT = "without"
"""Metadata key of a field whose value is a config: names of that config's fields that the file does not have."""

_NAMES = {str: "a string", int: "a whole number", float: "a number", bool: "true or false", type(None): "null"}
_MAX_LENGTH = 60  # characters of a value shown in an error message
_SCHEMAS: Mapping[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def read_yaml(path: Path, kind: type[Config]) -> Config:
    try:
        text = read_regular(path, MAX_BYTES).decode()
    except OSError as error:
        others = () if os.path.lexists(path) else (other.name for other in path.parent.glob("*.y*ml"))
        hint = did_you_mean([path.name], others)
        reason = f"{path} cannot be read ({error.strerror}).{hint}"
        raise ConfigError(f"{reason} Create one with: rankline init FILE") from None
    except UnicodeError:
        raise ConfigError(
            f"{path} is not UTF-8 text. Pass a YAML file, such as one written by rankline init."
        ) from None
    try:
        node = compose(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(
            f"{path}{place}: invalid YAML ({error.problem}). Fix this line or the previous line."
        ) from None
    except RecursionError:
        raise ConfigError(f"{path} is not a recipe: its lists are nested too deeply.") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: invalid YAML ({' '.join(str(error).split())}).") from None
    if node is None:
        raise ConfigError(f"{path} is empty. Create one with: rankline init FILE")
    made: Config = _Reader(path, kind).value(node, kind, "")
    return made


class _Reader:
    """A converter from YAML nodes to typed values. `place` is the path within the file, such as columns.age."""

    def __init__(self, path: Path, whole: type) -> None:
        self._path, self._whole = path, whole

    def value(self, node: yaml.Node, hint: Any, place: str, without: tuple[str, ...] = ()) -> Any:
        if typing.get_origin(hint) in (typing.Union, types.UnionType):
            return self._one_of(node, typing.get_args(hint), place)
        if hint is ModelConfig:
            return self._model(node, place)
        if is_dataclass(hint):
            return self._config(node, hint, place, without)
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is Literal:
            return self._choice(node, arguments, place)
        if origin is tuple:
            if not isinstance(node, yaml.SequenceNode):
                raise self._fault(node, place, "a list, such as [a, b]")
            return tuple(self.value(entry, arguments[0], f"{place}[{i}]") for i, entry in enumerate(node.value))
        if origin is not None and issubclass(origin, Mapping):
            pairs = [(key.value, entry) for key, entry in self._pairs(node, place)]
            return {key: self.value(entry, arguments[1], f"{place}.{key}") for key, entry in pairs}
        return self._scalar(node, hint, place)

    def _config(self, node: yaml.Node, kind: Any, place: str, without: tuple[str, ...], skip: int = 0) -> Any:
        known = {field.name: field for field in _fields(kind, without)}
        hints = typing.get_type_hints(kind)
        given = {}
        for key_node, entry in self._pairs(node, place)[skip:]:
            key = key_node.value
            if key not in known:
                where = f" in {place}" if place else ""
                hint = self._belongs(key, place) or did_you_mean([key], known)
                raise self._refusal(key_node, f"unknown key {key!r}{where}. Expected {', '.join(known)}.{hint}")
            skipped = known[key].metadata.get(WITHOUT, ())
            given[key] = self.value(entry, hints[key], f"{place}.{key}".lstrip("."), skipped)
        required = [f.name for f in known.values() if f.default is MISSING and f.default_factory is MISSING]
        if missing := [name for name in required if name not in given]:
            raise self._refusal(node, f"{place or 'the file'} is missing {', '.join(missing)}.")
        try:
            return kind(**given)
        except ConfigError as error:
            raise self._refusal(node, f"{place}: {error}".removeprefix(": ")) from None

    def _belongs(self, key: str, place: str) -> str:
        """Return a sentence that names the other sections of the file with this key, or an empty string."""
        hints, sections = typing.get_type_hints(self._whole), []
        for section in fields(self._whole):
            kinds = TABLE_MODELS.values() if hints[section.name] is ModelConfig else (hints[section.name],)
            of_kinds = (_fields(kind, section.metadata.get(WITHOUT, ())) for kind in kinds if is_dataclass(kind))
            if section.name != place and any(key == field.name for own in of_kinds for field in own):
                sections.append(section.name)
        return f" It is a key of {' and '.join(sections)}." if sections else ""

    def _model(self, node: yaml.Node, place: str) -> Any:
        if not isinstance(node, yaml.MappingNode):
            name, choices = self._scalar(node, str, place), None
        else:
            pairs = self._pairs(node, place)
            if not pairs or pairs[0][0].value != "name":
                raise self._refusal(
                    node, f"{place} does not start with a name, expected 'name: mlp' followed by the model's settings."
                )
            name, choices = self._scalar(pairs[0][1], str, f"{place}.name"), node
        try:
            kind = model_named(name)
            check_table(kind)
        except ConfigError as error:
            raise self._refusal(node, f"{error}{did_you_mean([name], TABLE_MODELS)}") from None
        return kind() if choices is None else self._config(choices, kind, place, (), skip=1)

    def _one_of(self, node: yaml.Node, kinds: tuple[Any, ...], place: str) -> Any:
        if type(None) in kinds and _plain(node) is None and isinstance(node, yaml.ScalarNode):
            return None
        (kind,) = (kind for kind in kinds if kind is not type(None))
        return self.value(node, kind, place)

    def _choice(self, node: yaml.Node, choices: tuple[str, ...], place: str) -> str:
        text = node.value if isinstance(node, yaml.ScalarNode) else None
        if text not in choices:
            hint = did_you_mean([text], choices) if text else ""
            raise self._fault(node, place, f"one of {', '.join(choices)}", hint)
        return str(text)

    def _scalar(self, node: yaml.Node, kind: Any, place: str) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            raise self._fault(node, place, _NAMES[kind])
        if kind is str:
            return node.value
        value = _plain(node)
        if kind is float and type(value) is int:
            return float(value)
        if kind is float and isinstance(value, str):  # 1e-3 is a string in YAML 1.1
            try:
                return float(value)
            except ValueError:
                pass
        if type(value) is not kind or (kind is int and abs(value) >= 1 << 63):
            raise self._fault(node, place, _NAMES[kind])
        return value

    def _pairs(self, node: yaml.Node, place: str) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode):
            if isinstance(node, yaml.ScalarNode) and not node.value:
                return []
            raise self._fault(node, place or "the file", "keys with values, 'name: value'")
        seen: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._refusal(key, f"{place} contains a key that is not a string.")
            if key.value in seen:
                raise self._refusal(
                    key, f"{key.value!r} is already defined on line {seen[key.value]}. Remove one of the definitions."
                )
            seen[key.value] = key.start_mark.line + 1
        return list(node.value)

    def _fault(self, node: yaml.Node, place: str, expected: str, hint: str = "") -> ConfigError:
        return self._refusal(node, f"{place} is {_shown(node)}, expected {expected}.{hint}")

    def _refusal(self, node: yaml.Node, what: str) -> ConfigError:
        return ConfigError(f"{self._path}, line {node.start_mark.line + 1}: {what}")


def _plain(node: yaml.Node) -> Any:
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node, deep=True)
    except (yaml.YAMLError, ValueError):
        return getattr(node, "value", None)
    finally:
        loader.dispose()


def _shown(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return repr(node.value[:_MAX_LENGTH]) if node.value else "empty"
    return "a list" if isinstance(node, yaml.SequenceNode) else "keys with values"


def _fields(kind: Any, without: tuple[str, ...]) -> "list[Field[Any]]":
    return [field for field in fields(kind) if field.name not in without]


def schema_of(kind: type, title: str) -> dict[str, Any]:
    """Return the JSON schema (2020-12) of the files that `read_yaml` accepts."""
    definitions: dict[str, Any] = {}
    whole = _schema(kind, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **definitions.pop(whole["$ref"].removeprefix("#/$defs/")),
        "$defs": dict(sorted(definitions.items())),
    }


def _schema(hint: Any, definitions: dict[str, Any], without: tuple[str, ...] = ()) -> dict[str, Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema(argument, definitions) for argument in arguments]}
    if hint is ModelConfig:
        models = [_of_model(model, definitions) for model in TABLE_MODELS.values()]
        return {"anyOf": [{"enum": sorted(TABLE_MODELS)}, *models]}
    if is_dataclass(hint):
        name = hint.__name__  # type: ignore[union-attr]
        if name not in definitions:
            definitions[name] = {}
            definitions[name] = _object(hint, definitions, without)
        return {"$ref": f"#/$defs/{name}"}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        return {"type": "array", "items": _schema(arguments[0], definitions)}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema(arguments[1], definitions)}
    if hint is str:
        return {"type": ["string", "number", "boolean"]}  # `read_yaml` takes scalars literally
    return {"type": _SCHEMAS[hint]}


def _object(kind: Any, definitions: dict[str, Any], without: tuple[str, ...]) -> dict[str, Any]:
    hints, own = typing.get_type_hints(kind), _fields(kind, without)
    required = [f.name for f in own if f.default is MISSING and f.default_factory is MISSING]
    properties = {
        field.name: {
            **_schema(hints[field.name], definitions, field.metadata.get(WITHOUT, ())),
            "description": description_of(kind, field.name),
        }
        for field in own
    }
    whole: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return whole | ({"required": required} if required else {})


def _of_model(model: type[ModelConfig], definitions: dict[str, Any]) -> dict[str, Any]:
    whole = _object(model, definitions, ())
    whole["properties"] = {"name": {"const": model.name}, **whole["properties"]}
    return {**whole, "required": ["name"]}
