"""Files of scored validation rows, written by each run and read to compare runs."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rankline.training.distributed.communicator import Array
from rankline.training.evaluation import split_by_head
from rankline.training.evaluation.scored_rows import ScoredRows
from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.schema.targets import Head
from rankline.workflows.schema.tensors import concat_outputs

FOLDER = "validation"
"""Directory among the artifacts of a run."""
FILE = "scores.parquet"
_HEADS = b"rankline.heads"
_GROUPS = "rankline.groups"  # a label may be named "group"


@dataclass(frozen=True, kw_only=True)
class ValidationScores:
    """The labels of the first validation rows, and the published model's scores for these rows.

    Attributes:
        labels: shape (N,), for several heads (N, heads), NaN if missing.
        scores: shape (N,), or (N, values of all heads).
        groups: number of each row's group, shape (N,); None if the rows have no groups.
    """

    heads: tuple[Head, ...]
    labels: Array
    scores: Array
    groups: Array | None = None

    def by_head(self) -> Iterator[tuple[Head, ScoredRows]]:
        return split_by_head(self.heads, ScoredRows.of(self.labels, self.scores, self.groups))

    def write(self, directory: Path) -> None:
        """Write each head's columns LABEL and LABEL_score, and the groups, to `FILE` in `directory`."""
        labels, scores = (iter(values.reshape(len(values), -1).T) for values in (self.labels, self.scores))
        columns: dict[str, pa.Array] = {}
        for head in self.heads:
            columns[head.column] = pa.array(next(labels))
            own = concat_outputs([next(scores).reshape(-1, 1) for _ in range(head.width)])
            columns[f"{head.column}_score"] = (
                pa.array(own[:, 0])
                if head.width == 1
                else pa.FixedSizeListArray.from_arrays(pa.array(own.reshape(-1)), head.width)
            )
        if self.groups is not None:
            columns[_GROUPS] = pa.array(self.groups)
        heads = json.dumps([head.entry() for head in self.heads])
        pq.write_table(pa.table(columns).replace_schema_metadata({_HEADS: heads}), directory / FILE)

    @classmethod
    def read(cls, path: Path) -> "ValidationScores":
        try:
            table = pq.read_table(path)
            heads = tuple(map(Head.from_entry, json.loads(table.schema.metadata[_HEADS])))
            labels = concat_outputs([_values(table[head.column], 1) for head in heads])
            scores = concat_outputs([_values(table[f"{head.column}_score"], head.width) for head in heads])
            groups = table[_GROUPS].to_numpy() if _GROUPS in table.column_names else None
        except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
            raise ArtifactError(f"{path} does not contain validation scores ({error}).") from None
        return cls(heads=heads, labels=_narrow(labels), scores=_narrow(scores), groups=groups)


def _values(column: pa.ChunkedArray, width: int) -> Array:
    whole = column.combine_chunks()
    values: Array = (whole.flatten() if width > 1 else whole).to_numpy(zero_copy_only=False)
    return values.reshape(-1, width)


def _narrow(values: Array) -> Array:
    return values[:, 0] if values.shape[1] == 1 else values


def scored_alike(heads: Sequence[Head], others: Sequence[Head]) -> list[Head]:
    known = {(head.column, head.task, head.classes) for head in others}
    return [head for head in heads if (head.column, head.task, head.classes) in known]
