"""The `metadata` part of `feature_spec.yaml`: everything a feature spec contains besides columns."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from rankline.workflows.core.errors import SpecError
from rankline.workflows.schema.targets import Head
from rankline.workflows.schema.validated import validated


@dataclass(frozen=True, kw_only=True)
class SpecMetadata:
    """How a dataset was prepared and how to use it.

    Attributes:
        dataset: name of the dataset.
        inputs: raw columns of a serving request.
        group_by: input column that defines the groups (users) for GAUC, if any.
        item: input column of item ids, which the catalog lists, if any.
        candidates: input columns that may have several values per row; the values share the row's other columns.
        history: input column with the items that a user chose before, if rows have histories.
        negatives: number of negative training rows per positive row, if rows have histories.
        online: whether the splits contain raw rows, as earlier versions could write them; `PreparedData.load` rejects
            such data.
        best_auc: the highest AUC that any model can reach, if known.
        heads: tasks of the label columns, in channel order; empty for one binary head per label.
        others: any other entries of the file, kept unchanged.
    """

    dataset: str | None = None
    inputs: tuple[str, ...] = ()
    group_by: str | None = None
    item: str | None = None
    candidates: tuple[str, ...] = ()
    history: str | None = None
    negatives: int | None = None
    online: bool = False
    best_auc: float | None = None
    heads: tuple[Head, ...] = ()
    others: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_entries(cls, entries: Mapping[str, Any]) -> "SpecMetadata":
        known = {name: value for name, value in entries.items() if name in _KNOWN and value is not None}
        others = {name: value for name, value in entries.items() if name not in _KNOWN}
        heads = known.pop("heads", None) or []
        if not isinstance(heads, list):
            raise SpecError(f"metadata.heads is {heads!r}, expected a list of heads.")
        return replace(validated(cls, known, "metadata"), heads=tuple(map(Head.from_entry, heads)), others=others)

    def entries(self) -> dict[str, Any]:
        """Return plain values for a file, without empty entries."""
        given = {name: getattr(self, name) for name in _KNOWN if name != "heads"}
        known = {name: list(v) if isinstance(v, tuple) else v for name, v in given.items()}
        if self.heads:
            known["heads"] = [head.entry() for head in self.heads]
        return {name: value for name, value in known.items() if value not in (None, False, [])} | dict(self.others)


_KNOWN = tuple(entry.name for entry in fields(SpecMetadata) if entry.name != "others")
