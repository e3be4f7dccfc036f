"""The `prepare` stage turns raw rows into a fitted NVTabular workflow, encoded Parquet splits and a feature spec.

This module has the steps shared by all kinds of data: create the workflow, fit it to the training rows, save it, and
publish the encoded rows. The encodings (`rankline.workflows.preprocess`) select, encode and write the rows.
"""

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.machine import freed_memory_kept
from rankline.workflows.core.progress import SILENT, Progress
from rankline.workflows.nvt.compat import nvt, quiet_nvtabular
from rankline.workflows.nvt.io.workflow import check_loadable, keep_vocabularies_in, save_workflow
from rankline.workflows.nvt.operators.hashing import with_stable_hashes
from rankline.workflows.preprocess import EncodingConfig, RowsConfig, SequenceConfig
from rankline.workflows.preprocess.config import PrepareConfig
from rankline.workflows.preprocess.dataset import Dataset
from rankline.workflows.preprocess.executor import LOCAL, STAGES, Pool, PrepareContext
from rankline.workflows.preprocess.fit import fit
from rankline.workflows.preprocess.prepared_data import CATALOG, KIND, PreparedData, write_spec
from rankline.workflows.preprocess.raw import RawData
from rankline.workflows.preprocess.sequences import HistoryEncoding
from rankline.workflows.preprocess.tabular import TabularPreprocessor
from rankline.workflows.storage.artifacts import publish
from rankline.workflows.storage.atomic import staging_for

_ENCODINGS: dict[type, Any] = {RowsConfig: TabularPreprocessor, SequenceConfig: HistoryEncoding}


def prepare(
    dataset: Dataset,
    raw: RawData,
    output: Path,
    config: PrepareConfig | None = None,
    encoding: EncodingConfig | None = None,
    *,
    source: str,
    best_auc: float | None = None,
    partition_rows: int = 1 << 18,
    progress: Progress = SILENT,
    pool: Pool = LOCAL,
) -> PreparedData:
    """Split raw rows, fit the workflow, encode the splits and publish the prepared data.

    Needs disk space for the compressed raw rows in addition to the prepared data. The result is identical to the bit
    for every `pool`, whose processes must see `output` and the raw files under the same paths. `source` says where the
    rows come from, for readers and for MLflow. Larger `partition_rows` take more memory.

    Raises:
        DataError: a column is missing, a row cannot be read, no rows are left for training or validation, a label does
            not fit its task, or a split does not allow training or evaluation.
        ConfigError: an option is out of range or not applicable to the dataset, its graph returns no workflow, or an
            operator's class is unknown.
        SpecError: the graph does not output the columns that the encoding needs.
    """
    config, choices = config or PrepareConfig(), encoding or dataset.encoding()
    if type(choices) is not dataset.encoding:
        raise ConfigError(
            f"{dataset.name} expects {dataset.encoding.__name__}, got {type(choices).__name__}, because its "
            f"{'rows are encoded as histories' if dataset.sequence else 'rows are not encoded as histories'}."
        )
    rows = _ENCODINGS[type(choices)](dataset, raw, choices)
    details: dict[str, Any] = {
        "dataset": dataset.name,
        "source": source,
        "config": asdict(config) | asdict(choices),
        "choices": dict(dataset.choices),
        "noticed": dict(raw.noticed),
    }

    def report(stage: str, share: float) -> None:
        number = STAGES.index(stage)
        progress.update(number + share, len(STAGES), f"{share:.0%} of {len(raw.rows):,} rows {stage}")

    with publish(output, KIND, made_from={dataset.name: raw.fingerprint}, details=details) as directory:
        # A lost worker may still write to the scratch directory, but must never write to an artifact.
        scratch_name = output.resolve().with_name(f"{output.name}.scratch")
        with staging_for(scratch_name) as scratch, quiet_nvtabular(), freed_memory_kept():
            job = PrepareContext(
                directory=directory, scratch=scratch, partition_rows=partition_rows, pool=pool, report=report
            )
            workflow = with_stable_hashes(_graph(dataset, raw, config, choices))
            check_loadable(workflow)
            keep_vocabularies_in(workflow, scratch)
            training_rows = rows.write_training_rows(workflow, job)
            details |= {"rows": dict(rows.num_rows), "dropped": {**raw.dropped, **rows.dropped}}
            fit(workflow, training_rows.open, rows.example(), partial(report, "fitted"), pool)
            save_workflow(workflow, directory / "workflow")
            spec = rows.write_splits(workflow, job)
        if raw.catalog is not None:
            pq.write_table(raw.catalog, directory / CATALOG)
        metadata = replace(
            spec.metadata,
            dataset=dataset.name,
            inputs=dataset.inputs,
            group_by=dataset.group_by,
            item=dataset.item,
            best_auc=best_auc,
        )
        write_spec(replace(spec, metadata=metadata), directory)
    return PreparedData.published(output)


def _graph(dataset: Dataset, raw: RawData, config: PrepareConfig, choices: EncodingConfig) -> nvt.Workflow:
    workflow = dataset.graph(raw, config, choices)
    if not isinstance(workflow, nvt.Workflow):
        raise ConfigError(
            f"`graph` of dataset {dataset.name} returns {type(workflow).__name__}, expected nvt.Workflow. Return "
            "nvt.Workflow(COLUMNS)."
        )
    return workflow
