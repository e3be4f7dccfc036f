"""Prepared data on disk, light to import: reading it needs no NVTabular.

A prepared-data artifact holds

    train/, valid/                     encoded rows, several Parquet or TFRecord files
    workflow/                          the saved NVTabular workflow
    feature_spec.yaml                  the contract
    heldout/                           raw inputs and encoded label of the validation rows, in the order of valid/
    catalog.parquet                    one row per item, for people to read; where rows name items
    histories.parquet                  raw user and all items of the user, the latest last; where rows have histories
    metadata.json                      cardinalities, as NVIDIA's SIM has them; where rows have histories
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.dataset import dataset as open_files

from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.core.formatting import listed
from rankline.workflows.schema.feature_spec import FILE_NAME, PARQUET, TARGET, TARGET_SUFFIX, USERS, FeatureSpec
from rankline.workflows.storage.artifacts import Manifest, load_manifest, remedy

if TYPE_CHECKING:
    from rankline.workflows.nvt.compat import nvt
    from rankline.workflows.preprocess.dataset import Dataset

KIND = "prepared-data"
CATALOG, HELDOUT, HISTORIES = "catalog.parquet", "heldout", "histories.parquet"
CARDINALITIES = "metadata.json"


def cardinalities_of(spec: FeatureSpec) -> dict[str, Any]:
    """What `metadata.json` holds: the largest id of each user feature and item feature, id 0 being padding."""
    return {
        "cardinalities": [
            {"name": feature.name.removesuffix(TARGET_SUFFIX), "value": feature.embedding_shape[0] - 1}
            for feature in (*spec.channel(USERS), *spec.channel(TARGET))
        ]
    }


def write_spec(spec: FeatureSpec, directory: Path) -> None:
    """Write `feature_spec.yaml`, and `metadata.json` where rows have histories."""
    (directory / FILE_NAME).write_text(spec.to_yaml(), encoding="utf-8")
    if spec.is_sequential:
        cardinalities = json.dumps(cardinalities_of(spec), indent=2)
        (directory / CARDINALITIES).write_text(cardinalities + "\n", encoding="utf-8")


@dataclass(frozen=True, kw_only=True)
class PreparedData:
    path: Path
    spec: FeatureSpec = field(repr=False)
    manifest: Manifest = field(repr=False)

    @classmethod
    def load(cls, path: Path, dataset: "Dataset | None" = None, *, spec_name: str = FILE_NAME) -> "PreparedData":
        """Open an artifact and check its files against the manifest.

        Raises:
            ArtifactError: missing or damaged, of raw rows, or made before the recipe was changed.
        """
        manifest = load_manifest(path, KIND)
        made_by = manifest.details.get("choices")  # earlier ones do not say
        if dataset is not None and made_by is not None and made_by != dataset.choices:
            changed = [
                key for key in sorted({*dataset.choices, *made_by}) if made_by.get(key) != dataset.choices.get(key)
            ]
            raise ArtifactError(
                f"{path} was prepared before the recipe changed {listed(changed, 5)}, or by another recipe of that "
                f"name: {remedy(KIND, path)}."
            )
        spec = FeatureSpec.read(path / spec_name)
        if spec.metadata.online:
            raise ArtifactError(
                f"{path} holds raw rows, which an earlier version encoded in training. This version encodes rows "
                f"when it prepares them: {remedy(KIND, path)}."
            )
        return cls(path=path, spec=spec, manifest=manifest)

    @classmethod
    def published(cls, path: Path) -> "PreparedData":
        """Open an artifact that this process has just published: its files were read for the manifest a moment ago."""
        return cls(path=path, spec=FeatureSpec.read(path), manifest=Manifest.read(path))

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.spec.metadata.inputs

    @property
    def group_by(self) -> str | None:
        return self.spec.metadata.group_by

    @property
    def item(self) -> str | None:
        return self.spec.metadata.item

    @property
    def candidates(self) -> tuple[str, ...]:
        """Raw columns of a serving request that may hold several values per row, which share the rest of the row."""
        return self.spec.metadata.candidates

    def workflow(self) -> "nvt.Workflow":
        """The fitted NVTabular workflow, label included; imports NVTabular, which takes seconds."""
        from rankline.workflows.nvt.io.workflow import load_workflow

        return load_workflow(self.path / "workflow")

    def heldout(self) -> pa.Table:
        return _read_table(self.path / HELDOUT)

    def encoded(self, max_rows: int) -> pa.Table | None:
        """Return the first validation rows as models take them; None if there are none, or none in Parquet."""
        if "valid" not in self.spec.sources or self.spec.source("valid").type != PARQUET:
            return None
        return open_files([self.path / name for name in self.spec.source("valid").files]).head(max_rows)

    def catalog(self) -> pa.Table | None:
        """One row per item; None where the rows name no items."""
        return _read_table(self.path / CATALOG) if CATALOG in self.manifest.files else None

    def catalog_columns(self) -> list[str]:
        """Names of the columns of the catalogue; none where there is none. Reads no rows."""
        return list(pq.read_schema(self.path / CATALOG).names) if CATALOG in self.manifest.files else []

    def histories(self) -> pa.Table | None:
        """Each raw user with the list of all items that the user has; where the rows have histories, the latest last.

        None where the rows name no items, or are more than memory holds.
        """
        return _read_table(self.path / HISTORIES) if HISTORIES in self.manifest.files else None


def _read_table(path: Path) -> pa.Table:
    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise ArtifactError(f"{path} cannot be read ({error}). Prepare the data again.") from None
