"""The encoding for tabular data, in which each raw row becomes one encoded row.

Streamed rows may exceed memory. They are split, fitted, encoded and written partition by partition; apart from the
largest partitions, only the vocabularies are in memory. Reading a shard, computing the statistics of a partition and
encoding a file are tasks, run one by one in this process or in parallel by a pool of workers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rankline.workflows.core.errors import ConfigError, DataError, SpecError
from rankline.workflows.nvt.compat import nvt
from rankline.workflows.nvt.io.workflow import for_inference, load_workflow
from rankline.workflows.nvt.operators.arrow_input import arrow_columns, raw_columns
from rankline.workflows.nvt.operators.values import holds_text
from rankline.workflows.preprocess.config import RowsConfig
from rankline.workflows.preprocess.dataset import Dataset
from rankline.workflows.preprocess.executor import PrepareContext, Report
from rankline.workflows.preprocess.partitions import (
    NUM_FILES,
    FileRows,
    FilesWriter,
    RawSplit,
    dtype_of,
    feature_of,
    file_name,
    frame_of_partition,
    layout_of_split,
    read_partition,
)
from rankline.workflows.preprocess.prepared_data import FIRST_ROW, GROUPS, HELDOUT, HISTORIES
from rankline.workflows.preprocess.raw import RawData, Shard, StreamedRows
from rankline.workflows.preprocess.sorting import first_rows_of_groups, sorted_split
from rankline.workflows.preprocess.splits import ByColumn, split_batches, split_by_column, split_rows
from rankline.workflows.schema.feature_spec import CATEGORICAL, CONTINUOUS, LABEL, FeatureSpec, Source, SpecMetadata
from rankline.workflows.schema.label_stats import Labels, expected_labels, merge_stats
from rankline.workflows.schema.targets import Head, usual_heads

from merlin.dag.executors import LocalExecutor  # isort: skip
from merlin.dag.ops.concat_columns import ConcatColumns  # isort: skip

_PARTITIONS_PER_FILE = 16
_GROUPS_PER_PARTITION = 2


class TabularPreprocessor:
    """The `Encoding` that splits raw rows, then encodes each split one file at a time."""

    def __init__(self, dataset: Dataset, raw: RawData, config: RowsConfig) -> None:
        self._dataset, self._raw, self._config = dataset, raw, config
        self._group = dataset.group or dataset.group_by
        split_by = {"time": dataset.time, "group": self._group}.get(config.split)
        raw.check_columns(dataset.inputs, dataset.name, "inputs")
        raw.check_columns(_heldout_columns(dataset), dataset.name, "group_by")
        raw.check_columns([split_by] if split_by else [], dataset.name, f"split by {config.split}")
        self._splits: tuple[RawSplit, ...] = ()
        self.dropped: Mapping[str, int] = {}

    @property
    def num_rows(self) -> Mapping[str, int]:
        return {split.name: split.num_rows for split in self._splits}

    def write_training_rows(self, workflow: nvt.Workflow, job: PrepareContext) -> RawSplit:
        self._raw.check_columns(raw_columns(workflow), self._dataset.name, "graph")
        schema = self._raw.rows.schema
        texts = [name for name in arrow_columns(workflow) if holds_text(schema.field(name).type)]
        by = split_by_column(self._raw.rows, self._config, self._dataset.time, self._group)
        train, valid = _write_raw(self._raw, self._config, self._dataset, texts, job, by)
        if by is not None:  # otherwise they are split at random, or are in the order of time already
            train = sorted_split(train, by, job.scratch, partition_rows=job.partition_rows, dictionaries=texts)
            if by.begin is None:
                pq.write_table(pa.table({FIRST_ROW: first_rows_of_groups(train, by)}), job.directory / GROUPS)
        self._splits = train, valid
        if left_out := len(self._raw.rows) - sum(self.num_rows.values()):
            self.dropped = {"no label": left_out}
        return self._splits[0]

    def example(self) -> nvt.Dataset:
        return self._splits[0].example()

    def write_splits(self, workflow: nvt.Workflow, job: PrepareContext) -> FeatureSpec:
        """Encode and write splits file by file. Held-out rows are the raw inputs and encoded labels for validation."""
        load = partial(load_workflow, job.directory / "workflow")
        saved = load()
        files = _EncodedFiles(
            directory=job.directory,
            scratch=job.scratch,
            workflow=saved,
            heldout_workflow=for_inference(saved, load),
            heldout_columns=_heldout_columns(self._dataset),
            heads=self._dataset.heads,
            schema=self._raw.rows.schema,
        )
        if lacking := [name for name in files.labels if name not in workflow.output_schema.column_names]:
            raise ConfigError(f"the workflow does not output the label {lacking[0]!r}. Add it to the recipe's graph.")
        sources, longest, labels = _encode(files, self._splits, job)
        if (histories := _histories(self._raw, self._dataset)) is not None:
            pq.write_table(histories, job.directory / HISTORIES)
        features = tuple(
            feature_of(column, longest.get(name)) for name, column in workflow.output_schema.column_schemas.items()
        )
        inputs = [feature for feature in features if feature.name not in files.labels]
        return FeatureSpec(
            features=features,
            channels={
                CATEGORICAL: tuple(feature.name for feature in inputs if feature.cardinality is not None),
                CONTINUOUS: tuple(feature.name for feature in inputs if feature.cardinality is None),
                LABEL: files.labels,
            },
            sources=sources,
            metadata=SpecMetadata(heads=_fitted(files.heads, labels)),
        )


# --- Raw rows, split


def _write_raw(
    raw: RawData,
    config: RowsConfig,
    dataset: Dataset,
    dictionaries: list[str],
    job: PrepareContext,
    by: ByColumn | None,
) -> tuple[RawSplit, ...]:
    report = partial(job.report, "read")
    write = partial(_write_batches, dictionaries=dictionaries, partition_rows=job.partition_rows)
    written: list[_Written]
    if isinstance(raw.rows, StreamedRows) and raw.rows.shards:
        directory = job.scratch / "shards"
        directory.mkdir()
        first_rows = accumulate((shard.num_rows for shard in raw.rows.shards), initial=0)
        split = partial(split_batches, periods=raw.rows.periods, config=config, by=by)
        tasks = list(zip(raw.rows.shards, first_rows, strict=False))  # `first_rows` also has the end
        written = job.pool.map(partial(_write_shard, split, write, directory), tasks, report)
    else:
        written = [write(split_rows(raw.rows, config, dataset.time, by), job.scratch, len(raw.rows), report)]
    counts = {name: sum(of_shard[name][1] for of_shard in written) for name in NUM_FILES}
    if not all(counts.values()):
        raise ConfigError(f"the split has {counts} rows, expected rows in both parts. Use another valid_share.")
    return tuple(
        RawSplit(
            name=name,
            partitions=tuple(path for of_shard in written for path in of_shard[name][0]),
            num_rows=counts[name],
            schema=raw.rows.schema,
        )
        for name in counts
    )


_Written = Mapping[str, tuple[Sequence[Path], int]]
"""Split → its partitions and their number of rows."""


def _write_shard(
    split: Callable[..., Iterator[tuple[str, pa.Table]]],
    write: Callable[..., _Written],
    directory: Path,
    task: tuple[Shard, int],
    report: Report,
) -> _Written:
    shard, first_row = task
    own = Path(mkdtemp(dir=directory))  # unique per attempt, because a task may run twice
    return write(split(shard.batches(), first_row=first_row), own, shard.num_rows, report)


def _write_batches(
    batches: Iterator[tuple[str, pa.Table]],
    directory: Path,
    num_rows: int,
    report: Report,
    *,
    dictionaries: Sequence[str],
    partition_rows: int,
) -> _Written:
    counts = dict.fromkeys(NUM_FILES, 0)
    writers = {
        name: FilesWriter(directory / name, rows_per_file=partition_rows, dictionaries=dictionaries) for name in counts
    }
    for name, table in batches:
        writers[name].write(table)
        counts[name] += len(table)
        report(sum(counts.values()) / num_rows)
    return {name: (writers[name].close(), counts[name]) for name in counts}


def _histories(raw: RawData, dataset: Dataset) -> pa.Table | None:
    """Return one row per raw user with a list of all their items, or None if rows have no item ids or are streamed."""
    user, item = dataset.group_by, dataset.item
    if raw.catalog is None or user is None or item is None or not isinstance(raw.rows, pa.Table):
        return None
    listed = raw.rows.group_by(user, use_threads=False).aggregate([(item, "list")])
    return listed.select([user, f"{item}_list"]).rename_columns([user, item])


# --- Encoded rows, file by file


@dataclass(frozen=True, kw_only=True)
class _EncodedFiles:
    directory: Path
    scratch: Path
    workflow: nvt.Workflow
    heldout_workflow: nvt.Workflow
    heldout_columns: tuple[str, ...]
    heads: tuple[Head, ...]
    schema: pa.Schema

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(head.column for head in self.heads)

    def raw(self, rows: pa.Table, *columns: str) -> pa.Table:
        return rows.select(columns).cast(pa.schema([self.schema.field(name) for name in columns]))


def _heldout_columns(dataset: Dataset) -> tuple[str, ...]:
    """Return the inputs, and the column of the groups, which intervals need even if it is not an input."""
    group = dataset.group_by
    return dataset.inputs if group is None or group in dataset.inputs else (*dataset.inputs, group)


class _Encoder:
    def __init__(self, workflow: nvt.Workflow) -> None:
        self._inputs = workflow.input_schema.column_names
        self._nodes = _put_together(workflow.output_node)
        columns = workflow.output_schema.column_schemas
        types = {name: _arrow_type(name, dtype_of(column)) for name, column in columns.items()}
        self.schema = pa.schema(
            (name, pa.list_(kind) if columns[name].is_list else kind) for name, kind in types.items()
        )
        self.longest = {name: 1 for name, column in columns.items() if column.is_list}

    def encoded(self, rows: pa.Table) -> pa.Table:
        frame = frame_of_partition(rows.select(self._inputs))
        made: dict[str, pa.ChunkedArray] = {}
        for node in self._nodes:
            part = LocalExecutor().transform(frame, node)
            schema = pa.schema([self.schema.field(name) for name in part.columns])
            columns = pa.Table.from_pandas(part, schema=schema, preserve_index=False)
            made |= dict(zip(schema.names, columns, strict=True))
        table = pa.table([made[name] for name in self.schema.names], schema=self.schema)
        for name in self.longest:
            self.longest[name] = max(self.longest[name], pc.max(pc.list_value_length(table[name])).as_py() or 0)
        return table


def _arrow_type(name: str, dtype: np.dtype[Any]) -> pa.DataType:
    try:
        return pa.from_numpy_dtype(dtype)
    except pa.ArrowNotImplementedError:
        raise SpecError(
            f"the graph returns text in column {name!r}, expected numbers. Encode it with Categorify, or leave it "
            "out; encode a class as its index in `classes`, starting at 0."
        ) from None


def _put_together(node: Any) -> list[Any]:
    """Return the nodes that `node` concatenates, flattening nested concatenations. Running them directly avoids
    NVTabular's repeated copies of all columns.
    """
    parents = node.parents_with_dependencies
    made = {name for parent in parents for name in parent.output_columns.names}
    if not isinstance(node.op, ConcatColumns) or made != set(node.output_columns.names):
        return [node]
    return [part for parent in parents for part in _put_together(parent)]


@dataclass(frozen=True, kw_only=True)
class _FileTask:
    rows: tuple[FileRows, ...]
    name: str
    rows_per_group: int
    heldout: str | None

    @property
    def num_rows(self) -> int:
        return sum(rows.num_rows for rows in self.rows)


def _encode(
    files: _EncodedFiles, splits: Sequence[RawSplit], job: PrepareContext
) -> tuple[dict[str, Source], dict[str, int], list[Labels]]:
    """Write each split and the held-out rows.

    Returns:
        Split → its files; list column → length of its longest list; the labels of the training rows for each head.
    """
    tasks_of = {split.name: _tasks_of(split, files, job.partition_rows) for split in splits}
    # Start with large files, so that the last tasks are small and keep all workers busy.
    tasks = sorted((task for of_split in tasks_of.values() for task in of_split), key=lambda task: -task.num_rows)
    seen = job.pool.map(partial(_write_file, files), tasks, partial(job.report, "encoded"))
    seen_in = dict(zip((task.name for task in tasks), seen, strict=True))
    labels_of: dict[str, list[Labels]] = {}
    for name, of_split in tasks_of.items():
        labels = merge_stats([seen_in[task.name][0] for task in of_split])
        for head, of_head in zip(files.heads, labels, strict=True):
            of_head.check_split(head, name)
        labels_of[name] = labels
    longest: dict[str, int] = {}
    for _, of_file in seen:
        for name, length in of_file.items():
            longest[name] = max(longest.get(name, 1), length)
    sources = {
        split.name: Source(files=tuple(task.name for task in tasks_of[split.name]), num_rows=split.num_rows)
        for split in splits
    }
    return sources, longest, labels_of[splits[0].name]


def _fitted(heads: Sequence[Head], labels: Sequence[Labels]) -> tuple[Head, ...]:
    """Return the heads with label statistics from the training rows, or an empty tuple if they equal the defaults."""
    fitted = tuple(of_head.fitted(head) for head, of_head in zip(heads, labels, strict=True))
    return () if fitted == usual_heads([head.column for head in heads]) else fitted


def _tasks_of(split: RawSplit, files: _EncodedFiles, partition_rows: int) -> tuple[_FileTask, ...]:
    rows_per_file, rows_per_group = layout_of_split(
        split.name,
        split.num_rows,
        partition_rows * _PARTITIONS_PER_FILE,
        max(1, partition_rows // _GROUPS_PER_PARTITION),
    )
    is_heldout = split.name == "valid"
    (files.directory / split.name).mkdir()
    if is_heldout:
        (files.directory / HELDOUT).mkdir()
    return tuple(
        _FileTask(
            rows=rows,
            name=f"{split.name}/{file_name(number)}",
            rows_per_group=rows_per_group,
            heldout=f"{HELDOUT}/{file_name(number)}" if is_heldout else None,
        )
        for number, rows in enumerate(split.cut(rows_per_file))
    )


def _write_file(files: _EncodedFiles, task: _FileTask, report: Report) -> tuple[Sequence[Labels], Mapping[str, int]]:
    encoder = _Encoder(files.workflow if task.heldout is None else files.heldout_workflow)
    has_folds = task.heldout is None and files.heldout_workflow is not files.workflow
    label_fields = [encoder.schema.field(name) for name in files.labels]
    seen = [Labels() for _ in files.heads]
    with TemporaryDirectory(dir=files.scratch) as scratch:  # unique per attempt, because a task may run twice
        writer_in = partial(FilesWriter, rows_per_file=task.num_rows, rows_per_group=task.rows_per_group)
        writers = {name: writer_in(Path(scratch, name).parent) for name in (task.name, task.heldout) if name}
        for number, rows in enumerate(task.rows, 1):
            raw = rows.read()
            if has_folds:  # NVTabular draws folds by the row's position in its partition
                encoded = encoder.encoded(read_partition(rows.path)).slice(rows.start, rows.num_rows)
            else:
                encoded = encoder.encoded(raw)
            seen = merge_stats([seen, [_labels(head, encoded, len(files.heads) > 1) for head in files.heads]])
            writers[task.name].write(encoded)
            if task.heldout:
                held_out = files.raw(raw, *files.heldout_columns)
                for label in label_fields:
                    held_out = held_out.append_column(label, encoded[label.name])
                writers[task.heldout].write(held_out)
            report(number / len(task.rows))
        for name, writer in writers.items():
            (path,) = writer.close()
            path.replace(files.directory / name)
    return seen, encoder.longest


def _labels(head: Head, encoded: pa.Table, may_lack: bool) -> Labels:
    column = encoded[head.column]
    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)):
        raise DataError(
            f"the graph returns the label {head.column!r} as {column.type}, expected {expected_labels(head)}. "
            "Convert it to numbers in the dataset's graph."
        )
    return Labels.of(head, column.cast(pa.float64()).to_numpy(), may_lack=may_lack)
