from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rankline.workflows.nvt.compat import nvt
from rankline.workflows.preprocess.executor import Pool
from rankline.workflows.preprocess.tabular.partitions import RawSplit
from rankline.workflows.schema.feature_spec import FeatureSpec

STAGES = ("read", "fitted", "encoded")


@dataclass(frozen=True, kw_only=True)
class Job:
    """Where an encoding writes, and how it runs its work.

    Attributes:
        directory: directory of the artifact; contains only complete files.
        scratch: directory for incomplete files and for files that only `prepare` reads.
        partition_rows: rows per DataFrame in NVTabular; larger values take more memory.
        pool: runs the tasks.
        report: called with one of `STAGES` and the share of the stage that is done.
    """

    directory: Path
    scratch: Path
    partition_rows: int
    pool: Pool
    report: Callable[[str, float], None]


class Encoding(Protocol):
    """Converts raw rows of one kind of data to encoded splits. Constructed from dataset, raw data and its own config.

    Attributes:
        num_rows: split → rows; known once the training rows are written.
        dropped: reason → raw rows that the encoding dropped, in addition to those that the reader dropped; known once
            the training rows are written.
    """

    num_rows: Mapping[str, int]
    dropped: Mapping[str, int]

    def write_training_rows(self, workflow: nvt.Workflow, job: Job) -> RawSplit:
        """Write the raw rows to which a workflow is fitted.

        Raises:
            DataError: a row cannot be read, or no rows are left for training or validation.
            ConfigError: an option is not applicable to the data.
        """

    def example(self) -> nvt.Dataset:
        """Return some raw rows, from which NVTabular infers the dtypes of the workflow's outputs."""

    def write_splits(self, workflow: nvt.Workflow, job: Job) -> FeatureSpec:
        """Encode and write the splits and the held-out rows with the fitted workflow, which is saved in the artifact.

        Returns:
            The spec, with the metadata that only this encoding knows.

        Raises:
            DataError: a label does not fit its task, or a split does not allow training or evaluation.
            SpecError: the workflow does not output the columns that the encoding needs.
        """
