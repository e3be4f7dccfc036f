from pathlib import Path

import numpy as np
import tensorflow as tf

from rankline.workflows.core.errors import ExportError
from rankline.workflows.schema.model_artifact import TrainedModel

_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


def convert(trained: TrainedModel, target: Path) -> None:
    variables = tf.train.load_checkpoint(str(trained.model_path / "variables" / "variables"))
    names = [name for name in variables.get_variable_to_shape_map() if name.endswith(_SUFFIX)]
    weights = {name.removesuffix(_SUFFIX): variables.get_tensor(name) for name in names}
    if "bias" not in weights:
        raise ExportError(f"{trained.path} is not a linear model: it has the variables {sorted(weights)}.")
    with target.open("wb") as file:
        np.savez(file, **weights)
