"""import: convert data that was prepared elsewhere, so that training, export and serving work with it.

A `feature_spec.yaml` describes the files (`rankline.training.data.spec_files`). Its channels have the names
of Rankline's channels or other names. In a channel with another name, ids are categorical, and numbers are continuous,
or labels if the name contains "label". A mapping `test` becomes the split `valid`.

Ids stay as they are: 0 is padding and the cardinality is the largest id, so Rankline's cardinality is one more. Zeros
at either end of a history are removed, and the rest is its length. Clients send the same ids: the workflow of such data
passes them through and maps ids out of range to 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from rankline.training.data.loader.columns import arrow_schema, from_arrow
from rankline.training.data.spec_files import DataSet, Rows
from rankline.workflows.core.errors import DataError, SpecError
from rankline.workflows.core.progress import SILENT, Progress
from rankline.workflows.nvt.compat import nvt, ops, quiet_nvtabular
from rankline.workflows.nvt.io.workflow import save_workflow
from rankline.workflows.nvt.operators import KnownIds, NullToEmptyList, SameLengths
from rankline.workflows.preprocess.fit import fit
from rankline.workflows.preprocess.partitions import FilesWriter, file_name, nvtabular_dataset
from rankline.workflows.preprocess.prepared_data import HELDOUT, KIND, PreparedData, write_spec
from rankline.workflows.preprocess.raw import fingerprint_of
from rankline.workflows.schema.feature_spec import (
    CATEGORICAL,
    CONTINUOUS,
    HISTORY,
    LABEL,
    NEGATIVES,
    SEQUENCE_CHANNELS,
    TARGET,
    USERS,
    FeatureSpec,
    Source,
    SpecMetadata,
)
from rankline.workflows.schema.label_stats import Labels, expected_labels, merge_stats, misfits
from rankline.workflows.schema.ragged import Ragged, arrow_lists, offsets_of
from rankline.workflows.schema.spec_file import FILE_NAME, Feature
from rankline.workflows.schema.targets import Head
from rankline.workflows.storage.artifacts import publish, refuse_foreign

from merlin.schema import Tags  # isort: skip
from nvtabular.ops.categorify import _emb_sz_rule  # isort: skip

TRAIN, VALID, TEST = "train", "valid", "test"

_CHANNELS = (LABEL, CATEGORICAL, CONTINUOUS, *SEQUENCE_CHANNELS)
_FILE_ROWS, _GROUP_ROWS = 1 << 21, 1 << 15
_EXAMPLE_ROWS = 100


def import_data(path: Path, output: Path, *, progress: Progress = SILENT) -> PreparedData:
    """Validate and trim external data, and publish it as prepared data."""
    refuse_foreign(output, KIND)
    if path.is_dir() and not (path / FILE_NAME).is_file():
        raise SpecError(
            f"{path} has no {FILE_NAME}. Write one that describes the files, or prepare raw files with `rankline "
            "prepare`."
        )
    data = DataSet.read(path)
    mappings = mappings_of(data)
    writer = _Writer(data, mappings, progress)
    details: dict[str, Any] = {"dataset": "imported", "source": str(path), "config": {}, "dropped": {}, "noticed": {}}
    details["channels"] = {name: ours for name in data.spec.channels if (ours := _channel_of(data, name)) != name}
    made_from = {"files": fingerprint_of([data.path, *data.files])}
    with publish(output, KIND, made_from=made_from, details=details) as directory:
        sources = {split: writer.write(split, directory) for split in mappings}
        details["rows"] = {split: source.num_rows for split, source in sources.items()}
        spec = replace(writer.spec, sources=sources)
        write_spec(spec, directory)
        _save_workflow(spec, directory)
    return PreparedData.published(output)


def mappings_of(data: DataSet) -> dict[str, str]:
    """Map Rankline's split names to the mapping names in the data."""
    names = data.spec.mappings.keys()
    if TRAIN not in names or not names & {VALID, TEST}:
        raise SpecError(f"{data.path}: source_spec has {sorted(names)}, expected {TRAIN} and either {TEST} or {VALID}.")
    return {TRAIN: TRAIN, VALID: VALID if VALID in names else TEST}


def spec_of(data: DataSet) -> FeatureSpec:
    file = data.spec
    try:
        channels: dict[str, tuple[str, ...]] = {}
        for theirs, names in file.channels.items():
            ours = _channel_of(data, theirs)
            channels[ours] = (*channels.get(ours, ()), *names)
        made = {name: _feature(file[name], channel) for channel in _CHANNELS for name in channels.get(channel, ())}
        spec = FeatureSpec(
            features=tuple(made[feature.name] for feature in file.features if feature.name in made),
            channels=channels,
            metadata=SpecMetadata.from_entries({"heads": file.metadata.get("heads")}),
        )
    except SpecError as error:
        raise SpecError(f"{data.path}: {error}") from None
    scoring = spec.for_scoring
    metadata = replace(
        spec.metadata,
        dataset="imported",
        inputs=tuple(feature.name for feature in (*scoring.categorical, *scoring.continuous)),
        candidates=spec.channels.get(TARGET, ()),
        group_by=next(iter(spec.channels.get(USERS, ())), None),
    )
    return replace(spec, metadata=metadata)


