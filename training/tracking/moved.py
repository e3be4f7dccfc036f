"""Repair of file stores that were moved or copied with their artifacts. Does not import MLflow."""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from rankline.training.tracking.config import artifacts_of

_LOCATIONS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)


def adopt_artifacts(store: Path) -> None:
    """Rewrite a store's artifact locations to point to the artifact directory next to the store.

    MLflow stores absolute locations, so a moved or copied store would write artifacts into the original directory. A
    store that is not writable stays unchanged.
    """
    here = artifacts_of(store.resolve().parent)
    with (
        suppress(sqlite3.Error),
        closing(sqlite3.connect(f"{store.absolute().as_uri()}?mode=rw", uri=True, timeout=30)) as connection,
        connection,
    ):
        named = connection.execute("SELECT DISTINCT artifact_location FROM experiments").fetchall()
        for (before,) in named:
            if before.startswith("file:") and before.endswith(f"/{here.name}") and before != here.as_uri():
                for table, column in _LOCATIONS:
                    connection.execute(
                        f"UPDATE {table} SET {column} = ? || substr({column}, ?) "
                        f"WHERE {column} = ? OR substr({column}, 1, ?) = ?",
                        (here.as_uri(), len(before) + 1, before, len(before) + 1, f"{before}/"),
                    )
