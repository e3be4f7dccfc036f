"""prepare: raw rows → fitted NVTabular workflow, encoded Parquet splits and the feature spec.

Rows that come as a stream may be more than memory holds. They are split, fitted to, encoded and written part by part;
beside the largest parts only the vocabularies are in memory at a time.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from dask.dataframe.io.io import from_map

from workflows.artifacts import publish
from workflows.datasets import Dataset
from workflows.datasets.raw import RawData
from workflows.errors import ConfigError, DataError
from workflows.feature_spec import CATEGORICAL, CONTINUOUS, FILE_NAME, LABEL, Feature, FeatureSpec, Source
from workflows.fitting import fit
from workflows.operators import HashShare, arrow_columns, frame_of
from workflows.prepare_config import PrepareConfig
from workflows.prepared import CATALOG, HELDOUT, KIND, ONLINE, PreparedData
from workflows.progress import SILENT, Progress
from workflows.splits import split_rows
from workflows.upstream import nvt, quiet_nvtabular
from workflows.workflow_store import keep_vocabularies_in, save_workflow

from merlin.dag import Graph  # isort: skip
from merlin.dtypes.shape import DefaultShapes  # isort: skip
from merlin.schema import ColumnSchema, Schema  # isort: skip

_NUM_FILES = {"train": 4, "valid": 2}
_PARTS_PER_FILE = 16
_GROUPS_PER_PART = 2
_MIN_GROUP_ROWS = 1 << 10
_EXAMPLE_ROWS = 100
_STAGES = ("read", "fitted", "encoded")

Report = Callable[[str, float], None]
"""Told one of `_STAGES` and the share of it that is done."""


def prepare(
    dataset: Dataset,
    raw: RawData,
    output: Path,
    config: PrepareConfig | None = None,
    *,
    source: str,
    best_auc: float | None = None,
    part_rows: int = 1 << 18,
    progress: Progress = SILENT,
) -> PreparedData:
    """Split, fit, transform and publish.

    Needs room on disk for the raw rows as Parquet beside the prepared data.

    Args:
        dataset: which dataset the rows are of.
        raw: what its reader returned.
        output: directory of the artifact, replaced when it is whole.
        config: split and encoding.
        source: a few words on where the rows come from, kept for people and for MLflow.
        best_auc: best AUC that any model can reach, where it is known.
        part_rows: rows that NVTabular has as one DataFrame; more take more memory.
        progress: told the stages that are done, out of three.

    Raises:
        DataError: a row is no row, or a split holds only one class.
        ConfigError: an option is out of range, or the dataset has no use for it.
    """
    config = config or PrepareConfig()
    details: dict[str, Any] = {
        "dataset": dataset.name,
        "source": source,
        "config": asdict(config),
        "dropped": dict(raw.dropped),
        "noticed": dict(raw.noticed),
    }
    metadata = {
        "dataset": dataset.name,
        "inputs": list(dataset.inputs),
        "group_by": dataset.group_by,
        "item": dataset.item,
        ONLINE: config.encode == "online",
        "best_auc": best_auc,
    }

    def report(stage: str, share: float) -> None:
        number = _STAGES.index(stage)
        progress.update(number + share, len(_STAGES), f"{share:.0%} of {len(raw.rows):,} rows {stage}")

    with publish(output, KIND, made_from={dataset.name: raw.fingerprint}, details=details) as directory:
        with TemporaryDirectory(dir=directory, prefix=".fit.") as scratch, quiet_nvtabular():
            workflow = dataset.graph(raw, config)
            _check_hash_share(workflow, dataset, config)
            keep_vocabularies_in(workflow, Path(scratch))
            splits = _write_raw(dataset, raw, config, Path(scratch), arrow_columns(workflow), part_rows, report)
            details["rows"] = {split.name: split.num_rows for split in splits}
            fit(workflow, splits[0].open, splits[0].example(), partial(report, "fitted"))
            encoder = _Encoder(workflow, dataset, directory, part_rows, is_online=config.encode == "online")
            sources = encoder.write(splits, report)
            save_workflow(workflow, directory / "workflow")
        if raw.catalog is not None:
            pq.write_table(raw.catalog, directory / CATALOG)
        present = {name: value for name, value in metadata.items() if value not in (None, False)}
        spec = _spec(workflow, dataset, sources, encoder.longest, present)
        (directory / FILE_NAME).write_text(spec.to_yaml(), encoding="utf-8")
    return PreparedData.load(output)


def _check_hash_share(workflow: nvt.Workflow, dataset: Dataset, config: PrepareConfig) -> None:
    if config.hash_share and not Graph.get_nodes_by_op_type([workflow.output_node], HashShare):
        raise ConfigError(
            f"hash_share is {config.hash_share}, but {dataset.name} keeps its vocabularies. Leave it at 0; "
            "unseen ids are hashed by hash_buckets."
        )


@dataclass(frozen=True, kw_only=True)
class _RawSplit:
    """Raw rows of a split in the parts that NVTabular works on.

    Attributes:
        name: "train" or "valid".
        parts: a Parquet file for each; strings that only become numbers are dictionaries in it.
        num_rows: in all parts.
        schema: of the raw rows.
    """

    name: str
    parts: tuple[Path, ...]
    num_rows: int
    schema: pa.Schema

    def open(self, columns: Sequence[str]) -> nvt.Dataset:
        """Some columns, for NVTabular."""
        meta = _frame_of_part(pq.read_schema(self.parts[0]).empty_table().select(columns))
        parts = from_map(_read_part, self.parts, columns=list(columns), meta=meta)  # type: ignore[no-untyped-call]
        return nvt.Dataset(parts, schema=self._nvtabular_schema(columns))

    def example(self) -> nvt.Dataset:
        """Some rows, for NVTabular."""
        rows = pq.read_table(self.parts[0]).slice(0, _EXAMPLE_ROWS).cast(self.schema)
        return nvt.Dataset(rows.to_pandas(), schema=self._nvtabular_schema(rows.column_names))

    def _nvtabular_schema(self, columns: Sequence[str]) -> Schema:
        """By the rows' own; NVTabular would take an integer that is missing in the first row for a float."""
        return Schema([_column_schema(self.schema.field(name)) for name in columns])


