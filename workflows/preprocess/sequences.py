"""Conversion of raw interactions to rows with histories. Each distinct user or item id is encoded only once.

The workflow encodes each id independently, alone or in a list. It therefore runs once over the distinct users and
items, and the rows are assembled from the encoded ids; `workflow.transform` of the raw rows gives the same result.
Users, items and the interactions (as codes) are held in memory; rows are assembled and written block by block in this
process. A user's rows are consecutive and chronological, each positive row before its negatives; loaders shuffle them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rankline.workflows.core.errors import DataError, SpecError
from rankline.workflows.nvt.compat import nvt
from rankline.workflows.nvt.io.workflow import load_workflow
from rankline.workflows.preprocess.config import SequenceConfig
from rankline.workflows.preprocess.dataset import Dataset, SequenceColumns
from rankline.workflows.preprocess.executor import PrepareContext, Report
from rankline.workflows.preprocess.negative_sampling import TRAIN, VALID, Interactions, Rows, Sequences
from rankline.workflows.preprocess.partitions import (
    FilesWriter,
    RawSplit,
    feature_of,
    layout_of_split,
    nvtabular_dataset,
    read_partition,
)
from rankline.workflows.preprocess.prepared_data import HELDOUT, HISTORIES
from rankline.workflows.preprocess.raw import RawData
from rankline.workflows.schema.feature_spec import (
    HISTORY,
    HISTORY_SUFFIX,
    LABEL,
    NEGATIVES,
    NEGATIVES_SUFFIX,
    TARGET,
    TARGET_SUFFIX,
    USERS,
    Feature,
    FeatureSpec,
    Source,
    SpecMetadata,
)
from rankline.workflows.schema.ragged import arrow_lists

_MAX_FILE_ROWS, _MAX_GROUP_ROWS = 1 << 21, 1 << 15
_EXAMPLE_ROWS = 100
_VALUES_PER_ROW = 16
"""Maximum number of history items in a block, per row of a partition."""

Codes = NDArray[np.integer[Any]]


class HistoryEncoding:
    """The `Encoding` for rows with histories, each of which has an item to score and the user's previous items."""

    _ids: "_RawIds"
    _sequences: Sequences

    def __init__(self, dataset: Dataset, raw: RawData, config: SequenceConfig) -> None:
        if not len(raw.rows):
            raise DataError(f"the files of {dataset.name} contain no interactions. Provide files with interactions.")
        if raw.catalog is None or not len(raw.catalog):
            raise DataError(f"the catalog of {dataset.name} is empty. Provide the files that describe the items.")
        assert dataset.sequence is not None  # guaranteed by `Dataset.encoding`
        raw.check_columns([dataset.sequence.user, dataset.sequence.item], dataset.name, "histories")
        self._dataset, self._raw, self._config, self._columns = dataset, raw, config, dataset.sequence

    @property
    def num_rows(self) -> Mapping[str, int]:
        return self._sequences.num_rows

    @property
    def dropped(self) -> Mapping[str, int]:
        return self._sequences.dropped

    def write_training_rows(self, workflow: nvt.Workflow, job: PrepareContext) -> RawSplit:  # noqa: ARG002  (any workflow's rows)
        """Write a row without a history for every interaction that precedes the user's held-out interaction.

        The frequency of an item then equals how often it was chosen, and items that occur only later count as unseen.
        """
        self._ids = _RawIds(self._raw, self._columns, partial(job.report, "read"))
        self._sequences = Sequences(self._ids.interactions, self._config)
        users, items = self._sequences.training_interactions()
        writer = FilesWriter(job.scratch / TRAIN, rows_per_file=job.partition_rows, dictionaries=())
        for start in range(0, len(users), job.partition_rows):
            rows = slice(start, start + job.partition_rows)
            # NVTabular infers a list's type from its values, so each partition's first row has one item.
            offsets = np.ones(len(users[rows]) + 1, dtype=np.int32)
            offsets[0] = 0
            writer.write(self._ids.table(users[rows], items[rows], items[start : start + 1], offsets))
        schema = self._ids.alone(0, 1).schema
        return RawSplit(name=TRAIN, partitions=tuple(writer.close()), num_rows=len(users), schema=schema)

    def example(self) -> nvt.Dataset:
        return nvtabular_dataset(self._ids.alone(0, _EXAMPLE_ROWS))

    def write_splits(self, workflow: nvt.Workflow, job: PrepareContext) -> FeatureSpec:
        columns = _Columns(workflow, _ids_of(self._ids, job), self._config, label=self._dataset.labels[0])
        block_values = job.partition_rows * _VALUES_PER_ROW
        sources = _write_rows(self._sequences, self._ids, columns, self._dataset.inputs, block_values, job)
        self._ids.write_histories(job.directory / HISTORIES, block_values)
        metadata = SpecMetadata(
            candidates=(self._columns.item,), history=self._columns.history, negatives=self._config.negatives
        )
        return FeatureSpec(features=columns.features, channels=columns.channels, sources=sources, metadata=metadata)


