"""A request whose answer was wrong, sent again byte for byte: alone, and among others."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from serving.benchmark.transport import OK, Connect, Transport

_NUM_TIMES = 100
_NUM_BESIDE = 16  # other requests in flight beside it
_TIMEOUT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Resent:
    """What came back for the same bytes.

    Attributes:
        alone: answers when nothing else was sent from here.
        among_others: answers while other requests were in flight.
    """

    alone: Sequence[bytes]
    among_others: Sequence[bytes]


def send_again(connect: Connect, message: bytes, others: Sequence[bytes]) -> Resent:
    """Send a request a hundred times alone, and as often among others.

    Args:
        connect: opens a connection.
        message: the request.
        others: what to send beside it, in turn.

    Raises:
        ServerError: nobody answers.
    """
    transport, keys = connect(), count()
    try:
        alone = [body for _ in range(_NUM_TIMES) for body in _answers(transport, keys, message, [])]
        beside = [others[i % len(others)] for i in range(_NUM_TIMES * _NUM_BESIDE)] if others else []
        rounds = range(0, len(beside), _NUM_BESIDE)
        among = [body for at in rounds for body in _answers(transport, keys, message, beside[at : at + _NUM_BESIDE])]
    finally:
        transport.close()
    return Resent(alone=alone, among_others=among)


def _answers(transport: Transport, keys: Iterator[int], message: bytes, beside: Sequence[bytes]) -> list[bytes]:
    """Of a request, in the midst of others; none if it failed or the connection has ended."""
    half, waited_for, found = len(beside) // 2, dict[int, bool](), list[bytes]()
    for place, other in enumerate([*beside[:half], message, *beside[half:]]):
        key = next(keys)
        waited_for[key] = place == half
        transport.send(key, other)
    deadline_s = time.monotonic() + _TIMEOUT_S
    while waited_for and not transport.failure and time.monotonic() < deadline_s:
        for answer in transport.poll(_TIMEOUT_S):  # which may come back with none before that
            if waited_for.pop(answer.key, False) and answer.status == OK:
                found.append(answer.body)
    return found
