"""Finds validation values and label classes that are absent from the training rows, such as a new month."""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pa_dataset
import pyarrow.parquet as pq

from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.schema.feature_spec import FIRST_UNSEEN_ID, PARQUET
from rankline.workflows.schema.targets import MULTICLASS

_FEW = 64  # maximum cardinality; in larger columns, many values can be new
_LOOKED_AT = 65_536
_MANY = 0.5


def mostly_unseen(prepared: PreparedData) -> dict[str, float]:
    """Find low-cardinality columns in which most of the first validation values are unseen, and return their shares."""
    source = prepared.spec.sources["valid"]
    names = [one.name for one in prepared.spec.categorical if not one.is_list and (one.cardinality or _FEW + 1) <= _FEW]
    if source.type != PARQUET or not names:
        return {}
    with pq.ParquetFile(prepared.path / source.files[0]) as file:
        rows = next(file.iter_batches(_LOOKED_AT, columns=names), None)
    if rows is None:
        return {}
    shares = {name: pc.mean(pc.equal(rows[name], FIRST_UNSEEN_ID).cast(pa.int8())).as_py() for name in names}
    return {name: share for name, share in shares.items() if share is not None and share > _MANY}


def untrained_classes(prepared: PreparedData) -> dict[str, list[str]]:
    source = prepared.spec.sources["train"]
    heads = [head for head in prepared.spec.heads if head.task == MULTICLASS]
    if source.type != PARQUET or not heads:
        return {}
    rows = pa_dataset.dataset([prepared.path / name for name in source.files])
    found: dict[str, list[str]] = {}
    for head in heads:
        seen = set(pc.unique(rows.to_table(columns=[head.column])[head.column]).to_pylist())
        if missing := [name for number, name in enumerate(head.classes) if number not in seen]:
            found[head.column] = missing
    return found