def _channel_of(data: DataSet, name: str) -> str:
    """Return the Rankline channel that corresponds to a channel in the data, based on its name or else its content."""
    if name in _CHANNELS:
        return name
    file = data.spec
    known = [channel for channel in file.channels if channel in SEQUENCE_CHANNELS]
    are_ids = {file[feature].cardinality is not None for feature in file.channels[name]}
    if known or len(are_ids) != 1:
        reason = f"cannot be combined with {known}" if known else "contains both ids and numbers"
        raise SpecError(
            f"channel_spec has an unknown channel {name!r}, which {reason}. Available: {', '.join(_CHANNELS)}."
        )
    if are_ids == {True}:
        return CATEGORICAL
    return LABEL if LABEL in name.lower() else CONTINUOUS


def _feature(feature: Feature, channel: str) -> Feature:
    entry = f"feature_spec.{feature.name}"
    if channel in (LABEL, CONTINUOUS):
        if feature.is_list:
            raise SpecError(f"{entry} has dimensions, but channel {channel!r} accepts only single numbers.")
        if channel == LABEL and feature.null_fill is not None:
            raise SpecError(
                f"{entry} has null_fill, but a missing label must not be filled in. Remove null_fill; with several "
                "labels, a row may lack some."
            )
        return Feature(name=feature.name, dtype="float32")
    if feature.cardinality is None:
        raise SpecError(f"{entry} is missing 'cardinality', which ids in channel {channel!r} require.")
    if np.dtype(feature.dtype).kind not in "iu":
        raise SpecError(f"{entry}.dtype is {feature.dtype}, but channel {channel!r} requires integer ids.")
    num_ids = feature.cardinality + 1
    dimension = feature.embedding_dim or _emb_sz_rule(num_ids)[1]
    return replace(feature, dtype="int64", cardinality=num_ids, embedding_dim=dimension, null_fill=None)


class _Writer:
    def __init__(self, data: DataSet, mappings: dict[str, str], progress: Progress) -> None:
        self.spec = spec_of(data)
        self._data, self._mappings, self._progress = data, mappings, progress
        self._done_bytes, self._done_rows = 0.0, 0
        self._total_bytes = data.num_bytes(list(mappings.values()))
        self._histories, self._negatives = (self.spec.channels.get(channel, ()) for channel in (HISTORY, NEGATIVES))

    def write(self, split: str, directory: Path) -> Source:
        """Write a split. For the validation split, also write the raw inputs and labels as held-out rows."""
        labels = [label.name for label in self.spec.labels]
        schema, columns = arrow_schema(self.spec.features), [*self.spec.metadata.inputs, *labels]
        writer = FilesWriter(directory / split, rows_per_file=_FILE_ROWS, rows_per_group=_GROUP_ROWS)
        heldout = FilesWriter(directory / HELDOUT, rows_per_file=_FILE_ROWS, rows_per_group=_GROUP_ROWS)
        seen = [Labels() for _ in self.spec.heads]
        num_rows = 0
        for rows in self._data.rows(self._mappings[split], labels):
            table = self._table(rows, schema)
            seen = merge_stats([seen, [self._labels_of(head, rows) for head in self.spec.heads]])
            num_rows += len(table)
            writer.write(table)
            if split == VALID:
                heldout.write(table.select(columns))
            self._done_bytes += rows.num_bytes
            self._done_rows += len(table)
            self._progress.update(self._done_bytes, self._total_bytes, f"{self._done_rows:,} rows")
        heldout.close()
        self._take_over_labels(seen, split)
        files = tuple(path.relative_to(directory).as_posix() for path in writer.close())
        return Source(files=files, num_rows=num_rows)

    def _table(self, rows: Rows, schema: pa.Schema) -> pa.Table:
        lists = trimmed(rows, self._histories, self._negatives)
        columns = []
        for field in schema:
            if pa.types.is_list(field.type):
                columns.append(lists.get(field.name, rows.table[field.name]).cast(field.type))
            else:
                values = rows.table[field.name].to_numpy()
                columns.append(pa.array(values.astype(field.type.to_pandas_dtype(), copy=False)))
        return pa.table(columns, schema=schema)

    def _labels_of(self, head: Head, rows: Rows) -> Labels:
        labels = rows.table[head.column].to_numpy()
        may_lack = len(self.spec.heads) > 1
        if (wrong := misfits(head, labels) & ~(may_lack & np.isnan(labels))).any():
            row = int(np.flatnonzero(wrong)[0])
            path, start = rows.origins[head.column]
            raise DataError(
                f"{path}: row {start + row + 1}: {head.column!r} is {labels[row]}, expected a label of "
                f"{expected_labels(head)}."
            )
        return Labels.of(head, labels, may_lack=may_lack)

    def _take_over_labels(self, seen: list[Labels], split: str) -> None:
        """Check that the split's labels are usable, and store statistics of the training labels in the heads."""
        heads = self.spec.heads
        for head, labels in zip(heads, seen, strict=True):
            try:
                labels.check_split(head, split)
            except DataError as error:
                raise DataError(f"{self._data.path}: source_spec.{self._mappings[split]}: {error}") from None
        if split == TRAIN and self.spec.metadata.heads:
            fitted = tuple(labels.fitted(head) for head, labels in zip(heads, seen, strict=True))
            self.spec = replace(self.spec, metadata=replace(self.spec.metadata, heads=fitted))


