"""Convert failed calls to exceptions that suggest a remedy.

Triton 24.10 returns `UNAVAILABLE` (HTTP: 503) for unrelated failures, so the message text has to be parsed. Ensembles
prefix the messages of their steps with "in ensemble 'NAME', ".
"""

from rankline.workflows.core.errors import DeadlineError, RequestError, ServerBusyError, ServerError, ServingError

UNAVAILABLE, DEADLINE_EXCEEDED = "UNAVAILABLE", "DEADLINE_EXCEEDED"
UNAUTHENTICATED, PERMISSION_DENIED = "UNAUTHENTICATED", "PERMISSION_DENIED"
# Not gRPC statuses: the client itself was closed; the server does not implement Triton's protocol.
CLOSED, NOT_TRITON = "CLOSED", "NOT_TRITON"
_REFUSED = ("INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "OUT_OF_RANGE", "RESOURCE_EXHAUSTED")
_QUEUE_FULL, _QUEUE_TIMEOUT = "Exceeds maximum queue size", "Request timeout expired"
_UNKNOWN_MODEL, _RESTRICTED = "unknown model", "protocol is restricted"
_RESET = "RST_STREAM"
_NOT_CONNECTED, _HUNG_UP = "failed to connect", ("Socket closed", "reset by peer")
_TLS_TROUBLE = ("handshake failed", "erification", "[SSL", "[X509")


class CallError(Exception):
    """A failed call, with gRPC's status name and the message of the server or the transport."""

    def __init__(self, status: str, details: str) -> None:
        super().__init__(status, details)
        self.status, self.details = status, details

    @property
    def is_unknown_model(self) -> bool:
        """Whether the server responded but does not have the model."""
        return _UNKNOWN_MODEL in self.details

    @property
    def is_lost(self) -> bool:
        """Whether the server was unreachable, did not have the model, or reset the connection."""
        is_there = self.is_busy or is_restricted(self.details)
        is_reset = self.status == "INTERNAL" and _RESET in self.details
        return (self.status == UNAVAILABLE or self.is_unknown_model or is_reset) and not is_there

    @property
    def is_busy(self) -> bool:
        """Whether the server's queue was full, or the request timed out in the queue."""
        return self.status == UNAVAILABLE and (_QUEUE_FULL in self.details or _QUEUE_TIMEOUT in self.details)

    @property
    def is_late(self) -> bool:
        return self.status == DEADLINE_EXCEEDED


def is_restricted(details: str) -> bool:
    """Whether an error message states that the protocol is restricted to clients with the server's key."""
    return _RESTRICTED in details


def explain(failure: CallError, *, url: str, model_name: str, timeout_s: float) -> ServingError:
    """Convert a failed call to an exception whose message suggests a remedy."""
    details = failure.details
    if failure.status == CLOSED:
        return ServerError(f"the client of {url} is closed ({details}). Create a new one.")
    if failure.is_late:
        return DeadlineError(f"{url} did not respond within {timeout_s:g} s. Send fewer rows or increase timeout_s.")
    if _QUEUE_FULL in details:
        return ServerBusyError(
            f"the queue of model {model_name!r} is full ({details}). Send fewer requests at a time, or retry later."
        )
    if failure.status == UNAVAILABLE and _QUEUE_TIMEOUT in details:
        return ServerBusyError(
            f"the request exceeded the queue timeout of model {model_name!r} ({details}). Send fewer requests at a "
            "time, or retry later."
        )
    if is_restricted(details):
        return RequestError(
            f"{url} allows this only for clients that send its key ({details}). Pass the key in "
            "ClientConfig(headers=...)."
        )
    if failure.status in (UNAUTHENTICATED, PERMISSION_DENIED):
        return RequestError(
            f"{url}, or a proxy in front of it, rejected the credentials ({details}). Pass valid ones, such as "
            "ClientConfig(headers={'Authorization': ...})."
        )
    if failure.status == NOT_TRITON:
        return ServerError(
            f"the server at {url} is not Triton ({details}). Fix the address, or the proxy in front of it."
        )
    if failure.is_unknown_model:
        return RequestError(
            f"{url} has no model {model_name!r} ({details}). Check which models it serves, or retry later."
        )
    if failure.status == UNAVAILABLE:
        return ServerError(f"no Triton server answers at {url} ({details}). {_remedy(details)}")
    if failure.status in _REFUSED:
        return RequestError(f"model {model_name!r} refused the request: {details}")
    return ServerError(f"model {model_name!r} failed ({failure.status}): {details}")


def _remedy(details: str) -> str:
    if any(word in details for word in _TLS_TROUBLE):
        return "Check that it uses TLS, and that the root certificate signed its certificate for this host name."
    if _NOT_CONNECTED in details and any(word in details for word in _HUNG_UP):
        return (
            "If it requires TLS or a client certificate, set `--tls-root` or ClientConfig.tls; otherwise fix the "
            "address."
        )
    return "Start one with `rankline serve`, or fix the address."
