"""The run in MLflow that the trials of a search are below."""

from collections.abc import Iterator
from contextlib import contextmanager

from mlflow import MlflowClient


@contextmanager
def ends_as_block(client: MlflowClient, run_id: str) -> Iterator[None]:
    """Mark the run FINISHED with the block, KILLED by Ctrl-C, and FAILED by any other exception."""
    status = "FAILED"
    try:
        yield
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        client.set_terminated(run_id, status)
