"""Hashing operators that replace NVTabular's, because those include the row position in the hash on CPUs."""

import copy
from typing import Any

import pandas as pd

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.nvt.compat import nvt, ops
from rankline.workflows.nvt.keys import bucket_of_many
from rankline.workflows.nvt.operators.categorify import Categorify, HashedCategorify
from rankline.workflows.nvt.operators.values import flattened, hashes_of

from merlin.dag import iter_nodes  # isort: skip


class StableHashBucket(ops.HashBucket):  # type: ignore[misc]
    """A `HashBucket` whose hash depends only on the value (see `HashedCategorify`). Missing values hash to 0."""

    def buckets_of(self, name: str) -> int:
        return int(self.num_buckets[name] if isinstance(self.num_buckets, dict) else self.num_buckets)

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        result = df.copy(deep=False)
        for name in col_selector.names:
            flat, rebuild = flattened(df[name])
            buckets = bucket_of_many([hashes_of(flat)], self.buckets_of(name))
            result[name] = rebuild(buckets.astype(self.output_dtype))
        return result


class HashShare(StableHashBucket):
    """Alias of `StableHashBucket` for workflows saved by earlier versions."""


class StableHashedCross(ops.HashedCross):  # type: ignore[misc]
    """A `HashedCross` whose hash depends only on the values (see `HashedCategorify`). Missing values hash to 0."""

    def crosses(self, selector: nvt.ColumnSelector) -> list[tuple[str, ...]]:
        return [tuple(group) for group in self.column_mapping(selector).values()]

    def buckets_of(self, cross: tuple[str, ...]) -> int:
        return int(self.num_buckets[cross] if isinstance(self.num_buckets, dict) else self.num_buckets)

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame(
            {
                "_X_".join(cross): bucket_of_many(
                    [hashes_of(df[name]) for name in cross], self.buckets_of(cross)
                ).astype(self.output_dtype)
                for cross in self.crosses(col_selector)
            },
            index=df.index,
        )


_STABLE: dict[type, type] = {
    ops.HashBucket: StableHashBucket,
    ops.HashedCross: StableHashedCross,
    ops.Categorify: HashedCategorify,
    Categorify: HashedCategorify,
}


def with_stable_hashes(workflow: nvt.Workflow) -> nvt.Workflow:
    """Return a workflow whose ids do not depend on row positions; see `HashedCategorify`.

    Args:
        workflow: fitted or not; it is not modified.

    Returns:
        A copy, or `workflow` itself if it contains no position-dependent operators.

    Raises:
        ConfigError: `Categorify` hashes unseen combinations of several columns, which has no stable equivalent.
    """
    if not any(_depends_on_position(node.op) for node in iter_nodes([workflow.output_node])):
        return workflow
    stable = copy.deepcopy(workflow)
    for node in iter_nodes([stable.output_node]):
        if _depends_on_position(node.op):
            if isinstance(node.op, ops.Categorify) and (groups := _groups(node)):
                raise ConfigError(
                    f"Categorify with num_buckets does not support the column groups {groups}, because NVTabular "
                    "hashes unseen combinations with their row position. Omit num_buckets, or encode each column alone."
                )
            node.op.__class__ = _STABLE[type(node.op)]  # keeps the arguments and the fitted state
    return stable


def _depends_on_position(op: Any) -> bool:
    return type(op) in _STABLE and bool(op.num_buckets)


def _groups(node: Any) -> list[list[str]]:
    selectors = [part.selector for part in (node, *node.parents_with_dependencies) if part.selector is not None]
    groups = selectors[0].subgroups if selectors else ()  # unfitted nodes have no selector of their own
    return [list(group.names) for group in groups if len(group.names) > 1]
