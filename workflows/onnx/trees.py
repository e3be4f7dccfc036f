"""Decision trees, whoever grew them, and what ONNX' TreeEnsembleRegressor says of them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

LEQ, LT, LEAF = "BRANCH_LEQ", "BRANCH_LT", "LEAF"
MAX_DEPTH = 2000
"""ONNX Runtime walks a tree recursively when it loads it, and overflows its stack at some 10,000."""


@dataclass(frozen=True, kw_only=True)
class TreeNode:
    """A split of two, or a leaf.

    Attributes:
        mode: `LEQ` or `LT`: rows whose feature is so, compared with the threshold, go to the left; or `LEAF`.
        feature: number of the column that is compared.
        threshold: what it is compared with.
        left, right: places of the children in their tree.
        missing_goes_left: where rows with NaN go.
        weight: what a leaf adds to the score.
    """

    mode: str = LEAF
    feature: int = 0
    threshold: float = 0.0
    left: int = 0
    right: int = 0
    missing_goes_left: bool = False
    weight: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A tree, and what it is a part of.

    Attributes:
        target: number of the score, such as a class, to which it adds.
        nodes: the root first.
    """

    target: int = 0
    nodes: tuple[TreeNode, ...]


def by_depth(nodes: Sequence[TreeNode], num_features: int) -> tuple[TreeNode, ...]:
    """The nodes that the root leads to, in the order of their depth.

    Args:
        nodes: the root first; some may be reached by none.
        num_features: columns of a row.

    Raises:
        ValueError: they are no tree, or do not fit the columns: what walks them would read elsewhere, or without end.
    """
    places, depths, made = [0], [0], list[TreeNode]()
    for place, depth in zip(places, depths, strict=True):
        if not 0 <= place < len(nodes):
            raise ValueError(f"a split leads to node {place}, and there are {len(nodes)}")
        node = nodes[place]
        if node.mode != LEAF:
            if not 0 <= node.feature < num_features:
                raise ValueError(f"a split compares feature {node.feature}, and there are {num_features}")
            if depth >= MAX_DEPTH:
                raise ValueError(f"a tree is deeper than {MAX_DEPTH} splits")
            places += [node.left, node.right]
            depths += [depth + 1, depth + 1]
            node = replace(node, left=len(places) - 2, right=len(places) - 1)
        if math.isnan(node.threshold) or not math.isfinite(node.weight):
            raise ValueError("a threshold or the value of a leaf is not a number")
        if len(places) > len(nodes):
            raise ValueError("a node has two parents")
        made.append(node)
    if len(set(places)) < len(places):
        raise ValueError("a node has two parents")
    return tuple(made)


def attributes(trees: Iterable[Tree]) -> dict[str, list[Any]]:
    """What a TreeEnsembleRegressor says of each node and each leaf."""
    nodes: dict[str, list[Any]] = {f"nodes_{name}": [] for name in _NODE}
    leaves: dict[str, list[Any]] = {f"target_{name}": [] for name in ("ids", "nodeids", "treeids", "weights")}
    for number, tree in enumerate(trees):
        for place, node in enumerate(tree.nodes):
            branch = (node.feature, node.mode, node.threshold, node.left, node.right, int(node.missing_goes_left))
            for values, value in zip(nodes.values(), (place, number, *branch), strict=True):
                values.append(value)
            if node.mode == LEAF:
                for values, value in zip(leaves.values(), (tree.target, place, number, node.weight), strict=True):
                    values.append(value)
    return nodes | leaves


_NODE = (
    "nodeids", "treeids", "featureids", "modes", "values", "truenodeids", "falsenodeids", "missing_value_tracks_true",
)  # fmt: skip
"""In the order in which `attributes` says them."""
