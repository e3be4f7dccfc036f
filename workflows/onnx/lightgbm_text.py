"""Reading and writing of forests in LightGBM's text format (`Booster.model_to_string`). Split thresholds are converted
to equivalent values of the rows' dtype.

A file is parsed here, and LightGBM loads a text that is rebuilt from the checked values. LightGBM itself does not check
the numbers in a text, and some of them corrupt its memory.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.onnx.trees import LEQ, Tree, TreeNode, by_depth

_IS_CATEGORICAL, _DEFAULT_LEFT = 1, 2  # bits of decision_type in LightGBM's tree.h
_MISSING_TYPE = 12  # mask of the two bits that define missing values
_ZERO_IS_MISSING, _NAN_IS_MISSING = 4, 8
_END_OF_BITS = 16
_OF_SPLITS: dict[str, type[int | float]] = {
    "split_feature": int,
    "threshold": float,
    "decision_type": int,
    "left_child": int,
    "right_child": int,
}
_END = re.compile(r"^(?:end of trees|feature[ _]importances:)$", re.MULTILINE)
_TREE = re.compile(r"^Tree=\d+\n", re.MULTILINE)
_ZERO = float(np.float32(1e-35))  # kZeroThreshold in LightGBM's meta.h


@dataclass(frozen=True, kw_only=True)
class LightGBMForest:
    objective: str  # training objective with its options, such as `binary sigmoid:1`; "" for a custom one
    features: tuple[str, ...]  # names of the columns
    width: int  # number of scores per row; one per class
    trees: tuple[Tree, ...]  # tree n adds to score n % width
    blocks: tuple[str, ...]  # text of each tree, rebuilt from checked values
    is_average: bool  # whether scores are the mean of the trees, as in random forests

    def text(self, objective: str) -> str:
        """Return the forest in LightGBM's text format, which LightGBM can load for prediction."""
        features = range(len(self.features))
        header = {
            "num_class": self.width,
            "num_tree_per_iteration": self.width,
            "label_index": 0,
            "max_feature_idx": len(features) - 1,
            **({"objective": objective} if objective else {}),
            "feature_names": " ".join(f"Column_{number}" for number in features),
            "feature_infos": " ".join("none" for _ in features),
            "tree_sizes": " ".join(str(len(block)) for block in self.blocks),
        }
        lines = ["tree", "version=v4", *_lines(header), *(["average_output"] if self.is_average else [])]
        return "\n".join([*lines, "", "".join(self.blocks) + "end of trees\n"])


