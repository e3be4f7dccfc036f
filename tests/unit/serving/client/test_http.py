"""What the client says where something other than Triton answers, or Triton answers slowly."""

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import psutil
import pytest

from rankline.serving.client import AsyncClient, Client, ClientConfig
from rankline.serving.client.core import connect, run
from rankline.serving.client.errors import CallError
from rankline.workflows.core.errors import DeadlineError, RequestError, ServerError, ServingError

CONFIG = {
    "name": "m",
    "max_batch_size": 8,
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": ["1"]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": ["1"]}],
}
PAGE = "<!DOCTYPE html>\n<html>Please sign in</html>"


class Answers(BaseHTTPRequestHandler):
    """Describes a model, and gives its server's answer: a status and a body, which may arrive byte by byte."""

    protocol_version = "HTTP/1.1"
    server: "Proxy"

    def do_GET(self) -> None:
        self._answer(*self.server.described)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(*self.server.scored)

    def _answer(self, status: int, body: str) -> None:
        self.server.seen.append(dict(self.headers))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        for byte in body.encode() if self.server.drips else ():
            if self.server.is_over.wait(0.01):
                return
            self.wfile.write(bytes([byte]))
        if not self.server.drips:
            self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None:
        pass


class Proxy(ThreadingHTTPServer):
    """A server of such answers, status and body, byte by byte if it `drips`; `seen` has the headers that it got."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.described, self.scored = (200, json.dumps(CONFIG)), (200, json.dumps(answer_of([7.0])))
        self.drips, self.is_over, self.seen = False, threading.Event(), list[dict[str, str]]()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


def answer_of(scores: list[float]) -> dict[str, Any]:
    return {"outputs": [{"name": "y", "datatype": "FP32", "shape": [len(scores), 1], "data": scores}]}


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.is_over.set()
        server.shutdown()
        thread.join()


def ask(proxy: Proxy, is_async: bool, **choices: Any) -> Any:
    config = ClientConfig(**{"timeout_s": 30.0, **choices})
    if not is_async:
        with Client(proxy.url, "m", config) as client:
            return client.predict({"x": [1.0]}).tolist()

    async def scenario() -> Any:
        async with AsyncClient(proxy.url, "m", config) as client:
            return (await client.predict({"x": [1.0]})).tolist()

    return asyncio.run(scenario())


@pytest.mark.parametrize(("place", "is_async"), [("described", False), ("scored", True)])
@pytest.mark.parametrize(
    ("status", "body", "error", "words"),
    [
        (200, PAGE, ServerError, r"is not Triton \(status 200, .*Fix the address, or the proxy in front of it\.$"),
        (302, PAGE, ServerError, "is not Triton .status 302: <!DOCTYPE html> <html>Please sign in</html>"),
        (401, PAGE, RequestError, r"rejected the credentials .status 401: .*ClientConfig\(headers="),
        (401, '{"error": "who?"}', RequestError, r"rejected the credentials .status 401: who\?"),
        (403, "no", RequestError, "rejected the credentials .status 403: no"),
        (404, PAGE, ServerError, "is not Triton .status 404: <!DOCTYPE"),
        (502, PAGE, ServerError, "no Triton server answers at http://.*status 502"),
        (504, PAGE, DeadlineError, "did not respond within 30 s"),
        (400, '{"error": "too many"}', RequestError, "model 'm' refused the request: too many"),
    ],
)
def test_answers_of_a_proxy_are_named_in_one_line(
    proxy: Proxy, place: str, is_async: bool, status: int, body: str, error: type[ServingError], words: str
) -> None:
    setattr(proxy, place, (status, body))
    with pytest.raises(error, match=words) as raised:
        ask(proxy, is_async, retry_lost=False)
    assert type(raised.value) is error
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("described", ["[1, 2]", '{"ok": true}', '"text"'])
def test_answer_without_a_model_is_not_triton(proxy: Proxy, described: str) -> None:
    proxy.described = (200, described)
    with pytest.raises(ServerError, match="is not Triton"):
        ask(proxy, False)


@pytest.mark.parametrize("is_async", [False, True])
def test_timeout_covers_the_whole_answer(proxy: Proxy, is_async: bool) -> None:
    proxy.drips = True
    proxy.described = (200, json.dumps(CONFIG) + " " * 10_000)
    with pytest.raises(DeadlineError, match=r"did not respond within 0\.2 s"):
        ask(proxy, is_async, timeout_s=0.2)


def test_late_answer_is_not_taken_for_the_next_one(proxy: Proxy) -> None:
    with Client(proxy.url, "m") as client:
        (message,) = client.prepare({"x": [1.0]}).messages
        (output,) = client.schema.outputs
    carrier = connect(proxy.url, ClientConfig(), is_async=False)
    proxy.drips, proxy.scored = True, (200, json.dumps(answer_of([1.0])) + " " * 10_000)
    with pytest.raises(CallError) as late:
        run(carrier.infer(message, 0.2))
    assert late.value.is_late
    proxy.drips, proxy.scored = False, (200, json.dumps(answer_of([2.0])))
    assert carrier.decode(run(carrier.infer(message, 600.0)), output).tolist() == [[2.0]]
    run(carrier.close())


@pytest.mark.parametrize("is_async", [False, True])
def test_headers_go_with_every_request(proxy: Proxy, is_async: bool) -> None:
    assert ask(proxy, is_async, headers={"Authorization": "Bearer t"}) == [7.0]
    assert [headers["Authorization"] for headers in proxy.seen] == ["Bearer t"] * 2
    assert "Bearer" not in repr(ClientConfig(headers={"Authorization": "Bearer t"}))


def test_ended_threads_leave_no_connections(proxy: Proxy) -> None:
    def num_connections() -> int:
        connections = psutil.Process().net_connections("tcp")
        return sum(bool(found.raddr) and found.raddr.port == proxy.server_port for found in connections)

    with Client(proxy.url, "m") as client:
        for _ in range(5):
            thread = threading.Thread(target=client.predict, args=({"x": [1.0]},))
            thread.start()
            thread.join()
        assert num_connections() <= 2  # this thread's and the last one's
        assert client.predict({"x": [1.0]}).tolist() == [7.0]
