"""Nothing waits for the disk: no power fails while tests run.

What is asked of the disk, and in which order, `disk_calls.py` writes down as it is asked.
"""

import os
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from sqlalchemy import Engine, create_engine, event


def sync_nothing() -> None:
    """From now on, this process and its forks leave the writing of files to the system."""
    os.fsync = lambda descriptor: None


@cache
def make_stores_quickly() -> None:
    """The same for MLflow's stores in files; and each new one, otherwise made by fifty migrations, is a copy of one."""
    from mlflow.store.db import utils

    migrate = utils._initialize_tables
    template = _empty_store(migrate)

    def make(engine: Engine) -> None:
        if engine.dialect.name != "sqlite":
            migrate(engine)
            return
        connection: Any = engine.raw_connection()
        try:
            template.backup(connection.driver_connection)
        finally:
            connection.close()

    utils._initialize_tables = make
    event.listen(Engine, "connect", _sync_no_transaction)


def _empty_store(migrate: Any) -> sqlite3.Connection:
    """In memory, as MLflow makes it."""
    copy = sqlite3.connect(":memory:", check_same_thread=False)
    engine = create_engine("sqlite://")
    migrate(engine)
    connection: Any = engine.raw_connection()
    try:
        connection.driver_connection.backup(copy)
    finally:
        connection.close()
        engine.dispose()
    return copy


def _sync_no_transaction(connection: Any, _: Any) -> None:
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous = OFF")


@contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    """What is written beyond fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
