"""What the tests of whole pipelines share."""

from tests.support.ports import free_port  # noqa: F401
