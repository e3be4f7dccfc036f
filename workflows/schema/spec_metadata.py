"""What a feature spec knows beside its columns: the part `metadata` of `feature_spec.yaml`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from rankline.workflows.core.errors import SpecError
from rankline.workflows.schema.targets import Head
from rankline.workflows.schema.validated import validated


@dataclass(frozen=True, kw_only=True)
class SpecMetadata:
    """How the data of a spec came to be, and how it is to be used.

    Attributes:
        dataset: name of the dataset.
        inputs: raw columns of a serving request.
        group_by: input column whose groups (users) GAUC averages over, if there is one.
        item: input column that the catalogue lists, if there is one.
        candidates: input columns that may hold several values per row, which share the rest of the row.
        history: input column with what a user chose before, where rows have histories.
        negatives: training rows of items that were not chosen for each row of one that was, where rows have histories.
        online: the splits hold raw rows, as earlier versions could write them; `PreparedData.load` refuses them.
        best_auc: best AUC that any model can reach, where it is known.
        heads: what is learned of each label column, in the order of their channel; none for one binary head each.
        others: whatever else the file has; kept as it is.
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
        """The metadata that the plain values of a file say."""
        known = {name: value for name, value in entries.items() if name in _KNOWN and value is not None}
        others = {name: value for name, value in entries.items() if name not in _KNOWN}
        heads = known.pop("heads", None) or []
        if not isinstance(heads, list):
            raise SpecError(f"metadata.heads is {heads!r}, expected a list of heads.")
        return replace(validated(cls, known, "metadata"), heads=tuple(map(Head.from_entry, heads)), others=others)

    def entries(self) -> dict[str, Any]:
        """Plain values for a file; what there is nothing to say about is left out."""
        given = {name: getattr(self, name) for name in _KNOWN if name != "heads"}
        known = {name: list(v) if isinstance(v, tuple) else v for name, v in given.items()}
        if self.heads:
            known["heads"] = [head.entry() for head in self.heads]
        return {name: value for name, value in known.items() if value not in (None, False, [])} | dict(self.others)


_KNOWN = tuple(entry.name for entry in fields(SpecMetadata) if entry.name != "others")
