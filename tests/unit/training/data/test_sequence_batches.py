"""Prepared rows with histories, as the loader gives them to models."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankline.training.data.open_split import first_rows, tensorflow_loader
from rankline.workflows.data.amazon.dataset import AMAZON
from rankline.workflows.preprocess import SequenceConfig
from rankline.workflows.preprocess.prepare import prepare
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.preprocess.raw import RawData

TARGETS = ("user_id", "item_id_trgt", "category_id_trgt")
POSITIVES, NEGATIVES = ("item_id_pos", "category_id_pos"), ("item_id_neg", "category_id_neg")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    rng = np.random.default_rng(2)
    users, items = np.repeat(np.arange(80), rng.integers(5, 20, 80)), np.arange(40)
    raw = RawData(
        rows=pa.table({"user_id": users, "item_id": rng.choice(items, len(users))}),
        catalog=pa.table({"item_id": items, "category": [f"kind {item % 5}" for item in items]}),
        fingerprint="made up",
    )
    output = tmp_path_factory.mktemp("work") / "prepared"
    config = SequenceConfig(max_history=6)
    return prepare(AMAZON, raw, output, encoding=config, source="made up")


def rows_of(path: Path, files: tuple[str, ...]) -> pa.Table:
    return pq.read_table([path / name for name in files])


def test_training_batches_hold_each_row_once_with_both_histories(prepared: PreparedData) -> None:
    loader = tensorflow_loader(prepared.path, prepared.spec, "train", 100, shuffle=True, seed=1)
    lists = [column + suffix for column in (*POSITIVES, *NEGATIVES) for suffix in ("__values", "__nnzs")]
    got = []
    for inputs, labels in loader:
        assert sorted(inputs) == sorted([*TARGETS, *lists])
        columns = {name: tensor.numpy()[:, 0] for name, tensor in inputs.items()}
        nnzs = columns["item_id_pos__nnzs"]
        assert (columns["item_id_neg__nnzs"] == nnzs).all()
        histories = [
            [tuple(part) for part in np.split(columns[column + "__values"], np.cumsum(nnzs)[:-1])]
            for column in (*POSITIVES, *NEGATIVES)
        ]
        scalars = zip(*(columns[column].tolist() for column in TARGETS), strict=True)
        got += zip(labels.numpy()[:, 0].tolist(), scalars, *histories, strict=True)
    table = rows_of(prepared.path, prepared.spec.source("train").files).to_pylist()
    expected = [
        (
            row["label"],
            tuple(row[column] for column in TARGETS),
            *(tuple(row[column]) for column in (*POSITIVES, *NEGATIVES)),
        )
        for row in table
    ]
    assert got != expected
    assert sorted(got) == sorted(expected)


def test_validation_batches_for_scoring_have_no_negatives_and_keep_the_order(prepared: PreparedData) -> None:
    spec = prepared.spec.for_scoring
    (batch,) = tensorflow_loader(prepared.path, spec, "valid", 1000, shuffle=False, seed=0)
    inputs, labels = batch
    assert not [name for name in inputs if "_neg" in name]
    table = rows_of(prepared.path, spec.source("valid").files)
    assert labels.numpy()[:, 0].tolist() == table["label"].to_pylist() == prepared.heldout()["label"].to_pylist()
    assert inputs["item_id_trgt"].numpy()[:, 0].tolist() == table["item_id_trgt"].to_pylist()
    first = first_rows(prepared.path, spec, "valid", 5)
    expected = table["item_id_pos"].slice(0, 5).combine_chunks().flatten().to_pylist()
    assert first["item_id_pos"].values.tolist() == expected  # type: ignore[union-attr]
