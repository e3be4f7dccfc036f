"""The choices of a client."""

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from serving.client.failures import CallError
from workflows.errors import ConfigError

GRPC, HTTP = "grpc", "http"
TRANSPORTS = (GRPC, HTTP)


@dataclass(frozen=True, kw_only=True)
class ClientTls:
    """Files for an encrypted connection, in PEM.

    Attributes:
        root: certificates that the server's must be signed by; None takes those that the system trusts.
        certificate, key: of this client, where the server asks for one.
    """

    root: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("a client's certificate and its key belong together. Give both files or neither.")
        for file in filter(None, (self.root, self.certificate, self.key)):
            if not file.is_file():
                raise ConfigError(f"{file} does not exist. Give certificates and keys as PEM files.")


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """How to talk to a server.

    Attributes:
        timeout_s: longest wait for an answer; each retry waits anew.
        retries: how often a message is sent again that the server did not take: it was not reachable, or its queue was
            full. Scoring changes nothing, so sending twice does no harm.
        retry_deadlines: send again what was not answered in time, too, which may make a busy server busier.
        backoff_s: pause before the first retry; it doubles with each further one.
        transport: one of `TRANSPORTS`.
        shared_memory: hand inputs over in shared memory; for a server on this machine that allows it, Triton 24.09 or
            later. Worth it from about a megabyte of inputs on.
        tls: encrypts the connection.
        key: opens protocols that the server restricts, such as shared memory.
    """

    timeout_s: float = 30.0
    retries: int = 0
    retry_deadlines: bool = False
    backoff_s: float = 0.05
    transport: str = GRPC
    shared_memory: bool = False
    tls: ClientTls | None = None
    key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.timeout_s > 0 or not self.backoff_s > 0 or self.retries < 0:
            raise ConfigError(
                f"timeout_s is {self.timeout_s}, backoff_s {self.backoff_s} and retries {self.retries}, "
                "expected more than 0, more than 0 and at least 0."
            )
        if self.transport not in TRANSPORTS:
            raise ConfigError(f"transport is {self.transport!r}. Available: {', '.join(TRANSPORTS)}.")
        if self.shared_memory and self.transport != GRPC:
            raise ConfigError(f"shared memory goes with transport {GRPC!r}, not with {self.transport!r}.")

    def may_retry(self, failure: CallError) -> bool:
        """Whether a call may be made again."""
        return failure.is_not_taken or (failure.is_late and self.retry_deadlines)

    def pause_s(self, attempt: int, jitter: float) -> float:
        """How long to wait before a retry.

        Args:
            attempt: number of the retry, from 0.
            jitter: in [0, 1], so that clients that failed together do not come back together.
        """
        return self.backoff_s * 2.0**attempt * (0.5 + jitter / 2)


DEFAULTS = ClientConfig()


def is_loopback(url: str) -> bool:
    """Whether HOST:PORT is on this machine."""
    host = url.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
