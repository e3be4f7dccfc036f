"""Opens the load generator's transports by name."""

from rankline.serving.loadtest.generator.transport import INFER, TRANSPORTS, Transport
from rankline.workflows.core.errors import ConfigError


def connect(name: str, url: str, path: str = INFER) -> Transport:
    """Open a connection: `http2` costs the client least, `grpcio` is what a program in Python sees.

    Raises:
        ConfigError: no such transport.
        ServerError: nobody answers.
    """
    if name == "http2":
        from rankline.serving.loadtest.generator.http2 import Http2Connection

        return Http2Connection(url, path)
    if name == "grpcio":
        from rankline.serving.loadtest.generator.grpcio import GrpcioConnection

        return GrpcioConnection(url, path)
    raise ConfigError(f"no transport {name!r}. Available: {', '.join(TRANSPORTS)}.")
