"""A recipe file with other choices in it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

_MODEL, _TRAINING, _NAME = "model", "training", "name"


def changed_recipe(path: Path, model: str, of_model: Mapping[str, Any], of_training: Mapping[str, Any]) -> str:
    """The text of a recipe file with some choices replaced; others are written as they were, without comments.

    Args:
        path: the file, which can be read.
        model: name of the model.
        of_model, of_training: choice → value.
    """
    root = yaml.compose(path.read_text(encoding="utf-8"), yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    if of_model:
        _change(_below(root, _MODEL, {_NAME: model}), of_model)
    if of_training:
        _change(_below(root, _TRAINING, {}), of_training)
    return yaml.serialize(root, Dumper=yaml.SafeDumper, allow_unicode=True, width=100)


def _below(root: yaml.MappingNode, key: str, empty: Mapping[str, Any]) -> yaml.MappingNode:
    """The mapping below a key, which is made where there is none, or a plain value."""
    found = next((value for name, value in root.value if name.value == key), None)
    if isinstance(found, yaml.MappingNode):
        return found
    made = _node(empty)
    assert isinstance(made, yaml.MappingNode)
    root.value = [pair for pair in root.value if pair[0].value != key] + [(_node(key), made)]
    return made


def _change(node: yaml.MappingNode, choices: Mapping[str, Any]) -> None:
    kept = [pair for pair in node.value if pair[0].value not in choices]
    node.value = kept + [(_node(name), _node(value)) for name, value in choices.items()]


def _node(value: Any) -> yaml.Node:
    plain = list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value
    node: yaml.Node = yaml.SafeDumper("").represent_data(plain)  # type: ignore[arg-type]
    return node
