from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rankline.scoring.unseen import mostly_unseen, untrained_classes
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.schema.feature_spec import Source
from rankline.workflows.schema.targets import Head
from tests.factories.specs import scalar_spec


def test_a_column_of_few_categories_that_are_new_to_most_validation_rows_is_named(tmp_path: Path) -> None:
    rows = {"C0": [2, 2, 2, 3], "C1": [2, 2, 3, 3], "C2": [2, 2, 2, 2]}
    pq.write_table(pa.table(rows), tmp_path / "valid.parquet")
    source = Source(files=("valid.parquet",), num_rows=4)
    spec = replace(scalar_spec([(15, 4), (15, 4), (1000, 4)], 0), sources={"valid": source})
    any_manifest: Any = None
    assert mostly_unseen(PreparedData(path=tmp_path, spec=spec, manifest=any_manifest)) == {"C0": 0.75}


def test_classes_that_no_training_row_has_are_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"label": pa.array([0.0, 2.0, 0.0], pa.float32())}), tmp_path / "train.parquet")
    source = Source(files=("train.parquet",), num_rows=3)
    head = Head("label", task="multiclass", classes=("low", "middle", "high", "top"))
    spec = replace(scalar_spec([(15, 4)], 0), sources={"train": source})
    spec = replace(spec, metadata=replace(spec.metadata, heads=(head,)))
    any_manifest: Any = None
    prepared = PreparedData(path=tmp_path, spec=spec, manifest=any_manifest)
    assert untrained_classes(prepared) == {"label": ["middle", "top"]}
