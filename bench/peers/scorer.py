"""An NVTabular workflow and a SavedModel, called one after the other in this process."""

from pathlib import Path
from typing import Any

import pandas as pd
import tensorflow as tf
from numpy.typing import NDArray

from rankline.workflows.nvt.compat import nvt, quiet_nvtabular
from rankline.workflows.schema.ragged import padded_rows
from rankline.workflows.schema.tensor_names import PADDED_SIGNATURE, SCORE


class Scorer:
    def __init__(self, workflow: Path, saved_model: Path) -> None:
        with quiet_nvtabular():
            self._workflow = nvt.Workflow.load(str(workflow))
        self._model = tf.saved_model.load(str(saved_model))
        self._signature = self._model.signatures[PADDED_SIGNATURE]

    def score(self, rows: pd.DataFrame) -> NDArray[Any]:
        inputs = padded_rows(self._workflow.transform(rows))
        scores: NDArray[Any] = self._signature(**{name: tf.constant(values) for name, values in inputs.items()})[SCORE]
        return scores.numpy().reshape(-1)  # type: ignore[attr-defined,no-any-return]
