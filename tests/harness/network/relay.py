"""An HTTP relay in front of a server, which can hold requests back and lose answers."""

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


class Relay:
    """What goes between: paths of requests whose answers came back, and of those whose answers it lost."""

    def __init__(self, server: str) -> None:
        self.answers = list[str]()
        self.lost = list[str]()
        self._server = urlsplit(server).netloc
        self._open = threading.Event()
        self._open.set()
        self._loses = frozenset[str]()
        self.uri = ""

    def hold(self) -> None:
        """Let nothing through."""
        self._open.clear()

    def release(self) -> None:
        """Let everything through, what was held first."""
        self._open.set()

    def lose_first(self, *endings: str) -> None:
        """Lose the first answer to requests whose path ends so."""
        self._loses = frozenset(endings)

    def pass_on(self, handler: BaseHTTPRequestHandler) -> None:
        """Ask the server, and answer; or close the connection without a word."""
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        self._open.wait()
        connection = http.client.HTTPConnection(self._server)
        connection.request(handler.command, handler.path, body, dict(handler.headers))
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        handler.close_connection = True
        path = urlsplit(handler.path).path
        if handler.command == "POST" and path not in self.lost and path.endswith(tuple(self._loses) or ("\0",)):
            self.lost.append(path)
            return
        self.answers.append(path)
        handler.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)


@contextmanager
def relay_to(server: str) -> Iterator[Relay]:
    """A relay to an address such as http://127.0.0.1:5000, until the block ends."""
    relay = Relay(server)

    verbs: dict[str, Any] = dict.fromkeys(
        ("do_GET", "do_POST", "do_PUT", "do_PATCH", "do_DELETE"), lambda handler: relay.pass_on(handler)
    )
    handler = type("Handler", (BaseHTTPRequestHandler,), {**verbs, "log_message": lambda *_: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listener:
        listener.daemon_threads = True
        relay.uri = f"http://127.0.0.1:{listener.server_address[1]}"
        thread = threading.Thread(target=listener.serve_forever)
        thread.start()
        try:
            yield relay
        finally:
            relay.release()
            listener.shutdown()
            thread.join()