def read_forest(text: str, source: str, dtype: str = "float32") -> LightGBMForest:
    """Parse a forest in LightGBM's text format.

    Thresholds are rounded so that rows of `dtype`, float32 or float64, take the same branches as in LightGBM.

    Raises:
        ArtifactError: the text is damaged, or a split is not at a threshold.
    """
    try:
        return _read(text, source, np.dtype(dtype).type)
    except (ValueError, KeyError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ArtifactError(
            f"{source} is a damaged LightGBM model: {reason}. Save the model again with save_model."
        ) from None


def _read(text: str, source: str, dtype: type[np.floating[Any]]) -> LightGBMForest:
    first, end = _TREE.search(text), _END.search(text)
    if first is None or end is None:
        raise ValueError("it has no trees" if end else "it is truncated")
    header = _fields(text[: first.start()])
    features = tuple(header["feature_names"].split(" "))
    width = int(header["num_tree_per_iteration"])
    starts = [match.start() for match in _TREE.finditer(text, endpos=end.start())]
    blocks = [text[start:stop] for start, stop in zip(starts, [*starts[1:], end.start()], strict=True)]
    if len(features) != int(header["max_feature_idx"]) + 1:
        raise ValueError(f"it lists {len(features)} features, expected {int(header['max_feature_idx']) + 1}")
    if width < 1 or len(blocks) % width or width != int(header["num_class"]):
        raise ValueError(f"it has {len(blocks)} trees for {header['num_class']} classes, but {width} per iteration")
    if "tree_sizes" in header and header["tree_sizes"].split() != [str(len(block)) for block in blocks]:
        raise ValueError("its trees do not have the declared sizes")
    numbers = [_numbers(_fields(block), source) for block in blocks]
    trees = (_nodes(tree, len(features), source, dtype) for tree in numbers)
    is_average = "average_output" in header
    weight = width / len(blocks) if is_average else 1.0
    return LightGBMForest(
        objective=header.get("objective", ""),
        features=features,
        width=width,
        trees=tuple(Tree(target=n % width, nodes=_weighted(nodes, weight)) for n, nodes in enumerate(trees)),
        blocks=tuple(_block(number, tree) for number, tree in enumerate(numbers)),
        is_average=is_average,
    )


def _fields(lines: str) -> dict[str, str]:
    parts = (line.partition("=") for line in lines.split("\n") if line)
    return {name: value for name, _, value in parts}


def _weighted(nodes: tuple[TreeNode, ...], weight: float) -> tuple[TreeNode, ...]:
    return nodes if weight == 1 else tuple(replace(node, weight=weight * node.weight) for node in nodes)


def _numbers(fields: Mapping[str, str], source: str) -> dict[str, list[Any]]:
    if int(fields.get("is_linear", "0")):
        raise ArtifactError(
            f"{source} has linear trees, which ONNX does not support. Retrain the model without linear_tree."
        )
    if int(fields["num_cat"]):
        raise ArtifactError(
            f"{source} has categorical splits, which are not supported. Retrain the model without categorical_feature, "
            "and encode ids as numbers or one-hot columns."
        )
    num_leaves = int(fields["num_leaves"])
    if num_leaves < 1:
        raise ValueError(f"a tree has {num_leaves} leaves")
    made = {"leaf_value": list(map(float, fields["leaf_value"].split()))}
    for name, kind in _OF_SPLITS.items():
        made[name] = [kind(value) for value in fields[name].split()] if num_leaves > 1 else []
    for name, values in made.items():
        expected = num_leaves - (name != "leaf_value")
        if len(values) != expected:
            raise ValueError(f"{name} has {len(values)} values, expected {expected}")
    return made


def _block(number: int, numbers: Mapping[str, list[Any]]) -> str:
    num_leaves = len(numbers["leaf_value"])
    splits = {name: " ".join(map(repr, values)) for name, values in numbers.items()}
    fields = {"Tree": number, "num_leaves": num_leaves, "num_cat": 0, **splits, "shrinkage": 1}
    return "\n".join([*_lines(fields), "", "", ""])


def _lines(fields: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in fields.items()]


def _nodes(
    numbers: Mapping[str, list[Any]], num_features: int, source: str, dtype: type[np.floating[Any]]
) -> tuple[TreeNode, ...]:
    num_leaves = len(numbers["leaf_value"])
    splits = zip(*(numbers[name] for name in _OF_SPLITS), strict=True)
    leaves = [TreeNode(weight=value) for value in numbers["leaf_value"]]
    nodes = [_split(values, num_leaves, source, dtype) for values in splits] + leaves
    made = by_depth(nodes, num_features)
    if len(made) < len(nodes):
        raise ValueError(f"only {len(made)} of {len(nodes)} nodes of a tree are reachable from its root")
    return made


def _split(values: tuple[Any, ...], num_leaves: int, source: str, dtype: type[np.floating[Any]]) -> TreeNode:
    """Build a split node from its field values, in the order of `_OF_SPLITS`."""
    feature, value, bits, left, right = values
    if not 0 <= bits < _END_OF_BITS:  # LightGBM would use only the lowest eight bits
        raise ValueError(f"a split has the invalid decision_type {bits}")
    if bits & _IS_CATEGORICAL:
        raise ValueError("a split is categorical, but the tree has no categories")
    missing = bits & _MISSING_TYPE
    if missing == _ZERO_IS_MISSING:
        raise ArtifactError(
            f"{source} treats zeros as missing, which is not supported. Retrain the model without zero_as_missing."
        )
    # If training had no missing values, LightGBM treats NaN as 0.
    goes_left = bool(bits & _DEFAULT_LEFT) if missing == _NAN_IS_MISSING else value >= 0
    return TreeNode(
        mode=LEQ,
        feature=feature,
        threshold=_threshold(value, dtype),
        left=_place(left, num_leaves),
        right=_place(right, num_leaves),
        missing_goes_left=goes_left,
    )


def _place(child: int, num_leaves: int) -> int:
    """Convert a child number to a node position. LightGBM numbers splits from 0 up and leaves from -1 down."""
    if not -num_leaves <= child < num_leaves - 1:
        raise ValueError(
            f"a split refers to node {child}, but there are {num_leaves - 1} splits and {num_leaves} leaves"
        )
    return child if child >= 0 else num_leaves - 2 - child


def _threshold(value: float, dtype: type[np.floating[Any]]) -> float:
    """Return the largest number of type `dtype` that LightGBM sends to the left child at a threshold of `value`.

    LightGBM treats numbers within `_ZERO` of zero as zero.
    """
    if abs(value) <= _ZERO:
        return _ZERO if value >= 0 else float(np.nextafter(dtype(-_ZERO), dtype(-math.inf)))
    with np.errstate(over="ignore"):  # a number above all float32 becomes infinity
        nearest = dtype(value)
    return float(nearest if float(nearest) <= value else np.nextafter(nearest, dtype(-math.inf)))
