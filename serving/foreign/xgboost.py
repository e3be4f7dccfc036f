"""XGBoost's JSON and UBJSON files, of `Booster.save_model` and of its scikit-learn classes' `save_model`.

A file is read here before XGBoost sees it, which walks trees wherever their numbers lead.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.foreign import ForeignModel
from serving.foreign.forest import (
    EXP,
    IDENTITY,
    OUTPUT,
    SIGMOID,
    SOFTMAX,
    Forest,
    inputs_of,
    matrix_of,
    write_forest,
)  # fmt: skip
from serving.foreign.inputs import Feed, Input
from serving.foreign.ubjson import read_ubjson
from workflows.errors import ArtifactError, ExportError, in_short
from workflows.extras import require
from workflows.heads import Head
from workflows.onnx_trees import LT, Tree, TreeNode, by_depth
from workflows.trained import ONNX

_JSON = re.compile(rb'\s*\{\s*(?:"version"\s*:\s*\[[^\]]*\]\s*,\s*)?"learner"\s*:\s*\{')
_UBJSON = re.compile(rb"\{(?:[iU].|[Il]\0{0,3}.|L\0{7}.)learner\{", re.DOTALL)
_BEGIN_BYTES = 256
_NO_CHILD = -1
_LARGEST = np.finfo(np.float32).max
_TRANSFORMS = (
    dict.fromkeys(("binary:logistic", "reg:logistic"), SIGMOID)
    | dict.fromkeys(("count:poisson", "reg:gamma", "reg:tweedie", "survival:cox", "survival:aft"), EXP)
    | dict.fromkeys(("reg:squarederror", "reg:linear", "reg:squaredlogerror", "reg:pseudohubererror"), IDENTITY)
    | dict.fromkeys(("reg:absoluteerror", "reg:quantileerror", "reg:expectileerror", "binary:logitraw"), IDENTITY)
    | dict.fromkeys(("rank:pairwise", "rank:ndcg", "rank:map"), IDENTITY)
    | {"multi:softprob": SOFTMAX}
)
"""Objective → `PredTransform` in XGBoost's objective functions."""
_REMEDIES = {
    "multi:softmax": "It gives a number of a class: booster.set_param('objective', 'multi:softprob') before save_model",
    "binary:hinge": "It gives 0 or 1: train with binary:logistic",
}


