"""Decision trees from any library, and their encoding for the ONNX operator TreeEnsembleRegressor."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

LEQ, LT, LEAF = "BRANCH_LEQ", "BRANCH_LT", "LEAF"
MAX_DEPTH = 2000
"""ONNX Runtime traverses a tree recursively when loading it, and its stack overflows at a depth of about 10,000."""


@dataclass(frozen=True, kw_only=True)
class TreeNode:
    mode: str = LEAF  # `LEQ` or `LT`, the comparison of the feature with the threshold by which rows go left; or `LEAF`
    feature: int = 0  # number of the column to compare
    threshold: float = 0.0  # value to compare with
    left: int = 0  # positions of the children in the tree
    right: int = 0
    missing_goes_left: bool = False  # whether rows with NaN go left
    weight: float = 0.0  # value that a leaf adds to the score


@dataclass(frozen=True, kw_only=True)
class Tree:
    target: int = 0  # number of the score, such as a class, that the tree adds to
    nodes: tuple[TreeNode, ...]  # the nodes, root first


def by_depth(nodes: Sequence[TreeNode], num_features: int) -> tuple[TreeNode, ...]:
    """Return the nodes reachable from the root, `nodes[0]`, reordered and renumbered by depth.

    Raises:
        ValueError: the nodes do not form a tree or refer to missing columns, so traversal could read out of bounds or
            loop.
    """
    places, depths, made = [0], [0], list[TreeNode]()
    for place, depth in zip(places, depths, strict=True):
        if not 0 <= place < len(nodes):
            raise ValueError(f"a split refers to node {place}, but there are {len(nodes)} nodes")
        node = nodes[place]
        if node.mode != LEAF:
            if not 0 <= node.feature < num_features:
                raise ValueError(f"a split uses feature {node.feature}, but the model has {num_features} features")
            if depth >= MAX_DEPTH:
                raise ValueError(f"a tree is deeper than {MAX_DEPTH} splits")
            places += [node.left, node.right]
            depths += [depth + 1, depth + 1]
            node = replace(node, left=len(places) - 2, right=len(places) - 1)
        if math.isnan(node.threshold) or not math.isfinite(node.weight):
            raise ValueError("a threshold or leaf value is not a number")
        if len(places) > len(nodes):
            raise ValueError("a node has two parents")
        made.append(node)
    if len(set(places)) < len(places):
        raise ValueError("a node has two parents")
    return tuple(made)


def attributes(trees: Iterable[Tree]) -> dict[str, list[Any]]:
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
"""In the order used by `attributes`."""
