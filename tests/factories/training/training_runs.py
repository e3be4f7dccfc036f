"""Training runs: cut off where they are, read from MLflow, and compared with others."""

from typing import Any

import mlflow
import numpy as np

from rankline.workflows.schema.model_artifact import TORCH_SCRIPT, TrainedModel


class CutError(Exception):
    """Ends a run where it is."""


class Cut:
    """Ends a run when so many rows are done and the note begins in some way, and remembers the notes."""

    def __init__(self, at: float = 0, note: str = "epoch", error: type[BaseException] = CutError) -> None:
        self._at, self._note, self._error = at, note, error
        self.notes: list[str] = []

    def update(self, done: float, total: float, note: str = "") -> None:
        self.notes.append(note)
        if done >= self._at and note.startswith(self._note):
            raise self._error


def weights_of(model: TrainedModel) -> dict[str, Any]:
    """The weights of a trained model by name."""
    if model.format == TORCH_SCRIPT:
        import torch

        from rankline.workflows.torchscript.program import load_torch_script

        script, _ = load_torch_script(model.model_path, torch, remedy="")
        return {name: value.numpy() for name, value in script.state_dict().items()}
    import tensorflow as tf

    saved = tf.train.load_checkpoint(str(model.saved_model / "variables" / "variables"))
    dtypes = saved.get_variable_to_dtype_map()
    return {name: saved.get_tensor(name) for name in dtypes if dtypes[name] != tf.string}


def assert_same_weights(one: TrainedModel, other: TrainedModel) -> None:
    first, second = weights_of(one), weights_of(other)
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


def history(model: TrainedModel, metric: str) -> dict[int, float]:
    """Step → value of a metric of the run in MLflow."""
    found = mlflow.MlflowClient(model.tracking_uri).get_metric_history(model.run_id, metric)
    return {point.step: point.value for point in found}