def _save_workflow(spec: FeatureSpec, directory: Path) -> None:
    """Save a workflow that passes ids sent by clients through unchanged.

    It keeps the latest items of a history that is too long, and makes all features of a history equally long.
    """
    histories = spec.channel(HISTORY)
    with quiet_nvtabular():
        nodes = [_ids(feature) for feature in spec.for_scoring.categorical if feature not in histories]
        if histories:
            nodes.append(reduce(add, [_history(feature) for feature in histories]) >> SameLengths(histories[0].name))
        nodes += [[feature.name] >> ops.AddTags([Tags.CONTINUOUS]) for feature in spec.continuous]
        workflow = nvt.Workflow(reduce(add, nodes))
        with pq.ParquetFile(directory / HELDOUT / file_name(0)) as heldout:
            rows = next(heldout.iter_batches(_EXAMPLE_ROWS, columns=list(spec.metadata.inputs)))
        example = nvtabular_dataset(pa.Table.from_batches([rows]))
        fit(workflow, lambda _: example, example, lambda _: None)
        save_workflow(workflow, directory / "workflow")


def _ids(feature: Feature) -> Any:
    column: Any = [feature.name] >> NullToEmptyList() if feature.is_list else [feature.name]
    return column >> KnownIds({feature.name: feature.embedding_shape[0]})


def _history(feature: Feature) -> Any:
    assert feature.max_length is not None  # lists have one
    return _ids(feature) >> ops.ListSlice(-feature.max_length)


def trimmed(rows: Rows, histories: Sequence[str], negatives: Sequence[str]) -> dict[str, pa.ListArray]:
    """Strip zero padding from both ends of each history and list of negatives. Return the stripped columns by name.

    Args:
        histories: list columns with the features of one history, which correspond item by item.
        negatives: list columns of items that were not chosen, as many as the history has or none.
    """
    made: dict[str, _Trimmed] = {}
    for names in (histories, negatives):
        for name in names:
            made[name] = _Trimmed.of(rows, name)
            made[name].check_like(made[names[0]])
    if histories and negatives:
        made[negatives[0]].check_like(made[histories[0]], or_empty=True)
    return {name: column.lists for name, column in made.items()}


@dataclass(frozen=True, kw_only=True)
class _Trimmed:
    """A trimmed column: row i had `before[i]` values and keeps `lengths[i]`, starting at index `first[i]`."""

    name: str
    origin: tuple[Path, int]
    values: npt.NDArray[np.int64]
    before: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]

    @classmethod
    def of(cls, rows: Rows, name: str) -> "_Trimmed":
        column = from_arrow(rows.table[name])
        assert isinstance(column, Ragged)
        offsets = column.offsets.astype(np.int64)
        places = np.flatnonzero(column.values)
        bounds = np.searchsorted(places, offsets)  # row i has places[bounds[i] : bounds[i + 1]]
        lengths = np.diff(bounds)
        first, last = np.zeros_like(lengths), np.full_like(lengths, -1)
        full = lengths > 0
        first[full] = places[bounds[:-1][full]] - offsets[:-1][full]
        last[full] = places[bounds[1:][full] - 1] - offsets[:-1][full]
        made = cls(
            name=name,
            origin=rows.origins[name],
            values=column.values[places].astype(np.int64, copy=False),
            before=np.diff(offsets),
            first=first,
            lengths=lengths,
        )
        made._refuse(last - first + 1 != lengths, lambda _: "has a 0 between ids, but 0 means padding")
        return made

    @property
    def lists(self) -> pa.ListArray:
        return arrow_lists(self.values, offsets_of(self.lengths))

    def check_like(self, other: "_Trimmed", *, or_empty: bool = False) -> None:
        """Raise DataError if any row differs from `other` in the number of ids or in the side of the padding."""
        differ = self.lengths != other.lengths
        if or_empty:
            differ &= self.lengths > 0
        self._refuse(
            differ,
            lambda row: (
                f"has {self.lengths[row]} ids but {other.name!r} has {other.lengths[row]}, expected the same number"
            ),
        )
        shifted = (self.before == other.before) & (self.first != other.first) & (self.lengths > 0)
        self._refuse(shifted, lambda _: f"and {other.name!r} are padded at different ends")

    def _refuse(self, wrong: npt.NDArray[np.bool_], reason: Callable[[int], str]) -> None:
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            path, start = self.origin
            raise DataError(f"{path}: row {start + row + 1}: {self.name!r} {reason(row)}. Fix or remove the row.")
