"""What `prepare` asks of an encoding, and what it hands to it."""

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
    """Where an encoding writes, and who does the work.

    Attributes:
        directory: of the artifact; nothing but whole files.
        scratch: for what is not whole yet, or only `prepare` reads.
        partition_rows: rows that NVTabular has as one DataFrame; more take more memory.
        pool: does the work.
        report: told one of `STAGES` and the share of it that is done.
    """

    directory: Path
    scratch: Path
    partition_rows: int
    pool: Pool
    report: Callable[[str, float], None]


class Encoding(Protocol):
    """How the raw rows of one kind of data become encoded splits; made of dataset, raw data and its own config.

    Attributes:
        num_rows: split → rows; known once the training rows are written.
        dropped: reason → raw rows that are left out, beside those that the reader left out; likewise.
    """

    num_rows: Mapping[str, int]
    dropped: Mapping[str, int]

    def write_training_rows(self, workflow: nvt.Workflow, job: Job) -> RawSplit:
        """Write the raw rows that a workflow is fitted to.

        Raises:
            DataError: a row cannot be read, or nothing is left to train or to validate on.
            ConfigError: an option is of no use for the data.
        """

    def example(self) -> nvt.Dataset:
        """Some of the raw rows, which show NVTabular the dtypes of what the workflow makes."""

    def write_splits(self, workflow: nvt.Workflow, job: Job) -> FeatureSpec:
        """Write the splits and the held-out rows by the fitted workflow, which is saved in the artifact.

        Returns:
            The spec; its metadata has what only this encoding knows.

        Raises:
            DataError: a label does not fit its task, or a split shows nothing of it.
            SpecError: the workflow does not make the columns that the encoding needs.
        """
