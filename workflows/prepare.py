"""prepare: raw rows → fitted NVTabular workflow, encoded Parquet splits and the feature spec.

Rows that come as a stream may be more than memory holds. They are split, fitted to, encoded and written part by part;
beside the largest parts only the vocabularies are in memory at a time.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from workflows.artifacts import publish
from workflows.datasets import Dataset
from workflows.datasets.raw import RawData
from workflows.errors import ConfigError, DataError
from workflows.feature_spec import CATEGORICAL, CONTINUOUS, LABEL, FeatureSpec, Source
from workflows.fitting import fit
from workflows.operators import HashShare, arrow_columns
from workflows.parts import NUM_FILES, PartWriter, RawSplit, dtype_of, feature_of, frame_of_part
from workflows.prepare_config import PrepareConfig
from workflows.prepared import CATALOG, HELDOUT, KIND, ONLINE, PreparedData, write_spec
from workflows.progress import SILENT, Progress
from workflows.splits import split_rows
from workflows.upstream import nvt, quiet_nvtabular
from workflows.workflow_store import keep_vocabularies_in, save_workflow

from merlin.dag import Graph  # isort: skip

_PARTS_PER_FILE = 16
_GROUPS_PER_PART = 2
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
        write_spec(spec, directory)
    return PreparedData.load(output)


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
    report: Report,
) -> tuple[RawSplit, ...]:
    """Split the raw rows and write the splits, the one to fit to first."""
    counts = dict.fromkeys(NUM_FILES, 0)
    writers = {name: PartWriter(directory / name, rows_per_file=part_rows, dictionaries=arrow) for name in counts}
    for name, table in split_rows(raw.rows, config, dataset.time):
        writers[name].write(table)
        counts[name] += len(table)
        report("read", sum(counts.values()) / len(raw.rows))
    parts = {name: tuple(writer.close()) for name, writer in writers.items()}
    if not all(counts.values()):
        raise ConfigError(f"the split has {counts} rows, expected rows in both parts. Choose another valid_share.")
    return tuple(
        RawSplit(name=name, parts=parts[name], num_rows=counts[name], schema=raw.rows.schema) for name in counts
    )


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
        self._limits = {
            "max_file_rows": part_rows * _PARTS_PER_FILE,
            "max_group_rows": max(1, part_rows // _GROUPS_PER_PART),
        }
        types = {name: pa.from_numpy_dtype(dtype_of(column)) for name, column in columns.items()}
        self._schema = pa.schema(
            (name, pa.list_(kind) if columns[name].is_list else kind) for name, kind in types.items()
        )
        self.longest = {name: 1 for name, column in columns.items() if column.is_list}

    def write(self, splits: tuple[RawSplit, ...], report: Report) -> dict[str, Source]:
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
                writer = PartWriter.of_split(self._directory, split.name, split.num_rows, **self._limits)
                labels: set[Any] = set()
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

    def _encoded(self, raw: pa.Table) -> pa.Table:
        frame = self._workflow.transform(frame_of_part(raw.select(self._workflow.input_schema.column_names)))
        table = pa.Table.from_pandas(frame, schema=self._schema, preserve_index=False).replace_schema_metadata()
        for name in self.longest:
            self.longest[name] = max(self.longest[name], pc.max(pc.list_value_length(table[name])).as_py() or 0)
        return table


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
