"""The scorer behind BentoML: `bentoml serve bench.peers.servers.bentoml_service:Scoring --port PORT`."""

from typing import Any

import bentoml

from bench.peers.servers.scorer import Scorer


@bentoml.service(workers="cpu_count")
class Scoring:
    def __init__(self) -> None:
        self._scorer = Scorer()

    @bentoml.api
    def predict(self, columns: dict[str, Any]) -> dict[str, Any]:
        return {"scores": self._scorer.score(columns).tolist()}
