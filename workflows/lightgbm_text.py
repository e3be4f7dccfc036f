"""Forests in LightGBM's text form, `Booster.model_to_string`, and the exact branches of their trees for float32.

A file is read here before LightGBM sees it: where a text is damaged, LightGBM ends the process.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from workflows.errors import ArtifactError
from workflows.onnx_trees import LEQ, Tree, TreeNode, by_depth

_IS_CATEGORICAL, _DEFAULT_LEFT = 1, 2  # bits of decision_type in LightGBM's tree.h
_MISSING_TYPE = 12  # two bits: what is missing
_ZERO_IS_MISSING, _NAN_IS_MISSING = 4, 8
_OF_SPLITS = (
    "split_feature", "split_gain", "threshold", "decision_type", "left_child", "right_child", "internal_value",
    "internal_weight", "internal_count",
)  # fmt: skip
_OF_LEAVES = ("leaf_value", "leaf_weight", "leaf_count")
_END = re.compile(r"^(?:end of trees|feature[ _]importances:)$", re.MULTILINE)
_TREE = re.compile(r"^Tree=\d+\n", re.MULTILINE)
_ZERO = np.float32(1e-35)  # kZeroThreshold in LightGBM's meta.h
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, kw_only=True)
class LightGBMForest:
    """What a text says.

    Attributes:
        objective: as it was trained, with its options, such as `binary sigmoid:1`; "" for one of the user's own.
        features: names of the columns.
        width: scores of a row; one for each class.
        trees: tree n adds to score n % width.
        text: what LightGBM needs of it to predict, and all of which was looked at: behind the trees are the parameters
            of the training, and LightGBM ends the process where one is damaged.
    """

    objective: str
    features: tuple[str, ...]
    width: int
    trees: tuple[Tree, ...]
    text: str


def read_forest(text: str, source: str) -> LightGBMForest:
    """Read a forest.

    Args:
        text: of `Booster.model_to_string` or `Booster.save_model`.
        source: what it is called in messages, such as its path.

    Raises:
        ArtifactError: it is damaged, or splits otherwise than at a threshold.
    """
    try:
        return _read(text, source)
    except (ValueError, KeyError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ArtifactError(f"{source} is a damaged LightGBM model: {reason}. Save it again by save_model.") from None


def _read(text: str, source: str) -> LightGBMForest:
    first, end = _TREE.search(text), _END.search(text)
    if first is None or end is None:
        raise ValueError("it has no trees" if end else "it is cut off")
    header = _fields(text[: first.start()])
    features = tuple(header["feature_names"].split(" "))
    width = int(header["num_tree_per_iteration"])
    starts = [match.start() for match in _TREE.finditer(text, endpos=end.start())]
    blocks = [text[start:stop] for start, stop in zip(starts, [*starts[1:], end.start()], strict=True)]
    if len(features) != int(header["max_feature_idx"]) + 1:
        raise ValueError(f"it names {len(features)} features, expected {int(header['max_feature_idx']) + 1}")
    if width < 1 or len(blocks) % width or width != int(header["num_class"]):
        raise ValueError(f"it has {len(blocks)} trees for {header['num_class']} classes, {width} for each step")
    # LightGBM goes from tree to tree by these.
    if "tree_sizes" in header and header["tree_sizes"].split() != [str(len(block)) for block in blocks]:
        raise ValueError("its trees are not as long as it says")
    trees = (_tree(_fields(block), len(features), source) for block in blocks)
    weight = width / len(blocks) if "average_output" in header else 1.0  # of random forests
    return LightGBMForest(
        objective=header.get("objective", ""),
        features=features,
        width=width,
        trees=tuple(Tree(target=n % width, nodes=_weighted(nodes, weight)) for n, nodes in enumerate(trees)),
        text=text[: end.start()] + "end of trees\n",
    )


def _fields(lines: str) -> dict[str, str]:
    """What is said as `name=value`, or as a name alone."""
    parts = (line.partition("=") for line in lines.split("\n") if line)
    return {name: value for name, _, value in parts}


def _weighted(nodes: tuple[TreeNode, ...], weight: float) -> tuple[TreeNode, ...]:
    return nodes if weight == 1 else tuple(replace(node, weight=weight * node.weight) for node in nodes)


def _tree(fields: Mapping[str, str], num_features: int, source: str) -> tuple[TreeNode, ...]:
    """The nodes of one tree, in the order of their depth."""
    if int(fields.get("is_linear", "0")):
        raise ArtifactError(f"{source} has linear trees, which ONNX does not. Train it without linear_tree.")
    if int(fields["num_cat"]):
        raise ArtifactError(
            f"{source} splits at categories. Train it without categorical_feature: ids are numbers, or flags each."
        )
    num_leaves = int(fields["num_leaves"])
    if num_leaves < 1:
        raise ValueError(f"a tree has {num_leaves} leaves")
    _check_lengths(fields, num_leaves)
    names = ("split_feature", "threshold", "decision_type", "left_child", "right_child")
    splits = zip(*(fields[name].split() for name in names), strict=True) if num_leaves > 1 else ()
    leaves = [TreeNode(weight=float(value)) for value in fields["leaf_value"].split()]
    nodes = [_split(values, num_leaves, source) for values in splits] + leaves
    return by_depth(nodes, num_features)


def _check_lengths(fields: Mapping[str, str], num_leaves: int) -> None:
    """All lists of numbers, also those that say nothing of scores: LightGBM reads them too."""
    float(fields.get("shrinkage", 1))
    for names, expected in ((_OF_SPLITS, num_leaves - 1), (_OF_LEAVES, num_leaves)):
        for name in names:
            values = [float(value) for value in fields.get(name, "").split()]
            is_left_out = name not in fields or (num_leaves == 1 and not values)
            if not is_left_out and len(values) != expected:
                raise ValueError(f"{name} has {len(values)} values, expected {expected}")


def _split(values: tuple[str, ...], num_leaves: int, source: str) -> TreeNode:
    """A split from its feature, threshold, type of decision and children."""
    feature, value, bits = int(values[0]), float(values[1]), int(values[2])
    if bits & _IS_CATEGORICAL:
        raise ValueError("a split is at categories, and the tree has none")
    missing = bits & _MISSING_TYPE
    if missing == _ZERO_IS_MISSING:
        raise ArtifactError(f"{source} takes zeros for missing. Train it without zero_as_missing.")
    # Where training lacked no value, LightGBM reads NaN as 0.
    goes_left = bool(bits & _DEFAULT_LEFT) if missing == _NAN_IS_MISSING else value >= 0
    left, right = (_place(int(child), num_leaves) for child in values[3:])
    return TreeNode(
        mode=LEQ,
        feature=feature,
        threshold=_threshold32(value),
        left=left,
        right=right,
        missing_goes_left=goes_left,
    )


def _place(child: int, num_leaves: int) -> int:
    """LightGBM counts splits from 0 up, leaves from -1 down; here leaves come behind the splits."""
    return child if child >= 0 else num_leaves - 2 - child


def _threshold32(value: float) -> float:
    """The largest float32 that LightGBM finds to be at most `value`; to it, 0 is all that is within `_ZERO` of 0."""
    if abs(value) <= _ZERO:
        return float(_ZERO if value >= 0 else np.nextafter(-_ZERO, np.float32(-math.inf)))
    if value < -_LARGEST:
        return -math.inf
    nearest = np.float32(min(value, _LARGEST))
    return float(nearest if float(nearest) <= value else np.nextafter(nearest, np.float32(-math.inf)))
