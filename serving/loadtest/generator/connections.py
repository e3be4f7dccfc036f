"""Factory of the load generator's transports."""

from rankline.serving.loadtest.generator.transport import INFER, TRANSPORTS, Transport
from rankline.workflows.core.errors import ConfigError


def connect(name: str, url: str, path: str = INFER) -> Transport:
    """Open a connection: `http2` needs the least client CPU, `grpcio` is what a Python program uses.

    Raises:
        ConfigError: the transport does not exist.
        ServerError: no server responds.
    """
    if name == "http2":
        from rankline.serving.loadtest.generator.http2 import Http2Connection

        return Http2Connection(url, path)
    if name == "grpcio":
        from rankline.serving.loadtest.generator.grpcio import GrpcioConnection

        return GrpcioConnection(url, path)
    raise ConfigError(f"no transport {name!r}. Available: {', '.join(TRANSPORTS)}.")
