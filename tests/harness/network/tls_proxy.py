"""TLS in front of a server that speaks gRPC without it."""

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Queue


@contextmanager
def tls_in_front_of(url: str, certificates: Path, *, client_root: Path | None = None) -> Iterator[str]:
    """An address that decrypts what it gets, with `make_certificates`'s files, and hands it to a server at HOST:PORT.

    Clients need a certificate signed by `client_root`, unless it is None.
    """
    host, _, port = url.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    context.set_alpn_protocols(["h2"])  # without it gRPC hangs up
    if client_root is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_root)

    async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65_536):
                target.write(data)
                await target.drain()
        target.close()

    async def serve(near: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        far, to_far = await asyncio.open_connection(host, int(port))
        await asyncio.gather(pump(near, to_far), pump(far, to_near))

    addresses: Queue[str] = Queue()
    stop = threading.Event()

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        addresses.put(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await asyncio.to_thread(stop.wait)
        server.close()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    try:
        yield addresses.get()
    finally:
        stop.set()
        thread.join()
