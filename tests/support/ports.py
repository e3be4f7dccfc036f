"""A port for a server; the conftests of `integration` and `system` import the fixture."""

import pytest

from serving.ports import Port, choose_ports


@pytest.fixture
def free_port() -> int:
    """A port on loopback that nobody listens on."""
    return choose_ports(Port())[0]
