"""Sample rows for benchmarks of models trained elsewhere, which have no prepared data."""

import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rankline.recipes import available
from rankline.recipes.workspace import NAMES, Workspace
from rankline.serving.client.schema import check_distinct
from rankline.serving.repository.ensemble import ExportedEnsemble, names_in, versions
from rankline.workflows.core.errors import ConfigError, DataError
from rankline.workflows.data.tabular.files import format_of, problem_of_file
from rankline.workflows.preprocess.dataset import Requests
from rankline.workflows.preprocess.prepared_data import HELDOUT
from rankline.workflows.storage.artifacts import load_manifest, publish

KIND = "sample"
_FILE = "rows.parquet"
_MAX_ROWS = 65_536


def check_name(name: str) -> None:
    """Raise `ConfigError` if a name is invalid or belongs to a recipe."""
    if not re.fullmatch(NAMES, name) or name in available().recipes:
        raise ConfigError(
            f"the name {name!r} is invalid or belongs to a recipe. Use another one of letters, digits, '-' and '_'."
        )


def check_free(repository: Path) -> None:
    """Raise `ConfigError` if the repository already contains an ensemble exported from a recipe.

    The active version decides, or the newest undamaged one if the active version is damaged.
    """
    exported = versions(repository) if names_in(repository) else []
    current = max(exported, key=lambda one: (one.is_active, one.version), default=None)
    if current is not None and not is_foreign(current):
        raise ConfigError(
            f"{repository} already contains version {current.version} of an ensemble exported from a recipe. "
            "Choose another name or another repository."
        )


def read_sample(path: Path) -> pa.Table:
    from rankline.scoring.read_rows import read_blocks

    if problem := problem_of_file(path):
        raise DataError(f"{path} {problem}, expected a CSV, Parquet or JSON Lines file with raw rows.")
    if (found := format_of(path)) is None:
        raise ConfigError(f"the format of {path} is unknown. Rename it to end in .csv, .parquet or .jsonl.")
    blocks = [rows for rows, _ in read_blocks(path, found)]
    check_distinct(blocks[0].column_names, str(path))
    try:
        return pa.concat_tables(blocks, promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(f"{path} has columns of mixed types: {error}. Save it as Parquet.") from None


def publish_sample(rows: pa.Table, path: Path) -> None:
    with publish(path, KIND) as staging:
        pq.write_table(rows.slice(0, _MAX_ROWS), staging / _FILE)


def example_row(workspace: Workspace, inputs: Sequence[str], requests: Requests | None) -> list[str]:
    """Return a known row as options of `rankline predict`; empty if there is none."""
    for folder in (workspace.prepared / HELDOUT, workspace.sample):
        for path in sorted(folder.rglob("*.parquet"))[:1]:
            (row,) = next(pq.ParquetFile(path).iter_batches(1, columns=list(inputs))).to_pylist()
            if requests is not None:
                row = requests.as_texts(row)
            values = {name: value for name, value in row.items() if value is not None}
            if not any(isinstance(value, list) for value in values.values()):
                return [part for name, value in values.items() for part in (f"--{name}", str(value))]
    return []


def is_foreign(ensemble: ExportedEnsemble) -> bool:
    return KIND in ensemble.manifest.made_from


def load_sample(path: Path) -> pa.Table:
    load_manifest(path, KIND)
    return pq.read_table(path / _FILE)
