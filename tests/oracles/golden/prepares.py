"""The three data sets, prepared in ways that reach all that ids are made by."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rankline.workflows.core.progress import SILENT
from rankline.workflows.data.amazon.dataset import AMAZON
from rankline.workflows.data.criteo.dataset import CRITEO
from rankline.workflows.data.movielens.dataset import MOVIELENS
from rankline.workflows.preprocess import RowsConfig, SequenceConfig
from rankline.workflows.preprocess.config import PrepareConfig
from rankline.workflows.preprocess.dataset import Dataset
from rankline.workflows.preprocess.prepare import prepare
from rankline.workflows.preprocess.prepared_data import PreparedData


@dataclass(frozen=True, kw_only=True)
class Prepare:
    """Raw files, and how they are prepared."""

    dataset: Dataset
    num_rows: int
    config: PrepareConfig | None = None
    encoding: RowsConfig | SequenceConfig | None = None
    cardinality_scale: float = 1.0


PREPARES = {
    "movielens": Prepare(dataset=MOVIELENS, num_rows=1_500, cardinality_scale=0.5),
    "movielens-hashed": Prepare(
        dataset=MOVIELENS,
        num_rows=1_500,
        cardinality_scale=0.5,
        config=PrepareConfig(frequency_threshold=4, hash_buckets=5),
        encoding=RowsConfig(split="time"),
    ),
    "criteo": Prepare(dataset=CRITEO, num_rows=1_000, cardinality_scale=1e-4),
    "criteo-threshold": Prepare(
        dataset=CRITEO,
        num_rows=1_000,
        cardinality_scale=1e-4,
        config=PrepareConfig(frequency_threshold=5, hash_buckets=3),
    ),
    "amazon": Prepare(
        dataset=AMAZON, num_rows=1_000, cardinality_scale=0.2, encoding=SequenceConfig(max_history=8, attributes="all")
    ),
}
"""Name → what is prepared; those of one data set share its raw files."""
_DATA_SEED = 1
_PARTITION_ROWS = 300


def prepare_raw(name: str, raw: Path, output: Path) -> PreparedData:
    """Raw files, prepared in several partitions."""
    choices = PREPARES[name]
    return prepare(
        choices.dataset,
        choices.dataset.read(raw),
        output,
        choices.config,
        choices.encoding,
        source="generated rows",
        partition_rows=_PARTITION_ROWS,
    )


def generate(name: str, directory: Path) -> None:
    """Raw files anew."""
    choices = PREPARES[name]
    assert choices.dataset.generate is not None
    choices.dataset.generate(
        directory,
        num_rows=choices.num_rows,
        seed=_DATA_SEED,
        cardinality_scale=choices.cardinality_scale,
        progress=SILENT,
    )


def tables_of(prepared: Path) -> dict[str, pa.Table]:
    """Every Parquet file of prepared data by its path in it, vocabularies and all."""
    return {
        path.relative_to(prepared).as_posix(): pq.read_table(path).replace_schema_metadata()
        for path in sorted(prepared.rglob("*.parquet"))
    }
