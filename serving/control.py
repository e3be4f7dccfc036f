"""What only the one who runs a server may do: ask what is loaded, load and unload models. Over HTTP, with a key.

Triton's protocol "model repository" is restricted to requests that carry the key, which nobody but the process that
started the server knows.
"""

import http.client
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from workflows.errors import ServerError

KEY_HEADER = "rankline-key"
_NATIVE = re.compile(r"^load failed for model '[^']+': version \d+ is at UNAVAILABLE state: [A-Z][a-z ]+: ")
"""What Triton puts before the message of a native backend, with the status code last."""
_NOT_READY = (http.client.BAD_REQUEST, http.client.NOT_FOUND)
_LOADED = ("READY", "LOADING", "UNLOADING")


@dataclass(frozen=True, kw_only=True)
class ModelControl:
    """Model control of one server.

    Attributes:
        host, port: of its HTTP protocol.
        key: what the server was told to ask for.
        timeout_s: longest wait for an answer; a model is loaded before the answer comes.
    """

    host: str
    port: int
    key: str = field(repr=False)
    timeout_s: float

    def is_ready(self, server_id: str) -> bool:
        """Whether all models are loaded, of this server and not of one that took the port before it.

        tritonserver opens the gRPC port before the HTTP port, so that one is ours then, too.

        Args:
            server_id: the name that the server was given.
        """
        try:
            status, name = self._request("GET", "/v2", timeout_s=1)
            named = status == http.client.OK and json.loads(name).get("name") == server_id
            return named and self._request("GET", "/v2/health/ready", timeout_s=1)[0] == http.client.OK
        except (OSError, http.client.HTTPException, ValueError, AttributeError):
            return False

    def is_model_ready(self, model: str, version: int) -> bool:
        """Whether the server does not say that a version of a model is not ready, or that it has none."""
        try:
            return (
                self._request("GET", f"/v2/models/{model}/versions/{version}/ready", timeout_s=1)[0] not in _NOT_READY
            )
        except (OSError, http.client.HTTPException):
            return True  # it is busy, or has ended, for which others look

    def load(self, model: str, config: str | None = None) -> None:
        """Load a model, or load it again if its files have changed; the old one serves until the new one is ready.

        Args:
            model: its name.
            config: its configuration as JSON, in place of its file.

        Raises:
            ServerError: it cannot be loaded, or the server does not answer.
        """
        self._post(f"/v2/repository/models/{model}/load", {} if config is None else {"parameters": {"config": config}})

    def unload(self, model: str) -> None:
        """Unload a model once its requests are answered; does not wait for that.

        Raises:
            ServerError: the server does not answer.
        """
        self._post(f"/v2/repository/models/{model}/unload", {})

    def loaded(self) -> set[str]:
        """Models that are loaded, also those that are about to go.

        Raises:
            ServerError: the server does not answer.
        """
        index = json.loads(self._post("/v2/repository/index", {}))
        return {model["name"] for model in index if model.get("state") in _LOADED}

    def _post(self, path: str, body: Mapping[str, Any]) -> bytes:
        try:
            status, answer = self._request("POST", path, json.dumps(body), timeout_s=self.timeout_s)
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"the server at {self.host}:{self.port} does not answer ({error}).") from None
        if status != http.client.OK:
            raise ServerError(_reason(answer))
        return answer

    def _request(self, method: str, path: str, body: str | None = None, *, timeout_s: float) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        try:
            connection.request(method, path, body, {KEY_HEADER: self.key})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


def _reason(answer: bytes) -> str:
    """The message of the model itself where there is one, without its traceback."""
    text = answer.decode(errors="replace")
    with suppress(ValueError, KeyError, TypeError):
        text = str(json.loads(text)["error"])
    text = text.partition("\n\nAt:")[0].rpartition("TritonModelException: ")[2]
    return _NATIVE.sub("", text).strip().removesuffix(";") or "the server gave no reason."
