"""prepare: raw rows → fitted NVTabular workflow, encoded Parquet splits and the feature spec.

Rows that come as a stream may be more than memory holds. They are split, fitted to, encoded and written part by part;
beside the largest parts only the vocabularies are in memory at a time. Reading a piece, the statistics of a part and
encoding a file are tasks, which this process does one by one or a pool of workers side by side.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from workflows.artifacts import publish
from workflows.datasets import Dataset
from workflows.datasets.raw import Piece, RawData, StreamedRows
from workflows.errors import ConfigError, DataError
from workflows.feature_spec import CATEGORICAL, CONTINUOUS, LABEL, FeatureSpec, Source
from workflows.fitting import fit
from workflows.operators import HashShare, arrow_columns
from workflows.parts import (
    NUM_FILES,
    PartSlice,
    PartWriter,
    RawSplit,
    dtype_of,
    feature_of,
    frame_of_part,
    layout_of_split,
    part_name,
)
from workflows.pool import HERE, Pool, Tell
from workflows.prepare_config import PrepareConfig
from workflows.prepared import CATALOG, HELDOUT, KIND, ONLINE, PreparedData, write_spec
from workflows.progress import SILENT, Progress
from workflows.splits import split_batches, split_rows
from workflows.upstream import nvt, quiet_nvtabular
from workflows.workflow_store import keep_vocabularies_in, load_workflow, save_workflow

from merlin.dag import Graph  # isort: skip

_PARTS_PER_FILE = 16
_GROUPS_PER_PART = 2
_STAGES = ("read", "fitted", "encoded")


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
    pool: Pool = HERE,
) -> PreparedData:
    """Split, fit, transform and publish.

    Needs room on disk for the raw rows as Parquet beside the prepared data. Whoever does the work, the data are the
    same to the bit.

    Args:
        dataset: which dataset the rows are of.
        raw: what its reader returned.
        output: directory of the artifact, replaced when it is whole.
        config: split and encoding.
        source: a few words on where the rows come from, kept for people and for MLflow.
        best_auc: best AUC that any model can reach, where it is known.
        part_rows: rows that NVTabular has as one DataFrame; more take more memory.
        progress: told the stages that are done, out of three.
        pool: does the work; where it is of other processes, they see `output` and the raw files under the same paths.

    Raises:
        DataError: a row is no row, or a split holds only one class.
        ConfigError: an option is out of range, or the dataset has no use for it.
    """
    assert dataset.graph is not None  # others are for `prepare_sequences`
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
        with _scratch_beside(directory) as scratch, quiet_nvtabular():
            workflow = dataset.graph(raw, config)
            _check_hash_share(workflow, dataset, config)
            keep_vocabularies_in(workflow, scratch)
            reading = partial(report, "read")
            splits = _write_raw(dataset, raw, config, scratch, arrow_columns(workflow), part_rows, reading, pool)
            details["rows"] = {split.name: split.num_rows for split in splits}
            fit(workflow, splits[0].open, splits[0].example(), partial(report, "fitted"), pool)
            save_workflow(workflow, directory / "workflow")
            encoding = _Encoding(
                directory=directory,
                scratch=scratch,
                inputs=dataset.inputs,
                label=dataset.label,
                is_online=config.encode == "online",
                schema=raw.rows.schema,
            )
            sources, longest = _encode(encoding, splits, part_rows, partial(report, "encoded"), pool)
        if raw.catalog is not None:
            pq.write_table(raw.catalog, directory / CATALOG)
        present = {name: value for name, value in metadata.items() if value not in (None, False)}
        write_spec(_spec(workflow, dataset, sources, longest, present), directory)
    return PreparedData.published(output)


@contextmanager
def _scratch_beside(directory: Path) -> Iterator[Path]:
    """A directory for what is not whole. A worker that is lost may still write there, but never into an artifact."""
    with TemporaryDirectory(dir=directory.parent, prefix=".fit.", ignore_cleanup_errors=True) as scratch:
        yield Path(scratch)


def _check_hash_share(workflow: nvt.Workflow, dataset: Dataset, config: PrepareConfig) -> None:
    if config.hash_share and not Graph.get_nodes_by_op_type([workflow.output_node], HashShare):
        raise ConfigError(
            f"hash_share is {config.hash_share}, but {dataset.name} keeps its vocabularies. Leave it at 0; "
            "unseen ids are hashed by hash_buckets."
        )


def _write_raw(
    dataset: Dataset,
    raw: RawData,
    config: PrepareConfig,
    directory: Path,
    arrow: list[str],
    part_rows: int,
    tell: Tell,
    pool: Pool,
) -> tuple[RawSplit, ...]:
    """Split the raw rows and write the splits, the one to fit to first."""
    written: list[_Written]
    if isinstance(raw.rows, StreamedRows) and raw.rows.pieces:
        first_rows = accumulate((piece.num_rows for piece in raw.rows.pieces), initial=0)
        tasks = [
            _PieceTask(
                piece=piece,
                first_row=first_row,
                periods=raw.rows.periods,
                config=config,
                directory=directory / "pieces",
                arrow=tuple(arrow),
                part_rows=part_rows,
            )
            for piece, first_row in zip(raw.rows.pieces, first_rows, strict=False)  # the last is the end
        ]
        (directory / "pieces").mkdir()
        written = pool.map(_write_piece, tasks, tell)
    else:
        batches = split_rows(raw.rows, config, dataset.time)
        written = [_write_batches(batches, directory, arrow, part_rows, len(raw.rows), tell)]
    counts = {name: sum(piece[name].num_rows for piece in written) for name in NUM_FILES}
    if not all(counts.values()):
        raise ConfigError(f"the split has {counts} rows, expected rows in both parts. Choose another valid_share.")
    return tuple(
        RawSplit(
            name=name,
            parts=tuple(path for piece in written for path in piece[name].paths),
            num_rows=counts[name],
            schema=raw.rows.schema,
        )
        for name in counts
    )


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """Raw rows of a split that were written."""

    paths: tuple[Path, ...]
    num_rows: int


_Written = Mapping[str, _Parts]
"""By split."""


@dataclass(frozen=True, kw_only=True)
class _PieceTask:
    """Read a piece of a stream, split it and write it as parts."""

    piece: Piece
    first_row: int
    periods: tuple[int, ...]
    config: PrepareConfig
    directory: Path
    arrow: tuple[str, ...]
    part_rows: int


def _write_piece(task: _PieceTask, tell: Tell) -> _Written:
    batches = split_batches(task.piece.batches(), task.periods, task.config, task.first_row)
    directory = Path(mkdtemp(dir=task.directory))  # of this attempt alone: there may be another one
    return _write_batches(batches, directory, task.arrow, task.part_rows, task.piece.num_rows, tell)


def _write_batches(
    batches: Iterator[tuple[str, pa.Table]],
    directory: Path,
    arrow: Sequence[str],
    part_rows: int,
    num_rows: int,
    tell: Tell,
) -> _Written:
    counts = dict.fromkeys(NUM_FILES, 0)
    writers = {name: PartWriter(directory / name, rows_per_file=part_rows, dictionaries=arrow) for name in counts}
    for name, table in batches:
        writers[name].write(table)
        counts[name] += len(table)
        tell(sum(counts.values()) / num_rows)
    return {name: _Parts(paths=tuple(writers[name].close()), num_rows=counts[name]) for name in counts}


@dataclass(frozen=True, kw_only=True)
class _Encoding:
    """How raw rows become files of the artifact.

    Attributes:
        directory: of the artifact, which has the fitted workflow.
        scratch: for what is not whole yet.
        inputs: raw columns of a request.
        label: raw and encoded.
        is_online: write raw rows as splits, which a loader encodes; the workflow tells labels and lengths of lists.
        schema: of the raw rows.
    """

    directory: Path
    scratch: Path
    inputs: tuple[str, ...]
    label: str
    is_online: bool
    schema: pa.Schema

    def encoder(self) -> "_Encoder":
        """The fitted workflow, as far as it is needed."""
        workflow = load_workflow(self.directory / "workflow")
        has_lists = any(column.is_list for column in workflow.output_schema.column_schemas.values())
        return _Encoder(workflow.remove_inputs(list(self.inputs)) if self.is_online and not has_lists else workflow)

    def raw(self, part: pa.Table, *columns: str) -> pa.Table:
        """Raw columns of a part, dictionaries as what they stand for."""
        return part.select(columns).cast(pa.schema([self.schema.field(name) for name in columns]))


class _Encoder:
    """Runs a fitted workflow over parts.

    Attributes:
        schema: of what comes out.
        longest: list column → length of its longest list so far.
    """

    def __init__(self, workflow: nvt.Workflow) -> None:
        self._workflow = workflow
        columns = workflow.output_schema.column_schemas
        types = {name: pa.from_numpy_dtype(dtype_of(column)) for name, column in columns.items()}
        self.schema = pa.schema(
            (name, pa.list_(kind) if columns[name].is_list else kind) for name, kind in types.items()
        )
        self.longest = {name: 1 for name, column in columns.items() if column.is_list}

    def encoded(self, part: pa.Table) -> pa.Table:
        """What becomes of raw rows."""
        frame = self._workflow.transform(frame_of_part(part.select(self._workflow.input_schema.column_names)))
        table = pa.Table.from_pandas(frame, schema=self.schema, preserve_index=False).replace_schema_metadata()
        for name in self.longest:
            self.longest[name] = max(self.longest[name], pc.max(pc.list_value_length(table[name])).as_py() or 0)
        return table


@dataclass(frozen=True, kw_only=True)
class _FileTask:
    """Encode some raw rows and write them as one file.

    Attributes:
        encoding: says how.
        slices: the rows.
        name: of the file, below the directory of the artifact.
        rows_per_group: rows of a row group.
        heldout: name of a file for their raw inputs and encoded labels, where they are wanted.
    """

    encoding: _Encoding
    slices: tuple[PartSlice, ...]
    name: str
    rows_per_group: int
    heldout: str | None

    @property
    def num_rows(self) -> int:
        """Of the file."""
        return sum(part.num_rows for part in self.slices)


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """Labels and longest lists of some rows."""

    classes: frozenset[Any]
    longest: Mapping[str, int]


def _encode(
    encoding: _Encoding, splits: Sequence[RawSplit], part_rows: int, tell: Tell, pool: Pool
) -> tuple[dict[str, Source], dict[str, int]]:
    """Write each split, and the held-out rows.

    Returns:
        Split → its files; list column → length of its longest list.

    Raises:
        DataError: a split holds only one class.
    """
    files = {split.name: _files_of(split, encoding, part_rows) for split in splits}
    # The large files first: at the end, when there are fewer files than workers, the small ones are left.
    tasks = sorted((task for of_split in files.values() for task in of_split), key=lambda task: -task.num_rows)
    seen_in = dict(zip((task.name for task in tasks), pool.map(_write_file, tasks, tell), strict=True))
    for name, of_split in files.items():
        _refuse_one_class(frozenset[Any]().union(*(seen_in[task.name].classes for task in of_split)), name)
    longest: dict[str, int] = {}
    for seen in seen_in.values():
        for name, length in seen.longest.items():
            longest[name] = max(longest.get(name, 1), length)
    sources = {
        split.name: Source(files=tuple(file.name for file in files[split.name]), num_rows=split.num_rows)
        for split in splits
    }
    return sources, longest


def _files_of(split: RawSplit, encoding: _Encoding, part_rows: int) -> tuple[_FileTask, ...]:
    rows_per_file, rows_per_group = layout_of_split(
        split.name, split.num_rows, part_rows * _PARTS_PER_FILE, max(1, part_rows // _GROUPS_PER_PART)
    )
    is_heldout = split.name == "valid"
    (encoding.directory / split.name).mkdir()
    if is_heldout:
        (encoding.directory / HELDOUT).mkdir()
    return tuple(
        _FileTask(
            encoding=encoding,
            slices=slices,
            name=f"{split.name}/{part_name(number)}",
            rows_per_group=rows_per_group,
            heldout=f"{HELDOUT}/{part_name(number)}" if is_heldout else None,
        )
        for number, slices in enumerate(split.slices(rows_per_file))
    )


def _write_file(task: _FileTask, tell: Tell) -> _Seen:
    encoding, encoder = task.encoding, task.encoding.encoder()
    label = encoder.schema.field(encoding.label)
    classes: set[Any] = set()
    with TemporaryDirectory(dir=encoding.scratch) as scratch:  # of this attempt alone: there may be another one
        writer_in = partial(PartWriter, rows_per_file=task.num_rows, rows_per_group=task.rows_per_group)
        writers = {name: writer_in(Path(scratch, name).parent) for name in (task.name, task.heldout) if name}
        for number, part in enumerate(task.slices, 1):
            raw = part.read()
            encoded = encoder.encoded(raw)
            classes.update(pc.unique(encoded[label.name]).to_pylist())
            writers[task.name].write(encoding.raw(raw, *encoding.inputs, label.name) if encoding.is_online else encoded)
            if task.heldout:
                inputs = encoding.raw(raw, *encoding.inputs)
                writers[task.heldout].write(inputs.append_column(label, encoded[label.name]))
            tell(number / len(task.slices))
        for name, writer in writers.items():
            (path,) = writer.close()
            path.replace(encoding.directory / name)
    return _Seen(classes=frozenset(classes), longest=encoder.longest)


def _refuse_one_class(labels: frozenset[Any], split: str) -> None:
    if len(labels) < 2:
        raise DataError(
            f"every label of the {split} rows is {next(iter(labels))}, and a model needs both classes. "
            "Give more rows, or another split or share."
        )


def _spec(
    workflow: nvt.Workflow,
    dataset: Dataset,
    sources: Mapping[str, Source],
    longest: Mapping[str, int],
    metadata: Mapping[str, Any],
) -> FeatureSpec:
    columns = workflow.output_schema.column_schemas
    features = tuple(feature_of(column, longest.get(name)) for name, column in columns.items())
    inputs = [feature for feature in features if feature.name != dataset.label]
    return FeatureSpec(
        features=features,
        channels={
            CATEGORICAL: tuple(f.name for f in inputs if f.cardinality is not None),
            CONTINUOUS: tuple(f.name for f in inputs if f.cardinality is None),
            LABEL: (dataset.label,),
        },
        sources=sources,
        metadata=metadata,
    )
