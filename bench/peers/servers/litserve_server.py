"""The scorer behind LitServe: `python -m bench.peers.servers.litserve_server --port PORT --workers CORES`."""

import argparse
from typing import Any

import litserve

from bench.peers.servers.scorer import Scorer


class ScoringAPI(litserve.LitAPI):
    def setup(self, device: str) -> None:  # noqa: ARG002  (LitServe's signature)
        self._scorer = Scorer()

    def decode_request(self, request: dict[str, Any]) -> dict[str, Any]:
        return request["columns"]

    def predict(self, columns: dict[str, Any]) -> Any:
        return self._scorer.score(columns)

    def encode_response(self, scores: Any) -> dict[str, Any]:
        return {"scores": scores.tolist()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    chosen = parser.parse_args()
    server = litserve.LitServer(
        ScoringAPI(), accelerator="cpu", workers_per_device=chosen.workers, fast_queue=True, timeout=False
    )
    server.run(host="127.0.0.1", port=chosen.port, generate_client_file=False, log_level="warning")
