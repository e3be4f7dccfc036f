"""Import XGBoost's JSON and UBJSON files, written by `Booster.save_model` or by the scikit-learn classes' `save_model`.

Rankline parses the file, and XGBoost loads a document that is rebuilt from the checked values. XGBoost itself trusts
the numbers in a file: it allocates by them, writes a tree to the position in its `id`, and reads along `parents`. Its
reader of UBJSON, the binary form of JSON (https://ubjson.org), may end the process or read damaged files indefinitely.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankline.serving.importers.tree_ensemble import (
    EXP,
    IDENTITY,
    OUTPUT,
    SIGMOID,
    SOFTMAX,
    Forest,
    ForestModel,
    matrix_of,
)  # fmt: skip
from rankline.workflows.core.errors import ArtifactError, ExportError, in_short
from rankline.workflows.core.optional_packages import require
from rankline.workflows.onnx.trees import LEAF, LT, Tree, TreeNode, by_depth

_JSON = re.compile(rb'\s*\{\s*(?:"version"\s*:\s*\[[^\]]*\]\s*,\s*)?"learner"\s*:\s*\{')
_UBJSON = re.compile(rb"\{(?:[iU].|[Il]\0{0,3}.|L\0{7}.)learner\{", re.DOTALL)
_BEGIN_BYTES = 256
_NO_CHILD, _NO_PARENT = -1, 2**31 - 1
_MAX_FEATURES = 1 << 16
"""Maximum number of features; XGBoost allocates a few hundred bytes for each in each of its threads."""
_NUMBER = r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?"
_BASE_SCORE = re.compile(rf"{_NUMBER}|\[{_NUMBER}(,{_NUMBER})*\]", re.ASCII)
_PARAMETER = re.compile(r"[\w.,+\[\]-]{0,100}", re.ASCII)
_LARGEST = np.finfo(np.float32).max
_TRANSFORMS = (
    dict.fromkeys(("binary:logistic", "reg:logistic"), SIGMOID)
    | dict.fromkeys(("count:poisson", "reg:gamma", "reg:tweedie", "survival:cox", "survival:aft"), EXP)
    | dict.fromkeys(("reg:squarederror", "reg:linear", "reg:squaredlogerror", "reg:pseudohubererror"), IDENTITY)
    | dict.fromkeys(("reg:absoluteerror", "reg:quantileerror", "reg:expectileerror", "binary:logitraw"), IDENTITY)
    | dict.fromkeys(("rank:pairwise", "rank:ndcg", "rank:map"), IDENTITY)
    | {"multi:softprob": SOFTMAX}
)
"""Objective → transform of the sum, `PredTransform` in XGBoost's objective functions."""
_REMEDIES = {
    "multi:softmax": (
        "It returns class numbers: call booster.set_param('objective', 'multi:softprob') before save_model"
    ),
    "binary:hinge": "It returns 0 or 1: train with binary:logistic",
}