def _column_schema(field: pa.Field) -> ColumnSchema:
    is_list = pa.types.is_list(field.type)
    dtype = np.dtype((field.type.value_type if is_list else field.type).to_pandas_dtype())
    return ColumnSchema(field.name, dtype=dtype, dims=DefaultShapes.LIST if is_list else DefaultShapes.SCALAR)


def _read_part(path: Path, columns: list[str]) -> pd.DataFrame:
    return _frame_of_part(pq.read_table(path, columns=columns))


def _frame_of_part(part: pa.Table) -> pd.DataFrame:
    return frame_of(part, [field.name for field in part.schema if pa.types.is_dictionary(field.type)])


def _write_raw(
    dataset: Dataset,
    raw: RawData,
    config: PrepareConfig,
    directory: Path,
    arrow: list[str],
    part_rows: int,
    report: Report,
) -> tuple[_RawSplit, ...]:
    """Split the raw rows and write the splits, the one to fit to first."""
    counts = dict.fromkeys(_NUM_FILES, 0)
    writers = {name: _Writer(directory / name, rows_per_file=part_rows, dictionaries=arrow) for name in counts}
    for name, table in split_rows(raw.rows, config, dataset.time):
        writers[name].write(table)
        counts[name] += len(table)
        report("read", sum(counts.values()) / len(raw.rows))
    parts = {name: tuple(writer.close()) for name, writer in writers.items()}
    if not all(counts.values()):
        raise ConfigError(f"the split has {counts} rows, expected rows in both parts. Choose another valid_share.")
    return tuple(
        _RawSplit(name=name, parts=parts[name], num_rows=counts[name], schema=raw.rows.schema) for name in counts
    )


class _Writer:
    """Writes tables as Parquet files `part-000.parquet` and so on.

    Args:
        directory: where, made if need be.
        rows_per_file: rows of a file, fewer in the last one.
        rows_per_group: rows of a row group, fewer at the end of a file; None for as many as a file has.
        dictionaries: for files that are soon read again: columns that are written as dictionaries. All else is written
            as fast as can be.
    """

    def __init__(
        self,
        directory: Path,
        *,
        rows_per_file: int,
        rows_per_group: int | None = None,
        dictionaries: Sequence[str] | None = None,
    ) -> None:
        directory.mkdir(exist_ok=True)
        self._directory, self._paths = directory, list[Path]()
        self._rows_per_file, self._rows_per_group = rows_per_file, rows_per_group or rows_per_file
        self._dictionaries = dictionaries or ()
        self._options: dict[str, Any] = {}
        if dictionaries is not None:
            self._options = {"use_dictionary": list(dictionaries), "compression": "lz4", "write_statistics": False}
        self._held: list[pa.Table] = []
        self._num_held, self._num_in_file = 0, 0
        self._file: pq.ParquetWriter | None = None

    def write(self, table: pa.Table) -> None:
        """Add rows."""
        self._held.append(table)
        self._num_held += len(table)
        while self._num_held >= (num_rows := min(self._rows_per_file - self._num_in_file, self._rows_per_group)):
            self._write_group(num_rows)

    def close(self) -> list[Path]:
        """Write what is left; returns all files."""
        if self._num_held:
            self._write_group(self._num_held)
        self._close_file()
        return self._paths

    def _write_group(self, num_rows: int) -> None:
        rows = pa.concat_tables(self._held)
        self._held, self._num_held = [rows.slice(num_rows)], len(rows) - num_rows
        group = rows.slice(0, num_rows)
        for name in self._dictionaries:
            group = group.set_column(group.schema.get_field_index(name), name, group[name].dictionary_encode())
        if self._file is None:
            self._paths.append(self._directory / f"part-{len(self._paths):03d}.parquet")
            self._file = pq.ParquetWriter(self._paths[-1], group.schema, **self._options)
        self._file.write_table(group, row_group_size=num_rows)
        self._num_in_file += num_rows
        if self._num_in_file == self._rows_per_file:
            self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._num_in_file = None, 0


