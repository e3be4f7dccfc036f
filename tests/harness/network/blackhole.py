"""A machine that vanishes: its connections stay open, and nothing comes through them any more."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def vanishing(url: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """An address in front of HOST:PORT, and what makes the machine behind it vanish; another takes its place."""
    host, _, port = url.rpartition(":")
    generation, open_sockets = 0, list[socket.socket]()

    def pump(source: socket.socket, target: socket.socket, born: int) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if born == generation:
                    target.sendall(data)
            if born == generation:
                target.shutdown(socket.SHUT_WR)

    def accept(listener: socket.socket) -> None:
        with suppress(OSError):  # it was closed
            while True:
                near, _ = listener.accept()
                far = socket.create_connection((host, int(port)))
                open_sockets.extend((near, far))
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=pump, args=(*ends, generation), daemon=True).start()

    def vanish() -> None:
        nonlocal generation
        generation += 1

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, args=(listener,))
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}", vanish
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for one in open_sockets:
                one.close()