def can_load(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        begin = file.read(_BEGIN_BYTES)
    return bool(_JSON.match(begin) or _UBJSON.match(begin))


class Model(ForestModel):
    def __init__(self, path: Path) -> None:
        for module in ("xgboost", "onnx", "onnxruntime"):
            require(module, feature=f"serving {path}", extra="xgboost")
        import xgboost

        saved = _read(path)
        try:
            base = _base(saved)
            self._booster = _load(saved, saved.trees)
        except (xgboost.core.XGBoostError, ValueError) as error:
            raise ArtifactError(
                f"{path} cannot be loaded by XGBoost: {in_short(error)}. Save the model again."
            ) from None
        transform = _TRANSFORMS[saved.objective["name"]]
        self._notes: tuple[str, ...] = ()
        if len(saved.trees) < saved.num_trees:
            self._notes = (
                f"Training stopped early, so the first {len(saved.trees)} of {saved.num_trees} trees are used, up to "
                "best_iteration, as in XGBoost's scikit-learn classes. Booster.predict uses all of them unless you "
                "pass it iteration_range.",
            )
        forest = Forest(trees=saved.trees, width=saved.width, transform=transform, base=base)
        super().__init__(forest, saved.features, [f"f{place}" for place in range(saved.num_features)])

    def take_as_missing(self, value: float) -> None:
        self._forest = replace(self._forest, missing=value)

    def assumed(self) -> tuple[str, ...]:
        if not math.isnan(self._forest.missing):
            return self._notes
        missing = "XGBoost does not save which value means missing, so NaN is assumed unless you pass --missing VALUE."
        return (missing, *self._notes)

    def run(self, arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        import xgboost

        # A DMatrix rejects infinite numbers; splits treat them like the largest finite ones.
        rows = np.clip(matrix_of(arrays), -_LARGEST, _LARGEST)
        try:
            return {OUTPUT: self._booster.predict(xgboost.DMatrix(rows, missing=self._forest.missing))}
        except (xgboost.core.XGBoostError, ValueError) as error:
            raise ExportError(f"the XGBoost model failed on the sample: {in_short(error)}.") from None


@dataclass(frozen=True, kw_only=True)
class _Saved:
    """The contents of a model file that determine its scores.

    Attributes:
        version: XGBoost version that saved the file, which determines the meaning of `base_score`.
        objective: name of the objective, with the parameters that XGBoost requires.
        base_score: number or list of numbers, as in the file.
        features: column names; empty if the file has none.
        width: number of scores per row.
        trees: trees up to the best iteration, with the weights of DART multiplied into the leaves.
        num_trees: number of trees in the file.
    """

    version: list[int]
    objective: dict[str, Any]
    base_score: str
    features: tuple[str, ...]
    num_features: int
    width: int
    trees: list[Tree]
    num_trees: int


def _read(path: Path) -> _Saved:
    content = path.read_bytes()
    try:
        document = json.loads(content) if _JSON.match(content) else read_ubjson(content)
        return _checked(document, path)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else in_short(error)
        raise ArtifactError(
            f"{path} is a damaged XGBoost model: {reason}. Save the model again with save_model."
        ) from None


def _checked(document: Any, path: Path) -> _Saved:
    learner = document["learner"]
    booster, sizes = learner["gradient_booster"], learner["learner_model_param"]
    if booster["name"] not in ("gbtree", "dart"):
        raise ArtifactError(
            f"{path} is a {booster['name']} model, expected a tree model. Retrain the model with booster='gbtree'."
        )
    objective = learner["objective"]["name"]
    if objective not in _TRANSFORMS:
        remedy = _REMEDIES.get(objective, f"Expected one of {', '.join(_TRANSFORMS)}")
        raise ArtifactError(f"{path} has the objective {objective!r}. {remedy}.")
    if int(sizes.get("num_target", 1)) > 1:
        raise ArtifactError(f"{path} has {sizes['num_target']} targets, expected one. Train one model for each target.")
    if "c" in learner.get("feature_types", ()):
        raise _of_categories(path)
    model, width = booster.get("gbtree", booster)["model"], max(int(sizes["num_class"]), 1)
    features, num_features = tuple(learner.get("feature_names") or ()), int(sizes["num_feature"])
    _check_features(features, num_features)
    _check_targets(model["tree_info"], width)
    count = _num_best(model, learner.get("attributes") or {}, width)
    drops = booster.get("weight_drop") or model.get("weight_drop") or [1.0] * len(model["trees"])  # nested since 3.4
    trees = [
        Tree(target=index(target), nodes=_nodes(tree, drop, num_features, path))
        for tree, target, drop in zip(model["trees"], model["tree_info"], drops, strict=True)
    ]
    return _Saved(
        version=[index(number) for number in document.get("version", ())],
        objective=_objective(learner["objective"], width),
        base_score=_matching(_BASE_SCORE, sizes["base_score"]),
        features=features,
        num_features=num_features,
        width=width,
        trees=trees[:count],
        num_trees=len(trees),
    )


def _check_features(names: tuple[Any, ...], count: int) -> None:
    if not all(isinstance(name, str) for name in names):
        raise ValueError("the name of a feature is not a string")
    if names and len(names) != count:
        raise ValueError(f"it names {len(names)} features, expected {count}")
    if not 0 < count <= _MAX_FEATURES:
        raise ValueError(f"it has {count} features, expected 1 to {_MAX_FEATURES}")


def _check_targets(targets: Sequence[int], width: int) -> None:
    """Raise ValueError for invalid class indices, which XGBoost uses as array sizes and offsets without checking."""
    if not targets:
        raise ValueError("it has no trees")
    if wrong := [target for target in targets if not 0 <= target < width]:
        raise ValueError(f"a tree belongs to class {wrong[0]}, but the model has {width} classes")
    if width > len(targets):
        raise ValueError(f"it has {width} classes, but only {len(targets)} trees")


def _num_best(model: Mapping[str, Any], attributes: Mapping[str, Any], width: int) -> int:
    """Return the number of trees up to the best iteration, or of all trees if training did not stop early."""
    count = len(model["trees"])
    if "best_iteration" not in attributes:
        return count
    step = width * max(int(model["gbtree_model_param"].get("num_parallel_tree", 1)), 1)
    ends = model.get("iteration_indptr") or range(0, count + 1, step)
    best = int(attributes["best_iteration"])
    if not 0 <= best < len(ends) - 1 or not 0 < ends[best + 1] <= count:
        raise ValueError(f"its best iteration is {best}, but the model has {len(ends) - 1} iterations")
    return index(ends[best + 1])


def _objective(said: Mapping[str, Any], width: int) -> dict[str, Any]:
    """Return an objective's name and its validated parameters, most of which are only used in training."""
    parameters = {
        name: {key: _matching(_PARAMETER, value) for key, value in part.items()}
        for name, part in said.items()
        if isinstance(part, dict)
    }
    if "softmax_multiclass_param" in parameters:
        parameters["softmax_multiclass_param"] = {"num_class": str(width)}
    if "lambdarank_param" in parameters:  # otherwise contains lists that are only used in training
        parameters["lambdarank_param"]["lambdarank_unbiased"] = "0"
    return {"name": said["name"], **parameters}


def _matching(pattern: re.Pattern[str], value: str) -> str:
    if not pattern.fullmatch(value):
        raise ValueError(f"unexpected value {value[:100]!r}")
    return value


def _nodes(tree: Mapping[str, Any], drop: float, num_features: int, path: Path) -> tuple[TreeNode, ...]:
    """Return a tree's nodes in breadth-first order. Thresholds and weights are rounded to float32, as in XGBoost."""
    if int(tree["tree_param"]["size_leaf_vector"]) > 1:
        raise ArtifactError(
            f"{path} has leaves with several scores. Retrain the model with multi_strategy='one_output_per_tree'."
        )
    if any(tree.get("split_type", ())):
        raise _of_categories(path)
    with np.errstate(over="ignore"):  # `by_depth` rejects infinite numbers
        numbers = np.array(tree["split_conditions"], np.float32)
        weights = numbers * np.float32(drop)
    names = ("left_children", "right_children", "split_indices", "default_left")
    columns = zip(numbers.tolist(), weights.tolist(), *(tree[name] for name in names), strict=True)
    nodes = [
        TreeNode(weight=weight)
        if left == _NO_CHILD
        else TreeNode(
            mode=LT,
            feature=index(feature),
            threshold=number,
            left=index(left),
            right=index(right),
            missing_goes_left=bool(missing),
        )
        for number, weight, left, right, feature, missing in columns
    ]
    return by_depth(nodes, num_features)


def _load(saved: _Saved, trees: Sequence[Tree]) -> Any:
    import xgboost

    model = {
        "gbtree_model_param": {"num_trees": str(len(trees)), "num_parallel_tree": "1"},
        "iteration_indptr": [0, len(trees)],
        "tree_info": [tree.target for tree in trees],
        "trees": [_tree_document(number, tree, saved.num_features) for number, tree in enumerate(trees)],
    }
    sizes = {"num_class": saved.width if saved.width > 1 else 0, "num_feature": saved.num_features, "num_target": 1}
    learner = {
        "attributes": {},
        "feature_names": [],
        "feature_types": [],
        "gradient_booster": {"name": "gbtree", "model": model},
        "learner_model_param": {"base_score": saved.base_score} | {name: str(size) for name, size in sizes.items()},
        "objective": saved.objective,
    }
    document = {"version": saved.version, "learner": learner} if saved.version else {"learner": learner}
    return xgboost.Booster(model_file=bytearray(json.dumps(document).encode()))


def _tree_document(number: int, tree: Tree, num_features: int) -> dict[str, Any]:
    nodes, size = tree.nodes, len(tree.nodes)
    parents = [_NO_PARENT] * size
    for place, node in enumerate(nodes):
        if node.mode != LEAF:
            parents[node.left] = parents[node.right] = place
    sizes = {"num_nodes": size, "num_feature": num_features, "num_deleted": 0, "size_leaf_vector": 1}
    return {
        "id": number,
        "tree_param": {name: str(value) for name, value in sizes.items()},
        "left_children": [_NO_CHILD if node.mode == LEAF else node.left for node in nodes],
        "right_children": [_NO_CHILD if node.mode == LEAF else node.right for node in nodes],
        "parents": parents,
        "split_indices": [node.feature for node in nodes],
        "split_conditions": [node.weight if node.mode == LEAF else node.threshold for node in nodes],
        "default_left": [int(node.missing_goes_left) for node in nodes],
        "split_type": [0] * size,
        **{name: [0.0] * size for name in ("base_weights", "loss_changes", "sum_hessian")},
        **{name: [] for name in ("categories", "categories_nodes", "categories_segments", "categories_sizes")},
    }


def _base(saved: _Saved) -> tuple[float, ...]:
    """Return the base margin of each class, to which the outputs of its trees are added.

    A file stores it as a probability or as a sum, depending on the XGBoost release. XGBoost itself therefore determines
    it, as the score of trees whose leaves are zero.
    """
    import xgboost

    bare = _load(saved, [Tree(target=target, nodes=(TreeNode(),)) for target in range(saved.width)])
    row = np.zeros((1, saved.num_features), np.float32)
    return tuple(map(float, bare.predict(xgboost.DMatrix(row), output_margin=True).ravel()))


def _of_categories(path: Path) -> ArtifactError:
    return ArtifactError(
        f"{path} splits by categories. Retrain the model without enable_categorical, on ids as numbers or one flag "
        "per id."
    )


_NUMBERS = {b"i": ">i1", b"U": ">u1", b"I": ">i2", b"l": ">i4", b"L": ">i8", b"d": ">f4", b"D": ">f8"}
_CONSTANTS = {b"T": True, b"F": False, b"Z": None}


def read_ubjson(content: bytes) -> Any:
    """Parse a UBJSON file, with arrays of numbers as lists. Raise ValueError if the file is damaged."""
    reader = _Reader(content)
    try:
        value = reader.value(reader.take(1))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if reader.place != len(content):
        raise ValueError(f"it has trailing data after byte {reader.place}")
    return value


class _Reader:
    def __init__(self, content: bytes) -> None:
        self._content, self.place = content, 0

    def take(self, size: int) -> bytes:
        if size < 0 or self.place + size > len(self._content):
            raise ValueError(f"it is truncated at byte {len(self._content)}")
        self.place += size
        return self._content[self.place - size : self.place]

    def value(self, mark: bytes) -> Any:
        if mark in _CONSTANTS:
            return _CONSTANTS[mark]
        if mark in _NUMBERS:
            return self._numbers(mark, 1)[0]
        if mark == b"S":
            return self._text()
        if mark == b"{":
            return self._object()
        if mark == b"[":
            return self._array()
        raise ValueError(f"it has a value of unknown type {mark!r} ending at byte {self.place}")

    def _numbers(self, mark: bytes, count: int) -> list[Any]:
        dtype = np.dtype(_NUMBERS[mark])
        values: list[Any] = np.frombuffer(self.take(dtype.itemsize * count), dtype).tolist()
        return values

    def _count(self) -> int:
        count = self.value(self.take(1))
        if not isinstance(count, int) or isinstance(count, bool):
            raise ValueError(f"it has the invalid length {count!r} before byte {self.place}")
        return count

    def _text(self) -> str:
        return self.take(self._count()).decode()

    def _object(self) -> dict[str, Any]:
        made = {}
        while (mark := self.take(1)) != b"}":
            self.place -= len(mark)
            name = self._text()
            made[name] = self.value(self.take(1))
        return made

    def _array(self) -> list[Any]:
        mark = self.take(1)
        if mark == b"$":
            kind, sign = self.take(1), self.take(1)
            if kind not in _NUMBERS or sign != b"#":
                raise ValueError(f"it has an invalid list of type {kind!r} before byte {self.place}")
            return self._numbers(kind, self._count())
        if mark == b"#":
            return [self.value(self.take(1)) for _ in range(self._count())]
        made = []
        while mark != b"]":
            made.append(self.value(mark))
            mark = self.take(1)
        return made
