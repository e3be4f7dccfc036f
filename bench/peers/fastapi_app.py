"""TensorFlow and NVTabular in a FastAPI app: `uvicorn bench.peers.fastapi_app:app --workers CORES`.

Workers load both before accepting requests. The environment variables in `WORKFLOW` and `SAVED_MODEL` hold the paths.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pandas as pd
from fastapi import FastAPI, Request
from pydantic import BaseModel

from bench.peers.scorer import Scorer

WORKFLOW, SAVED_MODEL = "RANKLINE_PEER_WORKFLOW", "RANKLINE_PEER_SAVED_MODEL"


class Rows(BaseModel):
    columns: dict[str, list[int | float | str | None]]


class Scores(BaseModel):
    scores: list[float]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.scorer = Scorer(Path(os.environ[WORKFLOW]), Path(os.environ[SAVED_MODEL]))
    yield


app = FastAPI(lifespan=lifespan)


@app.post("/predict")
async def predict(rows: Rows, request: Request) -> Scores:
    scorer: Scorer = request.app.state.scorer
    return Scores(scores=scorer.score(pd.DataFrame(rows.columns)).tolist())
