"""Configuration of a client."""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rankline.serving.client.errors import CallError
from rankline.workflows.core.errors import ConfigError

GRPC, HTTP = "grpc", "http"
TRANSPORTS = (GRPC, HTTP)
MAX_PAUSE_S = 0.5
# gRPC's own retry policy is not enough: it only sees the status, and Triton also returns UNAVAILABLE for a full queue
# and for restricted protocols; it stops after five attempts; and HTTP has no such policy.


@dataclass(frozen=True, kw_only=True)
class ClientTls:
    """PEM files for an encrypted connection.

    Attributes:
        root: CA certificates that must have signed the server's certificate; None for the system's trust store.
        certificate, key: certificate and key of this client, if the server requires them.
    """

    root: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("a client certificate requires its key, and vice versa. Pass both files or neither.")
        for file in filter(None, (self.root, self.certificate, self.key)):
            _check_readable(file)


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """Timeouts, retries, encryption and transport of a client.

    Attributes:
        timeout_s: maximum time to wait for a response, including retries.
        retry_lost: retry requests that no server has answered, until `timeout_s` is over: the server was killed, is
            restarting, or (over gRPC) its machine has been silent for two thirds of `timeout_s`. Scoring has no side
            effects, so sending a request twice is safe.
        retry_busy: also retry requests that the server rejected because its queue was full. Off by default, since an
            overloaded server needs less traffic.
        backoff_s: pause before the first retry; it doubles with each retry, up to 0.5 s.
        connect_timeout_s: how long to keep trying to connect at first; 0 tries once, so that a wrong address fails
            immediately.
        transport: "grpc" or "http".
        tls: encryption of the connection; None for none.
        headers: headers sent with every request, such as credentials for a proxy or the key of a restricted protocol.
    """

    timeout_s: float = 30.0
    retry_lost: bool = True
    retry_busy: bool = False
    backoff_s: float = 0.05
    connect_timeout_s: float = 0.0
    transport: str = GRPC
    tls: ClientTls | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    def __post_init__(self) -> None:
        if not self.timeout_s > 0 or not self.backoff_s > 0 or not self.connect_timeout_s >= 0:
            raise ConfigError(
                f"timeout_s is {self.timeout_s}, backoff_s is {self.backoff_s} and connect_timeout_s is "
                f"{self.connect_timeout_s}. Pass values greater than 0 (connect_timeout_s may be 0)."
            )
        if self.transport not in TRANSPORTS:
            raise ConfigError(f"unknown transport {self.transport!r}. Available: {', '.join(TRANSPORTS)}.")

    def may_retry(self, failure: CallError) -> bool:
        return self.retry_busy if failure.is_busy else self.retry_lost and failure.is_lost

    def pause_s(self, attempt: int, jitter: float) -> float:
        """Return the pause before a retry in seconds, using exponential backoff with jitter.

        Args:
            attempt: number of earlier retries.
            jitter: random number in [0, 1] that spreads the retries of clients that failed together.
        """
        return min(self.backoff_s * 2.0 ** min(attempt, 30), MAX_PAUSE_S) * (0.5 + jitter / 2)


DEFAULTS = ClientConfig()


def proxy_options(url: str) -> list[tuple[str, int]]:
    """Return channel options for an address: gRPC would send even local requests through the proxy of http_proxy or
    grpc_proxy.
    """
    return [("grpc.enable_http_proxy", 0)] if is_loopback(url) else []


def is_loopback(url: str) -> bool:
    """Whether a HOST:PORT address refers to the loopback interface."""
    host = url.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_readable(file: Path) -> None:
    try:
        file.open("rb").close()
    except FileNotFoundError:
        raise ConfigError(f"{file} does not exist. Pass certificates and keys as PEM files.") from None
    except PermissionError:
        raise ConfigError(f"{file} is not readable by user {os.geteuid()}. Grant this user read access.") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({os.strerror(error.errno or 0)}). Pass a PEM file.") from None
