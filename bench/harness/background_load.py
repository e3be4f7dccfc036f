"""Clients that send requests without pause while something else happens to the server."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from rankline.serving.client import Client, ClientConfig
from rankline.workflows.core.background import beside
from rankline.workflows.core.errors import ServingError

_NUM_CLIENTS = 2


@dataclass
class Asked:
    """Observations of the clients: the number of responses, and the messages of failures."""

    num_answers: int = 0
    failures: list[str] = field(default_factory=list)


@contextmanager
def asking(url: str, name: str, rows: pa.Table, config: ClientConfig | None = None) -> Iterator[Asked]:
    """Run two clients that request the same rows until the block ends."""
    asked = Asked()
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(url, name, config or ClientConfig())) for _ in range(_NUM_CLIENTS)]
        for client in clients:
            stack.enter_context(beside(partial(_ask, client, rows, asked)))
        yield asked


def _ask(client: Client, rows: pa.Table, asked: Asked, stop: threading.Event) -> None:
    request = client.prepare(rows)
    while not stop.is_set():
        try:
            client.infer(request)
            asked.num_answers += 1
        except ServingError as error:
            asked.failures.append(str(error))
