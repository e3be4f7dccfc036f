"""A port for a server; the conftests of `integration` and `system` import the fixture."""

import pytest

from rankline.serving.server import ports


@pytest.fixture
def free_port() -> int:
    return ports.free_port()
