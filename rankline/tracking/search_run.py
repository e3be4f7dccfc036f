"""The run in MLflow that the trials of a search are below."""

from collections.abc import Iterator
from contextlib import contextmanager

from mlflow import MlflowClient


@contextmanager
def ends_as_block(client: MlflowClient, run_id: str) -> Iterator[None]:
    """The run is FINISHED as the block is, KILLED by Ctrl-C, and FAILED by whatever else leaves it."""
    status = "FAILED"
    try:
        yield
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        client.set_terminated(run_id, status)