def takes(path: Path) -> bool:
    """JSON or UBJSON that begins with what XGBoost calls a learner."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        begin = file.read(_BEGIN_BYTES)
    return bool(_JSON.match(begin) or _UBJSON.match(begin))


class Model(ForeignModel):
    """A `ForeignModel`.

    Where training stopped early, the trees up to the best one score, as in XGBoost's scikit-learn classes.

    Args:
        path: of the file.
    """

    format = ONNX

    def __init__(self, path: Path) -> None:
        for module in ("xgboost", "onnx", "onnxruntime"):
            require(module, feature=f"serving {path}", extra="xgboost")
        import xgboost

        saved = _document(path.read_bytes(), path)
        forest = _forest(saved, path)  # before XGBoost looks at it
        try:
            booster = _load(saved)  # not from the file: with some damaged UBJSON, XGBoost ends the process
            best = booster.attr("best_iteration")
            self._booster = booster if best is None else booster[: int(best) + 1]
            document = json.loads(bytes(self._booster.save_raw("json")))
            self._forest = _forest(document, path, base=_base(self._booster))
        except (xgboost.core.XGBoostError, ValueError, IndexError) as error:
            raise ArtifactError(f"{path} cannot be loaded by XGBoost: {in_short(error)}. Save it again.") from None
        # XGBoost 3.2 leaves out what 3.4 says of dart.
        if list(forest.trees[: len(self._forest.trees)]) != list(self._forest.trees):
            raise ArtifactError(
                f"{path} was saved by XGBoost {_release(saved)}, and XGBoost {xgboost.__version__} reads other trees "
                "in it. Install that release, or train with this one."
            )
        self.inputs: tuple[Input, ...] = inputs_of(self._booster.feature_names, self._booster.num_features())

    def run(self, arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        import xgboost

        # A DMatrix refuses infinite numbers; to the splits they are like the largest finite ones.
        rows = np.clip(matrix_of(arrays), -_LARGEST, _LARGEST)
        try:
            return {OUTPUT: self._booster.predict(xgboost.DMatrix(rows, feature_names=self._booster.feature_names))}
        except (xgboost.core.XGBoostError, ValueError) as error:
            raise ExportError(f"the XGBoost model cannot run the sample: {in_short(error)}.") from None

    def write(self, feeds: Sequence[Feed], heads: Sequence[Head], target: Path) -> None:
        write_forest(self._forest, feeds, heads, target)


def _document(content: bytes, path: Path) -> Any:
    try:
        return json.loads(content) if _JSON.match(content) else read_ubjson(content)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, str(error)) from None


def _forest(document: Any, path: Path, base: tuple[float, ...] = ()) -> Forest:
    """What a file says.

    Raises:
        ArtifactError: it is damaged, or a model that is not served.
    """
    try:
        return _checked_forest(document["learner"], path, base)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise _damaged(path, reason) from None


def _checked_forest(learner: Mapping[str, Any], path: Path, base: tuple[float, ...]) -> Forest:
    booster, said = learner["gradient_booster"], learner["learner_model_param"]
    if booster["name"] not in ("gbtree", "dart"):
        raise ArtifactError(f"{path} is a model of {booster['name']}, expected trees. Train it with booster='gbtree'.")
    objective = learner["objective"]["name"]
    if objective not in _TRANSFORMS:
        remedy = _REMEDIES.get(objective, f"Expected one of {', '.join(_TRANSFORMS)}")
        raise ArtifactError(f"{path} has the objective {objective!r}. {remedy}.")
    if int(said.get("num_target", 1)) > 1:
        raise ArtifactError(f"{path} has {said['num_target']} targets, expected one. Train a model for each.")
    if "c" in learner.get("feature_types", ()):
        raise _of_categories(path)
    model = booster.get("gbtree", booster)["model"]
    trees, width = model["trees"], max(int(said["num_class"]), 1)
    if not trees:
        raise ValueError("it has no trees")
    drops = booster.get("weight_drop") or model.get("weight_drop") or [1.0] * len(trees)  # XGBoost 3.4 has it inside
    forest = [
        Tree(target=target, nodes=_nodes(tree, drop, int(said["num_feature"]), path))
        for tree, target, drop in zip(trees, model["tree_info"], drops, strict=True)
    ]
    if wrong := {tree.target for tree in forest} - set(range(width)):
        raise ValueError(f"a tree is of class {min(wrong)}, and there are {width}")
    return Forest(trees=forest, width=width, transform=_TRANSFORMS[objective], base=base)


def _nodes(tree: Mapping[str, Any], drop: float, num_features: int, path: Path) -> tuple[TreeNode, ...]:
    """The nodes of one tree, in the order of their depth; numbers are float32, as XGBoost compares and adds them."""
    if int(tree["tree_param"]["size_leaf_vector"]) > 1:
        raise ArtifactError(f"{path} has leaves of several scores. Train it with multi_strategy='one_output_per_tree'.")
    if any(tree.get("split_type", ())):
        raise _of_categories(path)
    with np.errstate(over="ignore"):  # `by_depth` refuses what is infinite
        numbers = np.array(tree["split_conditions"], np.float32)
        weights = numbers * np.float32(drop)
    _check_parents(tree)
    names = ("left_children", "right_children", "split_indices", "default_left")
    columns = zip(numbers.tolist(), weights.tolist(), *(tree[name] for name in names), strict=True)
    nodes = [
        TreeNode(weight=weight)
        if left == _NO_CHILD
        else TreeNode(
            mode=LT, feature=feature, threshold=number, left=left, right=right, missing_goes_left=bool(missing)
        )
        for number, weight, left, right, feature, missing in columns
    ]
    return by_depth(nodes, num_features)


def _check_parents(tree: Mapping[str, Any]) -> None:
    """Scores do not hang on them, but XGBoost walks along them too."""
    parents = tree["parents"]
    for place, children in enumerate(zip(tree["left_children"], tree["right_children"], strict=True)):
        for child in children if children[0] != _NO_CHILD else ():
            if not 0 <= child < len(parents):
                raise ValueError(f"a split leads to node {child}, and there are {len(parents)}")
            if parents[child] != place and place != child:
                raise ValueError(f"node {child} names node {parents[child]} as its parent, and is a child of {place}")


def _load(document: Any) -> Any:
    import xgboost

    return xgboost.Booster(model_file=bytearray(json.dumps(document, ensure_ascii=False).encode()))


def _base(booster: Any) -> tuple[float, ...]:
    """What each sum of trees begins with.

    A file says it as a probability or as a sum, which has changed from one release of XGBoost to another. So XGBoost
    says it: it is the sum of trees whose leaves are zero.
    """
    import xgboost

    document = json.loads(bytes(booster[:1].save_raw("json")))
    part = document["learner"]["gradient_booster"]
    for tree in part.get("gbtree", part)["model"]["trees"]:
        children = zip(tree["left_children"], tree["split_conditions"], strict=True)
        tree["split_conditions"] = [0.0 if left == _NO_CHILD else number for left, number in children]
    bare = _load(document)
    row = np.zeros((1, booster.num_features()), np.float32)
    margins = bare.predict(xgboost.DMatrix(row, feature_names=booster.feature_names), output_margin=True)
    return tuple(map(float, margins.ravel()))


def _release(document: Any) -> str:
    return ".".join(map(str, document.get("version", ["of an unknown release"])))


def _of_categories(path: Path) -> ArtifactError:
    return ArtifactError(
        f"{path} splits at categories. Train it without enable_categorical: ids are numbers, or flags of their own."
    )


def _damaged(path: Path, reason: str) -> ArtifactError:
    return ArtifactError(f"{path} is a damaged XGBoost model: {reason}. Save it again by save_model.")
