"""Prepared data on disk, light to import: reading it needs no NVTabular.

A prepared-data artifact holds

    train/, valid/                     encoded rows, several Parquet or TFRecord files
    workflow/                          the saved NVTabular workflow
    feature_spec.yaml                  the contract
    heldout.parquet                    raw inputs and encoded label of the validation rows, in the order of valid/
    catalog.parquet                    one row per item, for people to read
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from workflows.artifacts import Manifest, load_manifest
from workflows.errors import ArtifactError
from workflows.feature_spec import FeatureSpec

if TYPE_CHECKING:
    from workflows.upstream import nvt

KIND = "prepared-data"


@dataclass(frozen=True, kw_only=True)
class PreparedData:
    """A prepared-data artifact on disk."""

    path: Path
    spec: FeatureSpec
    manifest: Manifest

    @classmethod
    def load(cls, path: Path) -> "PreparedData":
        """Open an artifact and check its files against the manifest.

        Raises:
            ArtifactError: missing or damaged.
        """
        manifest = load_manifest(path, KIND)
        return cls(path=path, spec=FeatureSpec.read(path), manifest=manifest)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Raw columns of a serving request."""
        return tuple(self.spec.metadata["inputs"])

    @property
    def group_by(self) -> str:
        """Input column whose groups (users) GAUC averages over."""
        return str(self.spec.metadata["group_by"])

    @property
    def item(self) -> str:
        """Input column that the catalogue lists."""
        return str(self.spec.metadata["item"])

    def workflow(self) -> "nvt.Workflow":
        """The fitted NVTabular workflow, label included; imports NVTabular, which takes seconds."""
        from workflows.workflow_store import load_workflow

        return load_workflow(self.path / "workflow")

    def heldout(self) -> pa.Table:
        """Raw inputs and encoded label of the validation rows."""
        return _read_table(self.path / "heldout.parquet")

    def catalog(self) -> pa.Table:
        """One row per item."""
        return _read_table(self.path / "catalog.parquet")


def _read_table(path: Path) -> pa.Table:
    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise ArtifactError(f"{path} cannot be read ({error}). Prepare the data again.") from None
