"""Prepared data on disk. This module imports quickly, because reading prepared data does not require NVTabular.

A prepared-data artifact contains

    train/, valid/                     encoded rows, several Parquet or TFRecord files
    workflow/                          the saved NVTabular workflow
    feature_spec.yaml                  the data contract
    heldout/                           raw inputs and encoded labels of the validation rows, in the order of valid/
    catalog.parquet                    one row per item, for display; only if rows have item ids
    groups.parquet                     index of each group's first training row; only if rows are split by group
    histories.parquet                  raw user ids, each with all items of the user, in order for sequential data
    metadata.json                      cardinalities in the format of NVIDIA's SIM; only if rows have histories
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow.dataset import dataset as open_files

from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.core.formatting import listed
from rankline.workflows.schema.feature_spec import FILE_NAME, PARQUET, TARGET, TARGET_SUFFIX, USERS, FeatureSpec
from rankline.workflows.storage.artifacts import Manifest, load_manifest, remedy

if TYPE_CHECKING:
    from rankline.workflows.nvt.compat import nvt
    from rankline.workflows.preprocess.dataset import Dataset

KIND = "prepared-data"
CATALOG, GROUPS, HELDOUT, HISTORIES = "catalog.parquet", "groups.parquet", "heldout", "histories.parquet"
FIRST_ROW = "first_row"
CARDINALITIES = "metadata.json"


def cardinalities_of(spec: FeatureSpec) -> dict[str, Any]:
    """Return `metadata.json`, which lists the maximum id of each user and item feature. Id 0 is padding."""
    return {
        "cardinalities": [
            {"name": feature.name.removesuffix(TARGET_SUFFIX), "value": feature.embedding_shape[0] - 1}
            for feature in (*spec.channel(USERS), *spec.channel(TARGET))
        ]
    }


def write_spec(spec: FeatureSpec, directory: Path) -> None:
    """Write `feature_spec.yaml`, and `metadata.json` if rows have histories."""
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
            ArtifactError: the artifact is missing or damaged, contains raw rows, or predates a change of the recipe.
        """
        manifest = load_manifest(path, KIND)
        made_by = manifest.details.get("choices")  # absent in older artifacts
        if dataset is not None and made_by is not None and made_by != dataset.choices:
            changed = [
                key for key in sorted({*dataset.choices, *made_by}) if made_by.get(key) != dataset.choices.get(key)
            ]
            raise ArtifactError(
                f"{path} was prepared before the recipe changed {listed(changed, 5)}, or by another recipe of the "
                f"same name. To prepare it again, {remedy(KIND, path)}."
            )
        spec = FeatureSpec.read(path / spec_name)
        if spec.metadata.online:
            raise ArtifactError(
                f"{path} contains raw rows, which an earlier version encoded during training. This version "
                f"encodes rows when preparing them. To prepare the data again, {remedy(KIND, path)}."
            )
        return cls(path=path, spec=spec, manifest=manifest)

    @classmethod
    def published(cls, path: Path) -> "PreparedData":
        """Open an artifact that this process has just published, without hashing its files again."""
        return cls(path=path, spec=FeatureSpec.read(path), manifest=Manifest.read(path))

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.spec.metadata.inputs

    @property
    def split(self) -> str:
        """How training and validation rows were split, one of `rankline.workflows.preprocess.config.SPLITS`."""
        return str(self.manifest.details.get("config", {}).get("split", "random"))

    @property
    def group_by(self) -> str | None:
        return self.spec.metadata.group_by

    @property
    def item(self) -> str | None:
        return self.spec.metadata.item

    @property
    def candidates(self) -> tuple[str, ...]:
        """Raw request columns that may have several values per row. All candidates in a row share its other columns."""
        return self.spec.metadata.candidates

    def workflow(self) -> "nvt.Workflow":
        """Load the fitted NVTabular workflow, with its label columns. This imports NVTabular, which takes seconds."""
        from rankline.workflows.nvt.io.workflow import load_workflow

        return load_workflow(self.path / "workflow")

    def first_rows_of_groups(self) -> NDArray[np.int64] | None:
        """Return the index of the first training row of each group, or None if the rows are not split by group."""
        if self.split != "group":
            return None
        if GROUPS not in self.manifest.files:
            raise ArtifactError(
                f"{self.path} was prepared by an earlier version, which did not keep the training rows of a group "
                f"together. To prepare the data again, {remedy(KIND, self.path)}."
            )
        first_rows: NDArray[np.int64] = _read_table(self.path / GROUPS)[FIRST_ROW].to_numpy()
        return first_rows

    def heldout(self) -> pa.Table:
        rows, apart = _read_table(self.path / HELDOUT), {self.group_by} - {*self.inputs}
        return rows.select([name for name in rows.column_names if name not in apart])

    def heldout_groups(self, num_rows: int) -> NDArray[np.int64] | None:
        """Return the groups of the first `num_rows` held-out rows, as numbers, or None if the rows have no groups.

        Each row whose group is missing counts as a group of its own.
        """
        path, name = self.path / HELDOUT, self.group_by
        if name is None or not path.exists() or name not in open_files(path).schema.names:
            return None
        values = open_files(path).head(num_rows, columns=[name])[name].combine_chunks()
        if pa.types.is_nested(values.type):
            return None
        distinct = values.dictionary_encode()
        numbers: NDArray[np.int64] = distinct.indices.cast(pa.int64()).fill_null(-1).to_numpy().copy()
        lacks = numbers < 0
        numbers[lacks] = len(distinct.dictionary) + np.arange(lacks.sum())
        return numbers

    def first_own_id(self, name: str) -> int | None:
        """Return the first id of a column that stands for a single value; new and rare values share smaller ids.

        None if the workflow has no vocabulary of the column.
        """
        path = self._vocabulary(name)
        (cardinality,) = (feature.cardinality for feature in self.spec.features if feature.name == name)
        return None if cardinality is None or not path.exists() else cardinality - pq.read_metadata(path).num_rows

    def training_rows_of_ids(self, name: str) -> NDArray[np.int64]:
        """Return how many training rows have each id of a column, from `first_own_id` on."""
        counts: NDArray[np.int64] = _read_table(self._vocabulary(name))[f"{name}_size"].to_numpy()
        return counts

    def _vocabulary(self, name: str) -> Path:
        return self.path / "workflow" / "categories" / f"unique.{name}.parquet"

    def encoded(self, max_rows: int) -> pa.Table | None:
        """Return up to `max_rows` encoded validation rows, or None if the split is absent or not stored as Parquet."""
        if "valid" not in self.spec.sources or self.spec.source("valid").type != PARQUET:
            return None
        return open_files([self.path / name for name in self.spec.source("valid").files]).head(max_rows)

    def catalog(self) -> pa.Table | None:
        """Return the item catalog, one row per item; None if the rows have no item ids."""
        return _read_table(self.path / CATALOG) if CATALOG in self.manifest.files else None

    def catalog_columns(self) -> list[str]:
        """Return the catalog's column names without reading rows; empty if there is no catalog."""
        return list(pq.read_schema(self.path / CATALOG).names) if CATALOG in self.manifest.files else []

    def histories(self) -> pa.Table | None:
        """Return one row per raw user with all their items as a list, chronological if rows have histories.

        None if the rows have no item ids or do not fit in memory.
        """
        return _read_table(self.path / HISTORIES) if HISTORIES in self.manifest.files else None


def _read_table(path: Path) -> pa.Table:
    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise ArtifactError(f"{path} cannot be read ({error}). Prepare the data again.") from None
