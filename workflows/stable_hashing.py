"""Operators of NVTabular that hash the row's position too, found and replaced by those that hash the value alone."""

import copy
from typing import Any

from workflows.errors import ConfigError
from workflows.operators import Categorify, HashedCategorify, StableHashBucket, StableHashedCross
from workflows.upstream import nvt, ops  # first, so that what it imports is imported quietly

from merlin.dag import iter_nodes  # isort: skip

_STABLE: dict[type, type] = {
    ops.HashBucket: StableHashBucket,
    ops.HashedCross: StableHashedCross,
    ops.Categorify: HashedCategorify,
    Categorify: HashedCategorify,
}


def with_stable_hashes(workflow: nvt.Workflow) -> nvt.Workflow:
    """A workflow that gives a value the same id in every row; see `HashedCategorify` for what NVTabular does.

    Args:
        workflow: fitted or not; it stays as it is.

    Returns:
        The same one where nothing is to be replaced, else a copy.

    Raises:
        ConfigError: `Categorify` hashes unseen combinations of several columns, which has no stable form.
    """
    if not any(_depends_on_position(node.op) for node in iter_nodes([workflow.output_node])):
        return workflow
    stable = copy.deepcopy(workflow)
    for node in iter_nodes([stable.output_node]):
        if _depends_on_position(node.op):
            if isinstance(node.op, ops.Categorify) and (groups := _groups(node)):
                raise ConfigError(
                    f"Categorify with num_buckets got groups of columns {groups}, whose unseen combinations NVTabular "
                    "hashes with the row's position. Leave out num_buckets, or encode the columns alone."
                )
            node.op = _stable(node.op)
    return stable


def _depends_on_position(op: Any) -> bool:
    return type(op) in _STABLE and bool(op.num_buckets)


def _stable(op: Any) -> Any:
    """The operator with all that it was given and has learnt, as one of the stable class, which takes the same."""
    twin = copy.copy(op)
    twin.__class__ = _STABLE[type(op)]
    return twin


def _groups(node: Any) -> list[list[str]]:
    selectors = [part.selector for part in (node, *node.parents_with_dependencies) if part.selector is not None]
    groups = selectors[0].subgroups if selectors else ()  # a node has none of its own before it is fitted
    return [list(group.names) for group in groups if len(group.names) > 1]
