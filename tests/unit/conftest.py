"""What all units share: graphs of TensorFlow run as they are traced."""

import sys
from collections.abc import Iterator

import pytest

from tests.harness.process.frameworks import rewrite_graphs


@pytest.fixture(scope="module", autouse=True)
def _graphs_as_they_are_traced() -> Iterator[None]:
    """TensorFlow's optimizer rewrites no graph: that takes longer than the few steps which units run.

    Commands, servers and whole pipelines run with it, and so do the tests of `tests/integration` and `tests/e2e`.
    """
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        yield
        return
    rewrite_graphs(tensorflow, False)
    yield
    rewrite_graphs(tensorflow, True)
