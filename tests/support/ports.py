"""A port for a server; the conftests of `integration` and `system` import the fixture."""

import socket

import pytest


@pytest.fixture
def free_port() -> int:
    """A port on loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