class _RawIds:
    """The distinct raw users and items, and the interactions as integer codes in order of first appearance."""

    def __init__(self, raw: RawData, columns: SequenceColumns, report: Report) -> None:
        self._columns = columns
        chunks: dict[str, list[pa.DictionaryArray]] = {columns.user: [], columns.item: []}
        num_read = 0
        for batch in raw.rows.to_batches() if isinstance(raw.rows, pa.Table) else raw.rows.batches():
            for name, held in chunks.items():
                if batch[name].null_count:
                    raise DataError(
                        f"{batch[name].null_count} interactions have no {name!r}. Drop them when reading the data."
                    )
                held.append(batch[name].dictionary_encode())
            num_read += batch.num_rows
            report(num_read / len(raw.rows))
        users, self.users = _codes(chunks[columns.user])
        items, self.items = _codes(chunks[columns.item])
        steps = np.diff(users)
        if (steps < 0).any():
            user = self.users[int(users[1:][steps < 0][0])]
            raise DataError(
                f"{columns.user} {user} appears again after other users. Sort the interactions by user, then time."
            )
        offsets = np.concatenate([[0], np.flatnonzero(steps) + 1, [len(users)]])
        self.interactions = Interactions(items=items, offsets=offsets, num_items=len(self.items))

    def table(self, users: Codes, items: Codes, history: Codes, offsets: Codes) -> pa.Table:
        """Convert codes to rows of raw inputs. The history of row i is `history[offsets[i]:offsets[i + 1]]`."""
        return pa.table(
            {
                self._columns.user: self.users.take(pa.array(users)),
                self._columns.item: self.items.take(pa.array(items)),
                self._columns.history: arrow_lists(self.items.take(pa.array(history)), offsets),
            }
        )

    @property
    def num_alone(self) -> int:
        return max(len(self.users), len(self.items))

    def alone(self, start: int, num_rows: int) -> pa.Table:
        """Return rows that pair user i with item i and a history of only that item. The shorter of the two id lists
        repeats its last id.
        """
        numbers = np.arange(start, min(start + num_rows, self.num_alone))
        users, items = (np.minimum(numbers, len(distinct) - 1) for distinct in (self.users, self.items))
        return self.table(users, items, items, np.arange(len(numbers) + 1))

    def write_histories(self, path: Path, block_values: int) -> None:
        items, offsets = self.interactions.items, self.interactions.offsets
        schema = self.alone(0, 1).select([self._columns.user, self._columns.history]).schema
        start = 0
        with pq.ParquetWriter(path, schema) as file:
            while start < len(self.users):
                within = int(np.searchsorted(offsets, offsets[start] + block_values, side="right")) - 1
                stop = max(start + 1, within)
                values = self.items.take(pa.array(items[offsets[start] : offsets[stop]]))
                lists = arrow_lists(values, offsets[start : stop + 1] - offsets[start])
                file.write_table(pa.Table.from_arrays([self.users.slice(start, stop - start), lists], schema=schema))
                start = stop


def _codes(chunks: Sequence[pa.DictionaryArray]) -> tuple[NDArray[np.int32], pa.Array]:
    unified = pa.chunked_array(chunks).unify_dictionaries()
    return np.concatenate([chunk.indices.to_numpy() for chunk in unified.chunks]), unified.chunk(0).dictionary


