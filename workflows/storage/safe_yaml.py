"""Safe parsing of untrusted YAML, which rejects documents that are slow to parse or whose aliases expand too much."""

import yaml

MAX_BYTES = 1 << 20
_MAX_ENTRIES = 100_000  # lines and inline list values; parsing takes 30 µs for each
_MAX_CHARACTERS = 4 << 20  # after expanding aliases
_MAX_NUMBER_LENGTH = 100
_NUMBER = "tag:yaml.org,2002:int"


def compose(text: str) -> yaml.Node | None:
    """Parse a YAML document into nodes, or return None if it is empty.

    Raises:
        yaml.YAMLError: the text is not YAML, it is too long, or its aliases expand to too many characters.
        RecursionError: lists are nested too deeply.
    """
    if len(text.splitlines()) + sum(text.count(sign) for sign in ",[]{}") > _MAX_ENTRIES:
        raise yaml.YAMLError(f"it has more than {_MAX_ENTRIES} lines and values")
    node: yaml.Node | None = yaml.compose(text, yaml.SafeLoader)
    if node is not None:
        _extent(node, {})
    return node


def _extent(node: yaml.Node, extents: dict[int, int]) -> int:
    """Return the approximate number of characters in a node after expanding all aliases."""
    if isinstance(node, yaml.ScalarNode):
        if node.tag == _NUMBER and len(node.value) > _MAX_NUMBER_LENGTH:
            problem = f"a number has more than {_MAX_NUMBER_LENGTH} digits"
            raise yaml.MarkedYAMLError(None, None, problem, node.start_mark)
        return 1 + len(node.value)
    if id(node) not in extents:
        extents[id(node)] = -1
        inner = (side for pair in node.value for side in pair) if isinstance(node, yaml.MappingNode) else node.value
        extents[id(node)] = 1 + sum(_extent(part, extents) for part in inner)
    if not 0 <= extents[id(node)] <= _MAX_CHARACTERS:
        raise yaml.MarkedYAMLError(None, None, "its aliases expand to too many characters", node.start_mark)
    return extents[id(node)]