class _Encoder:
    """Runs the fitted workflow over one part after another and writes what comes out, in row order.

    Args:
        workflow: the workflow.
        dataset: names label and inputs.
        directory: of the artifact.
        part_rows: rows of a part.
        is_online: write raw rows as splits, which a loader encodes; the workflow tells labels and lengths of lists.

    Attributes:
        longest: list column → length of its longest list.
    """

    def __init__(
        self, workflow: nvt.Workflow, dataset: Dataset, directory: Path, part_rows: int, *, is_online: bool
    ) -> None:
        columns = workflow.output_schema.column_schemas
        if is_online and not any(column.is_list for column in columns.values()):
            workflow = deepcopy(workflow).remove_inputs(list(dataset.inputs))
            columns = workflow.output_schema.column_schemas
        self._workflow, self._dataset, self._directory, self._is_online = workflow, dataset, directory, is_online
        self._max_file_rows, self._max_group_rows = part_rows * _PARTS_PER_FILE, max(1, part_rows // _GROUPS_PER_PART)
        self._schema = pa.schema(
            (name, pa.list_(_arrow_type(column)) if column.is_list else _arrow_type(column))
            for name, column in columns.items()
        )
        self.longest = {name: 1 for name, column in columns.items() if column.is_list}

    def write(self, splits: tuple[_RawSplit, ...], report: Report) -> dict[str, Source]:
        """Write each split, and the held-out rows.

        Raises:
            DataError: a split holds only one class.
        """
        inputs, label = self._dataset.inputs, self._schema.field(self._dataset.label)
        raw_schema = splits[0].schema
        heldout_schema = pa.schema([*(raw_schema.field(name) for name in inputs), label])
        sources: dict[str, Source] = {}
        with pq.ParquetWriter(self._directory / HELDOUT, heldout_schema) as heldout:
            for split in splits:
                writer, labels = self._writer(split), set()
                for number, path in enumerate(split.parts, 1):
                    raw = pq.read_table(path)
                    encoded = self._encoded(raw)
                    column = encoded[label.name]
                    labels.update(pc.unique(column).to_pylist())
                    if self._is_online or split.name == "valid":
                        raw = raw.cast(raw_schema)  # dictionaries as what they stand for
                    if split.name == "valid":
                        heldout.write_table(raw.select(inputs).append_column(label, column))
                    writer.write(raw.select([*inputs, label.name]) if self._is_online else encoded)
                    report("encoded", (len(sources) + number / len(split.parts)) / len(splits))
                files = tuple(path.relative_to(self._directory).as_posix() for path in writer.close())
                sources[split.name] = Source(files=files, num_rows=split.num_rows)
                _refuse_one_class(labels, split.name)
        return sources

    def _writer(self, split: _RawSplit) -> _Writer:
        num_files = max(_NUM_FILES[split.name], -(-split.num_rows // self._max_file_rows))
        rows_per_file = -(-split.num_rows // num_files)
        rows_per_group = min(max(rows_per_file // 4, _MIN_GROUP_ROWS), self._max_group_rows)
        return _Writer(self._directory / split.name, rows_per_file=rows_per_file, rows_per_group=rows_per_group)

    def _encoded(self, raw: pa.Table) -> pa.Table:
        frame = self._workflow.transform(_frame_of_part(raw.select(self._workflow.input_schema.column_names)))
        table = pa.Table.from_pandas(frame, schema=self._schema, preserve_index=False).replace_schema_metadata()
        for name in self.longest:
            self.longest[name] = max(self.longest[name], pc.max(pc.list_value_length(table[name])).as_py() or 0)
        return table


def _arrow_type(column: Any) -> pa.DataType:
    return pa.from_numpy_dtype(np.dtype(column.dtype.to_numpy))


def _refuse_one_class(labels: set[Any], split: str) -> None:
    if len(labels) < 2:
        raise DataError(
            f"every label of the {split} rows is {labels.pop()}, and a model needs both classes. "
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
