"""prepare: raw rows → fitted NVTabular workflow, encoded Parquet splits and the feature spec."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from workflows.artifacts import publish
from workflows.datasets import Dataset
from workflows.datasets.raw import RawData
from workflows.errors import DataError
from workflows.feature_spec import CATEGORICAL, CONTINUOUS, FILE_NAME, LABEL, Feature, FeatureSpec, Source
from workflows.prepare_config import PrepareConfig
from workflows.prepared import KIND, PreparedData
from workflows.progress import SILENT, Progress
from workflows.splits import random_split, time_split
from workflows.upstream import nvt, quiet_nvtabular
from workflows.workflow_store import keep_vocabularies_in, save_workflow

_NUM_FILES = {"train": 4, "valid": 2}
_PART_ROWS = 1 << 18  # rows that NVTabular holds as one DataFrame
_MIN_GROUP_ROWS, _MAX_GROUP_ROWS = 1 << 10, 1 << 17  # rows of a written row group


def prepare(
    dataset: Dataset,
    raw: RawData,
    output: Path,
    config: PrepareConfig | None = None,
    *,
    source: str,
    best_auc: float | None = None,
    progress: Progress = SILENT,
) -> PreparedData:
    """Split, fit, transform and publish.

    Args:
        dataset: which dataset the rows are of.
        raw: what its reader returned.
        output: directory of the artifact, replaced when it is whole.
        config: split and encoding.
        source: a few words on where the rows come from, kept for people and for MLflow.
        best_auc: best AUC that any model can reach, where it is known.
        progress: told the rows that are done.

    Raises:
        DataError: a split holds only one class.
        ConfigError: an option is out of range.
    """
    config = config or PrepareConfig()
    splits = _split(dataset, raw, config)
    details: dict[str, Any] = {
        "dataset": dataset.name,
        "source": source,
        "config": asdict(config),
        "rows": {name: len(rows) for name, rows in splits.items()},
        "dropped": dict(raw.dropped),
        "noticed": dict(raw.noticed),
    }
    metadata = {
        "dataset": dataset.name,
        "inputs": list(dataset.inputs),
        "group_by": dataset.group_by,
        "item": dataset.item,
    } | ({} if best_auc is None else {"best_auc": best_auc})
    with publish(output, KIND, made_from={dataset.name: raw.fingerprint}, details=details) as directory:
        with TemporaryDirectory(dir=directory, prefix=".fit.") as scratch, quiet_nvtabular():
            workflow = dataset.graph(raw, config)
            keep_vocabularies_in(workflow, Path(scratch))
            raw_files = {
                name: _write_raw(raw.rows, rows, Path(scratch) / f"{name}.parquet") for name, rows in splits.items()
            }
            workflow.fit(_open(raw_files["train"]))
            encoded = _Encoder(workflow, directory, total_rows=len(raw.rows), progress=progress)
            sources = {name: encoded.write(name, raw_files[name], len(rows)) for name, rows in splits.items()}
            save_workflow(workflow, directory / "workflow")
            heldout = pq.read_table(raw_files["valid"], columns=list(dataset.inputs))
        labels = {name: _read_column(directory, files, dataset.label) for name, files in sources.items()}
        for name, label in labels.items():
            _refuse_one_class(label, name)
        pq.write_table(heldout.append_column(dataset.label, labels["valid"]), directory / "heldout.parquet")
        pq.write_table(raw.catalog, directory / "catalog.parquet")
        spec = _spec(workflow, dataset, sources, encoded.longest, metadata)
        (directory / FILE_NAME).write_text(spec.to_yaml(), encoding="utf-8")
    return PreparedData.load(output)


def _split(dataset: Dataset, raw: RawData, config: PrepareConfig) -> dict[str, NDArray[np.int64]]:
    if config.split == "time":
        train, valid = time_split(raw.rows[dataset.time].to_numpy(), config.valid_share)
    else:
        train, valid = random_split(len(raw.rows), config.valid_share, config.split_seed)
    return {"train": train, "valid": valid}


def _write_raw(table: pa.Table, rows: NDArray[np.int64], path: Path) -> Path:
    pq.write_table(table.take(pa.array(rows)), path, row_group_size=_PART_ROWS)
    return path


def _open(path: Path) -> nvt.Dataset:
    return nvt.Dataset(str(path), engine="parquet", row_groups_per_part=1)


class _Encoder:
    """Runs the fitted workflow over one part after another and writes what comes out, in row order."""

    def __init__(self, workflow: nvt.Workflow, directory: Path, *, total_rows: int, progress: Progress) -> None:
        self.longest: dict[str, int] = {}
        self._workflow, self._directory = workflow, directory
        self._schema = pa.schema(
            (name, pa.list_(_arrow_type(column)) if column.is_list else _arrow_type(column))
            for name, column in workflow.output_schema.column_schemas.items()
        )
        self._done, self._total, self._progress = 0, total_rows, progress

    def write(self, split: str, raw_file: Path, num_rows: int) -> Source:
        """Transform one split and write it as several files of several row groups."""
        (self._directory / split).mkdir()
        rows_per_file = -(-num_rows // _NUM_FILES[split])
        rows_per_group = min(max(rows_per_file // 4, _MIN_GROUP_ROWS), _MAX_GROUP_ROWS)
        parts = _Rows(self._parts(raw_file))
        files: list[str] = []
        while (table := parts.take(rows_per_file)) is not None:
            files.append(f"{split}/part-{len(files):03d}.parquet")
            pq.write_table(table, self._directory / files[-1], row_group_size=rows_per_group)
        return Source(files=tuple(files), num_rows=num_rows)

    def _parts(self, raw_file: Path) -> Iterator[pa.Table]:
        frames = self._workflow.transform(_open(raw_file)).to_ddf()
        for index in range(frames.npartitions):
            frame = frames.get_partition(index).compute()
            table = pa.Table.from_pandas(frame, schema=self._schema, preserve_index=False).replace_schema_metadata()
            for field in self._schema:
                if pa.types.is_list(field.type):
                    length = pc.max(pc.list_value_length(table[field.name])).as_py() or 0
                    self.longest[field.name] = max(self.longest.get(field.name, 1), length)
            self._done += len(table)
            self._progress.update(self._done, self._total, f"{self._done:,} of {self._total:,} rows encoded")
            yield table


class _Rows:
    """Takes any number of rows from a stream of tables."""

    def __init__(self, tables: Iterator[pa.Table]) -> None:
        self._tables = tables
        self._held: list[pa.Table] = []

    def take(self, num_rows: int) -> pa.Table | None:
        """The next `num_rows` rows, fewer at the end, None after it."""
        while sum(map(len, self._held)) < num_rows and (table := next(self._tables, None)) is not None:
            self._held.append(table)
        rows = pa.concat_tables(self._held) if self._held else None
        if rows is None or not len(rows):
            return None
        self._held = [rows.slice(num_rows)]
        return rows.slice(0, num_rows)


def _arrow_type(column: Any) -> pa.DataType:
    return pa.from_numpy_dtype(np.dtype(column.dtype.to_numpy))


def _read_column(directory: Path, source: Source, name: str) -> pa.ChunkedArray:
    return pq.read_table([directory / file for file in source.files], columns=[name])[name]


def _refuse_one_class(label: pa.ChunkedArray, split: str) -> None:
    if len(values := pc.unique(label)) < 2:
        raise DataError(
            f"every label of the {split} rows is {values[0].as_py()}, and a model needs both classes. "
            "Give more rows, or another split or share."
        )


def _spec(
    workflow: nvt.Workflow,
    dataset: Dataset,
    sources: Mapping[str, Source],
    longest: Mapping[str, int],
    metadata: Mapping[str, Any],
) -> FeatureSpec:
    features = []
    for name, column in workflow.output_schema.column_schemas.items():
        sizes = column.properties.get("embedding_sizes", {})
        features.append(
            Feature(
                name=name,
                dtype=np.dtype(column.dtype.to_numpy).name,
                cardinality=int(sizes["cardinality"]) if sizes else None,
                embedding_dim=int(sizes["dimension"]) if sizes else None,
                is_list=bool(column.is_list),
                max_length=longest.get(name),
            )
        )
    inputs = [feature for feature in features if feature.name != dataset.label]
    return FeatureSpec(
        features=tuple(features),
        channels={
            CATEGORICAL: tuple(f.name for f in inputs if f.cardinality is not None),
            CONTINUOUS: tuple(f.name for f in inputs if f.cardinality is None),
            LABEL: (dataset.label,),
        },
        sources=sources,
        metadata=metadata,
    )
