"""The scorer behind Ray Serve: `python -m bench.peers.servers.ray_server --port PORT --workers CORES`."""

import argparse
import os
import time
from typing import Any

import orjson
import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

from bench.peers.servers.scorer import DIRECTORY, Scorer


@serve.deployment
class Scoring:
    def __init__(self) -> None:
        self._scorer = Scorer()

    async def __call__(self, request: Request) -> Any:
        scores = self._scorer.score(orjson.loads(await request.body())["columns"])
        body = orjson.dumps({"scores": scores}, option=orjson.OPT_SERIALIZE_NUMPY)
        return Response(body, media_type="application/json")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    chosen = parser.parse_args()
    variables = {name: os.environ[name] for name in (DIRECTORY, "PYTHONPATH")}
    ray.init(include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": variables})
    serve.start(http_options={"host": "127.0.0.1", "port": chosen.port})
    serve.run(Scoring.options(num_replicas=chosen.workers, ray_actor_options={"num_cpus": 0}).bind())
    while True:
        time.sleep(60)
