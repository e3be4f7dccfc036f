"""The scorer in a FastAPI app with orjson: `uvicorn bench.peers.servers.fastapi_app:app --workers CORES`."""

import orjson
from fastapi import FastAPI, Request, Response

from bench.peers.servers.scorer import Scorer

app = FastAPI()
scorer = Scorer()


@app.post("/predict")
async def predict(request: Request) -> Response:
    scores = scorer.score(orjson.loads(await request.body())["columns"])
    return Response(orjson.dumps({"scores": scores}, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")
