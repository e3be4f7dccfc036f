"""What the tests of whole pipelines share."""

from tests.harness.network.ports import free_port  # noqa: F401