class _Columns:
    """The output columns of rows with histories, assembled from the encoded ids of users and items.

    Raises:
        SpecError: the workflow encodes an item in a history differently from the item to score.
    """

    def __init__(
        self, workflow: nvt.Workflow, ids: Mapping[str, NDArray[Any]], sequence: SequenceConfig, *, label: str
    ) -> None:
        columns = workflow.output_schema.column_schemas
        targets = [name for name in columns if name.endswith(TARGET_SUFFIX)]
        histories = [name.removesuffix(TARGET_SUFFIX) + HISTORY_SUFFIX for name in targets]
        if missing := [name for name in histories if name not in columns]:
            raise SpecError(
                f"the graph outputs {list(columns)} but not {missing}. A history requires all item features."
            )
        users = [name for name in columns if name not in {*targets, *histories}]
        self._ids = ids
        for target, history in zip(targets, histories, strict=True):
            if not np.array_equal(self._ids[target], self._ids[history]):
                raise SpecError(
                    f"the graph produces different ids in {history} than in {target}. Use one vocabulary for both."
                )
        negatives = [name.removesuffix(TARGET_SUFFIX) + NEGATIVES_SUFFIX for name in targets]
        lists = [feature_of(columns[name], max_length=sequence.max_history) for name in histories]
        features = [Feature(name=label, dtype="float32"), *(feature_of(columns[name]) for name in (*users, *targets))]
        features += lists
        self.label, self._users, self._targets = label, users, targets
        self.channels = {LABEL: (label,), USERS: tuple(users), TARGET: tuple(targets), HISTORY: tuple(histories)}
        if sequence.negative_history:
            features += [replace(feature, name=name) for feature, name in zip(lists, negatives, strict=True)]
            self.channels[NEGATIVES] = tuple(negatives)
        self.features = tuple(features)

    def table(self, rows: Rows) -> pa.Table:
        made: dict[str, Any] = {self.label: rows.labels}
        made |= {name: self._ids[name][rows.users] for name in self._users}
        made |= {name: self._ids[name][rows.items] for name in self._targets}
        for channel, items in ((HISTORY, rows.history), (NEGATIVES, rows.negatives)):
            if items is not None:
                for name, target in zip(self.channels[channel], self._targets, strict=True):
                    made[name] = arrow_lists(self._ids[target][items], rows.offsets)
        return pa.table(made)


def _ids_of(ids: _RawIds, job: PrepareContext) -> dict[str, NDArray[Any]]:
    writer = FilesWriter(job.scratch / "alone", rows_per_file=job.partition_rows, dictionaries=())
    for start in range(0, ids.num_alone, job.partition_rows):
        writer.write(ids.alone(start, job.partition_rows))
    workflow = load_workflow(job.directory / "workflow")
    encoded = job.pool.map(_encoded_ids, [(workflow, path) for path in writer.close()], lambda _: None)
    return {name: np.concatenate([of_some[name] for of_some in encoded]) for name in encoded[0]}


def _encoded_ids(task: tuple[nvt.Workflow, Path], _report: Report) -> dict[str, NDArray[Any]]:
    workflow, path = task
    encoded = workflow.transform(read_partition(path).to_pandas())
    return {
        name: np.concatenate(encoded[name].tolist()) if column.is_list else encoded[name].to_numpy()
        for name, column in workflow.output_schema.column_schemas.items()
    }


def _write_rows(
    sequences: Sequences, ids: _RawIds, columns: _Columns, inputs: Sequence[str], block_values: int, job: PrepareContext
) -> dict[str, Source]:
    sources: dict[str, Source] = {}
    heldout = FilesWriter(job.directory / HELDOUT, rows_per_file=_MAX_FILE_ROWS, rows_per_group=_MAX_GROUP_ROWS)
    for split, num_rows in sequences.num_rows.items():
        rows_per_file, rows_per_group = layout_of_split(split, num_rows, _MAX_FILE_ROWS, _MAX_GROUP_ROWS)
        writer = FilesWriter(job.directory / split, rows_per_file=rows_per_file, rows_per_group=rows_per_group)
        num_written = 0
        for rows in sequences.rows(split, block_values):
            writer.write(columns.table(rows))
            if split == VALID:
                raw = ids.table(rows.users, rows.items, rows.history, rows.offsets).select(inputs)
                heldout.write(raw.append_column(columns.label, pa.array(rows.labels, pa.float32())))
            num_written += len(rows.users)
            job.report("encoded", (len(sources) + num_written / num_rows) / len(sequences.num_rows))
        files = tuple(path.relative_to(job.directory).as_posix() for path in writer.close())
        sources[split] = Source(files=files, num_rows=num_rows)
    heldout.close()
    return sources
