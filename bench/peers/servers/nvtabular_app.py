"""NVTabular and TensorFlow in a FastAPI app, as the field's documentation recommends:
`uvicorn bench.peers.servers.nvtabular_app:app --workers CORES`.

Workers load the workflow and the SavedModel before accepting requests.
"""

import os
from pathlib import Path

import pandas as pd
import tensorflow as tf
from fastapi import FastAPI
from pydantic import BaseModel

from bench.peers.servers.scorer import DIRECTORY, SAVED_MODEL, WORKFLOW
from rankline.workflows.nvt.compat import nvt, quiet_nvtabular
from rankline.workflows.schema.ragged import padded_rows
from rankline.workflows.schema.tensor_names import PADDED_SIGNATURE, SCORE

app = FastAPI()
directory = Path(os.environ[DIRECTORY])
with quiet_nvtabular():
    workflow = nvt.Workflow.load(str(directory / WORKFLOW))
model = tf.saved_model.load(str(directory / SAVED_MODEL))
signature = model.signatures[PADDED_SIGNATURE]


class Rows(BaseModel):
    columns: dict[str, list[int | float | str | None]]


class Scores(BaseModel):
    scores: list[float]


@app.post("/predict")
def predict(rows: Rows) -> Scores:
    inputs = padded_rows(workflow.transform(pd.DataFrame(rows.columns)))
    scores = signature(**{name: tf.constant(values) for name, values in inputs.items()})[SCORE]
    return Scores(scores=scores.numpy().reshape(-1).tolist())
