"""The scorer as an ASGI app without a framework: `uvicorn bench.peers.servers.asgi_app:app --workers CORES`."""

from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from bench.peers.servers.scorer import Scorer

scorer = Scorer()
_HEADERS = [(b"content-type", b"application/json")]


async def app(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    if scope["type"] != "http":
        return
    parts, more = [], True
    while more:
        event = await receive()
        parts.append(event["body"])
        more = event.get("more_body", False)
    scores = scorer.score(orjson.loads(b"".join(parts))["columns"])
    body = orjson.dumps({"scores": scores}, option=orjson.OPT_SERIALIZE_NUMPY)
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS, length]})
    await send({"type": "http.response.body", "body": body})
