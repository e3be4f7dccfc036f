"""Import LightGBM text files, written by `Booster.save_model` or by the scikit-learn classes' `booster_.save_model`."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankline.serving.importers.tree_ensemble import (
    EXP,
    IDENTITY,
    OUTPUT,
    SIGMOID,
    SIGNED_SQUARE,
    SOFTMAX,
    SOFTPLUS,
    Forest,
    ForestModel,
    matrix_of,
)  # fmt: skip
from rankline.workflows.core.errors import ArtifactError, ExportError, in_short
from rankline.workflows.core.optional_packages import require
from rankline.workflows.onnx.lightgbm_text import read_forest

_BEGIN = re.compile(rb"tree\r?\nversion=v\d")
_DTYPE = "float64"  # LightGBM compares doubles
_SQUARE_ROOT = "sqrt"  # the model predicts the square root of the label
_TRANSFORMS = (
    dict.fromkeys(("", "custom", "none", "lambdarank", "rank_xendcg"), IDENTITY)
    | dict.fromkeys(("regression", "regression_l1", "huber", "fair", "quantile", "mape"), IDENTITY)
    | dict.fromkeys(("poisson", "gamma", "tweedie"), EXP)
    | dict.fromkeys(("binary", "multiclassova", "cross_entropy"), SIGMOID)
    | {"cross_entropy_lambda": SOFTPLUS, "multiclass": SOFTMAX}
)
"""Objective → transform of the sum, `ConvertOutput` in LightGBM's objective functions."""


def can_load(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return _BEGIN.match(file.read(32)) is not None


class Model(ForestModel):
    def __init__(self, path: Path) -> None:
        for module in ("lightgbm", "onnx", "onnxruntime"):
            require(module, feature=f"serving {path}", extra="lightgbm")
        import lightgbm

        try:
            text = path.read_bytes().decode()
        except UnicodeDecodeError as error:
            raise ArtifactError(
                f"{path} is a damaged LightGBM model: {error}. Save the model again with save_model."
            ) from None
        read = read_forest(text, str(path), _DTYPE)
        objective, transform, scale = _objective(read.objective, read.width, path)
        try:
            self._booster = lightgbm.Booster(model_str=read.text(objective))
        except (lightgbm.basic.LightGBMError, ValueError) as error:
            raise ArtifactError(
                f"{path} cannot be loaded by LightGBM: {in_short(error)}. Save the model again."
            ) from None
        numbered = [f"Column_{place}" for place in range(len(read.features))]
        forest = Forest(trees=read.trees, width=read.width, transform=transform, scale=scale, dtype=_DTYPE)
        super().__init__(forest, () if list(read.features) == numbered else read.features, numbered)

    def run(self, arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        import lightgbm

        try:
            return {OUTPUT: np.asarray(self._booster.predict(matrix_of(arrays))).astype(np.float32)}
        except (lightgbm.basic.LightGBMError, ValueError) as error:
            raise ExportError(f"the LightGBM model failed on the sample: {in_short(error)}.") from None


def _objective(said: str, width: int, path: Path) -> tuple[str, str, float]:
    """Parse an objective with its options, such as `binary sigmoid:2`.

    Return it with the options used in prediction, the transform of the trees' sum, and the factor of the sum before it.
    LightGBM also reads the number of classes from the options, and writes that many scores.
    """
    name, *words = said.split() or [""]
    options = dict(word.partition(":")[::2] for word in words)
    if name not in _TRANSFORMS:
        known = ", ".join(filter(None, _TRANSFORMS))
        raise ArtifactError(f"{path} has objective {name!r}, expected one of {known}.")
    made, transform, scale = [name], _TRANSFORMS[name], 1.0
    if name.startswith("multiclass"):
        made.append(f"num_class:{width}")
    if _SQUARE_ROOT in options:
        transform = SIGNED_SQUARE
        made.append(_SQUARE_ROOT)
    try:
        if int(options.get("num_class", width)) != width:
            raise ArtifactError(
                f"{path} has {width} classes, but its objective sets num_class to {options['num_class']}. Save it "
                "again."
            )
        if "sigmoid" in options:
            scale = float(options["sigmoid"])
            if not 0 < scale < math.inf:
                raise ValueError
            made.append(f"sigmoid:{scale!r}")
    except ValueError:
        raise ArtifactError(
            f"{path} has objective {said!r}, whose parameters must be positive numbers. Save the model again."
        ) from None
    return " ".join(made), transform, scale
