"""prepare for data with histories: raw interactions → fitted NVTabular workflow, encoded rows and the feature spec.

The workflow encodes one id at a time, whether it stands alone or in a list. So it is run once over the distinct users
and items, and rows are put together from what these became; `workflow.transform` of the raw rows gives the same. Users,
items and the interactions as codes are in memory; rows are made and written block by block.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from workflows.artifacts import publish
from workflows.datasets import Dataset
from workflows.datasets.base import SequenceColumns
from workflows.datasets.raw import RawData
from workflows.errors import ConfigError, DataError, SpecError
from workflows.feature_spec import (
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
)
from workflows.fitting import fit
from workflows.parts import PartWriter, RawSplit, feature_of, nvtabular_dataset
from workflows.pool import HERE, Pool, Tell
from workflows.prepare_config import PrepareConfig
from workflows.prepared import CATALOG, HELDOUT, HISTORIES, KIND, PreparedData, write_spec
from workflows.progress import SILENT, Progress
from workflows.sequence_config import SequenceConfig
from workflows.sequences import TRAIN, VALID, Interactions, Rows, Sequences
from workflows.upstream import nvt, quiet_nvtabular
from workflows.workflow_store import keep_vocabularies_in, load_workflow, save_workflow

_APPLICABLE = ("frequency_threshold", "hash_buckets")
_MAX_FILE_ROWS, _MAX_GROUP_ROWS = 1 << 21, 1 << 15
_EXAMPLE_ROWS = 100
_STAGES = ("read", "fitted", "written")

Codes = NDArray[np.integer[Any]]
Report = Callable[[str, float], None]
"""Told one of `_STAGES` and the share of it that is done."""


def prepare_sequences(
    dataset: Dataset,
    raw: RawData,
    output: Path,
    config: PrepareConfig,
    sequence: SequenceConfig,
    *,
    source: str,
    best_auc: float | None = None,
    part_rows: int = 1 << 18,
    block_values: int = 1 << 22,
    progress: Progress = SILENT,
    pool: Pool = HERE,
) -> PreparedData:
    """Hold out, fit, encode and publish.

    The rows of a user come one after another, in the order of time, a positive before its negatives: loaders shuffle.

    Args:
        dataset: which dataset the rows are of; it has `sequence` columns.
        raw: what its reader returned.
        output: directory of the artifact, replaced when it is whole.
        config: encoding.
        sequence: which positions give rows, and how items are drawn.
        source: a few words on where the rows come from, kept for people and for MLflow.
        best_auc: best AUC that any model can reach, where it is known.
        part_rows: interactions that NVTabular has as one DataFrame; more take more memory.
        block_values: items that the histories of a block of rows have at most; more take more memory.
        progress: told the stages that are done, out of three.
        pool: fits the workflow, and encodes users and items; rows are put together in this process. Where it is of
            other processes, they see `output` under the same path.

    Raises:
        DataError: an interaction lacks user or item, users are not one after another, or nothing is left to train on.
        ConfigError: an option is of no use for histories.
        SpecError: the graph encodes an item in a history other than the item to score.
    """
    columns, make_graph = dataset.sequence, dataset.sequence_graph
    assert columns is not None
    assert make_graph is not None
    _check(dataset, raw, config)
    details: dict[str, Any] = {
        "dataset": dataset.name,
        "source": source,
        "config": {name: getattr(config, name) for name in _APPLICABLE} | asdict(sequence),
        "noticed": dict(raw.noticed),
    }
    metadata = {
        "dataset": dataset.name,
        "inputs": list(dataset.inputs),
        "group_by": dataset.group_by,
        "item": dataset.item,
        "candidates": [columns.item],
        "history": columns.history,
        "negatives": sequence.negatives,
        "best_auc": best_auc,
    }

    def report(stage: str, share: float) -> None:
        number = _STAGES.index(stage)
        progress.update(number + share, len(_STAGES), f"{share:.0%} of {len(raw.rows):,} interactions {stage}")

    with publish(output, KIND, made_from={dataset.name: raw.fingerprint}, details=details) as directory:
        ids = _RawIds(raw, columns, partial(report, "read"))
        sequences = Sequences(ids.interactions, sequence)
        details["rows"], details["dropped"] = sequences.num_rows, {**raw.dropped, **sequences.dropped}
        with TemporaryDirectory(dir=directory, prefix=".fit.") as scratch, quiet_nvtabular():
            workflow = make_graph(raw, config, sequence)
            keep_vocabularies_in(workflow, Path(scratch))
            seen = _write_seen(ids, sequences, Path(scratch) / TRAIN, part_rows)
            fit(workflow, seen.open, nvtabular_dataset(ids.alone(0, _EXAMPLE_ROWS)), partial(report, "fitted"), pool)
            save_workflow(workflow, directory / "workflow")
            encoded = _ids_of(directory / "workflow", ids, Path(scratch), part_rows, pool)
        encoding = _Encoding(workflow, encoded, sequence, label=dataset.label)
        sources = _write_rows(sequences, ids, encoding, dataset.inputs, directory, block_values, report)
        ids.write_histories(directory / HISTORIES, block_values)
        pq.write_table(raw.catalog, directory / CATALOG)
        present = {name: value for name, value in metadata.items() if value is not None}
        spec = FeatureSpec(features=encoding.features, channels=encoding.channels, sources=sources, metadata=present)
        write_spec(spec, directory)
    return PreparedData.published(output)


def _check(dataset: Dataset, raw: RawData, config: PrepareConfig) -> None:
    """Refuse options that would do nothing, and data of nothing."""
    for name, default in asdict(PrepareConfig()).items():
        value = getattr(config, name)
        if name not in _APPLICABLE and value != default:
            raise ConfigError(
                f"{name} is {value!r}, which {dataset.name} has no use for: `holdout` says what validates, and rows "
                f"are encoded offline. Leave it at {default!r}."
            )
    if not len(raw.rows):
        raise DataError(f"the files of {dataset.name} hold no interactions. Give more data.")
    if raw.catalog is None or not len(raw.catalog):
        raise DataError(f"the catalogue of {dataset.name} is empty. Give the files that describe the items.")


class _RawIds:
    """Raw users and items, and their interactions as codes, numbered by first appearance.

    Args:
        raw: the interactions.
        columns: names of the columns.
        report: told the share of the interactions that is read.
    """

    def __init__(self, raw: RawData, columns: SequenceColumns, report: Callable[[float], None]) -> None:
        self._columns = columns
        chunks: dict[str, list[pa.DictionaryArray]] = {columns.user: [], columns.item: []}
        num_read = 0
        for batch in raw.rows.to_batches() if isinstance(raw.rows, pa.Table) else raw.rows.batches():
            for name, held in chunks.items():
                if batch[name].null_count:
                    raise DataError(f"{batch[name].null_count} interactions lack {name!r}. Drop them when reading.")
                held.append(batch[name].dictionary_encode())
            num_read += batch.num_rows
            report(num_read / len(raw.rows))
        users, self.users = _codes(chunks[columns.user])
        items, self.items = _codes(chunks[columns.item])
        steps = np.diff(users)
        if (steps < 0).any():
            user = self.users[int(users[1:][steps < 0][0])]
            raise DataError(
                f"{columns.user} {user} comes again after others. Sort the interactions by user, then time."
            )
        offsets = np.concatenate([[0], np.flatnonzero(steps) + 1, [len(users)]])
        self.interactions = Interactions(items=items, offsets=offsets, num_items=len(self.items))

    def table(self, users: Codes, items: Codes, history: Codes, offsets: Codes) -> pa.Table:
        """Raw inputs of the rows that codes stand for; row i has the history from offsets[i] up to offsets[i + 1]."""
        return pa.table(
            {
                self._columns.user: self.users.take(pa.array(users)),
                self._columns.item: self.items.take(pa.array(items)),
                self._columns.history: _lists(offsets, self.items.take(pa.array(history))),
            }
        )

    @property
    def num_alone(self) -> int:
        """Rows that `alone` needs."""
        return max(len(self.users), len(self.items))

    def alone(self, start: int, num_rows: int) -> pa.Table:
        """Rows of user i and item i, which is the history too; of the last one where there are not so many."""
        numbers = np.arange(start, min(start + num_rows, self.num_alone))
        users, items = (np.minimum(numbers, len(distinct) - 1) for distinct in (self.users, self.items))
        return self.table(users, items, items, np.arange(len(numbers) + 1))

    def write_histories(self, path: Path, block_values: int) -> None:
        """Write all items of each user."""
        items, offsets = self.interactions.items, self.interactions.offsets
        schema = self.alone(0, 1).select([self._columns.user, self._columns.history]).schema
        start = 0
        with pq.ParquetWriter(path, schema) as file:
            while start < len(self.users):
                within = int(np.searchsorted(offsets, offsets[start] + block_values, side="right")) - 1
                stop = max(start + 1, within)
                values = self.items.take(pa.array(items[offsets[start] : offsets[stop]]))
                lists = _lists(offsets[start : stop + 1] - offsets[start], values)
                file.write_table(pa.Table.from_arrays([self.users.slice(start, stop - start), lists], schema=schema))
                start = stop


def _codes(chunks: Sequence[pa.DictionaryArray]) -> tuple[NDArray[np.int32], pa.Array]:
    """Values as codes, and what the codes stand for."""
    alike = pa.chunked_array(chunks).unify_dictionaries()
    return np.concatenate([chunk.indices.to_numpy() for chunk in alike.chunks]), alike.chunk(0).dictionary


def _lists(offsets: Codes, values: Any) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def _write_seen(ids: _RawIds, sequences: Sequences, directory: Path, part_rows: int) -> RawSplit:
    """Write what vocabularies are made of: a row for each interaction before the held-out one, without its history.

    So an item is as frequent as it was chosen, and what only comes later is unseen.
    """
    users, items = sequences.training_interactions()
    writer = PartWriter(directory, rows_per_file=part_rows, dictionaries=())
    for start in range(0, len(users), part_rows):
        part = slice(start, start + part_rows)
        # NVTabular asks the values of a list what type they are, so each part has one: its first item.
        offsets = np.ones(len(users[part]) + 1, dtype=np.int32)
        offsets[0] = 0
        writer.write(ids.table(users[part], items[part], items[start : start + 1], offsets))
    schema = ids.alone(0, 1).schema
    return RawSplit(name=TRAIN, parts=tuple(writer.close()), num_rows=len(users), schema=schema)


class _Encoding:
    """What a fitted workflow makes of users and items.

    Args:
        workflow: fitted.
        ids: encoded column → id of each user or item, by code.
        sequence: says what rows have.
        label: name of the label column.

    Attributes:
        label: name of the label column.
        features: the columns in the order of the files: label, user, item, history, negative history.
        channels: channel → columns.

    Raises:
        SpecError: an item in a history becomes something else than the item to score.
    """

    def __init__(
        self, workflow: nvt.Workflow, ids: Mapping[str, NDArray[Any]], sequence: SequenceConfig, *, label: str
    ) -> None:
        columns = workflow.output_schema.column_schemas
        targets = [name for name in columns if name.endswith(TARGET_SUFFIX)]
        histories = [name.removesuffix(TARGET_SUFFIX) + HISTORY_SUFFIX for name in targets]
        if missing := [name for name in histories if name not in columns]:
            raise SpecError(
                f"the graph makes {list(columns)}, which lacks {missing}: a history needs each item feature."
            )
        users = [name for name in columns if name not in {*targets, *histories}]
        self._ids = ids
        for target, history in zip(targets, histories, strict=True):
            if not np.array_equal(self._ids[target], self._ids[history]):
                raise SpecError(
                    f"the graph makes other ids in {history} than in {target}: let them share a vocabulary."
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
        """Rows as the files have them."""
        made: dict[str, Any] = {self.label: rows.labels}
        made |= {name: self._ids[name][rows.users] for name in self._users}
        made |= {name: self._ids[name][rows.items] for name in self._targets}
        for channel, items in ((HISTORY, rows.history), (NEGATIVES, rows.negatives)):
            if items is not None:
                for name, target in zip(self.channels[channel], self._targets, strict=True):
                    made[name] = _lists(rows.offsets, self._ids[target][items])
        return pa.table(made)


def _ids_of(workflow: Path, ids: _RawIds, scratch: Path, part_rows: int, pool: Pool) -> dict[str, NDArray[Any]]:
    """Encoded column → id of each user or item, by code."""
    writer = PartWriter(scratch / "alone", rows_per_file=part_rows, dictionaries=())
    for start in range(0, ids.num_alone, part_rows):
        writer.write(ids.alone(start, part_rows))
    parts = pool.map(_encoded_ids, [(workflow, path) for path in writer.close()], lambda _: None)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _encoded_ids(task: tuple[Path, Path], _tell: Tell) -> dict[str, NDArray[Any]]:
    """Encode a part of single ids by a saved workflow."""
    directory, path = task
    workflow = load_workflow(directory)
    encoded = workflow.transform(pq.read_table(path).to_pandas())
    return {
        name: np.concatenate(encoded[name].tolist()) if column.is_list else encoded[name].to_numpy()
        for name, column in workflow.output_schema.column_schemas.items()
    }


def _write_rows(
    sequences: Sequences,
    ids: _RawIds,
    encoding: _Encoding,
    inputs: Sequence[str],
    directory: Path,
    block_values: int,
    report: Report,
) -> dict[str, Source]:
    """Write each split, and the held-out rows."""
    sources: dict[str, Source] = {}
    heldout = PartWriter(directory / HELDOUT, rows_per_file=_MAX_FILE_ROWS, rows_per_group=_MAX_GROUP_ROWS)
    for split, num_rows in sequences.num_rows.items():
        writer = PartWriter.of_split(
            directory, split, num_rows, max_file_rows=_MAX_FILE_ROWS, max_group_rows=_MAX_GROUP_ROWS
        )
        num_written = 0
        for rows in sequences.rows(split, block_values):
            writer.write(encoding.table(rows))
            if split == VALID:
                raw = ids.table(rows.users, rows.items, rows.history, rows.offsets).select(inputs)
                heldout.write(raw.append_column(encoding.label, pa.array(rows.labels, pa.float32())))
            num_written += len(rows.users)
            report("written", (len(sources) + num_written / num_rows) / len(sequences.num_rows))
        files = tuple(path.relative_to(directory).as_posix() for path in writer.close())
        sources[split] = Source(files=files, num_rows=num_rows)
    heldout.close()
    return sources
