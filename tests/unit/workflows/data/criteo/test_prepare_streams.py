"""Rows that come as a stream, more than one part; and splits that hold raw rows."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from rankline.workflows.core.errors import DataError
from rankline.workflows.data.criteo.dataset import CRITEO
from rankline.workflows.preprocess import RowsConfig
from rankline.workflows.preprocess.prepare import prepare as prepare_rows
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.preprocess.raw import RawData, StreamedRows

NUMBERS, CATEGORIES = CRITEO.inputs[:13], CRITEO.inputs[13:]
SCHEMA = pa.schema(
    {"label": pa.int64(), **dict.fromkeys(NUMBERS, pa.int64()), **dict.fromkeys(CATEGORIES, pa.string())}
)
PERIODS = (1500, 900, 700)
prepare = partial(prepare_rows, source="generated")


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    """Clicks of three days; the first row lacks the first number, which is then no float because of it."""
    rng = np.random.default_rng(5)
    num_rows = sum(PERIODS)
    columns: dict[str, Any] = {"label": rng.integers(0, 2, num_rows)}
    for name in NUMBERS:
        missing = rng.random(num_rows) < 0.2
        missing[0] = name == "I1"
        columns[name] = pa.array(rng.lognormal(2, 2, num_rows).astype(np.int64) - 1, mask=missing)
    for number, name in enumerate(CATEGORIES):
        ids = np.minimum(rng.zipf(1.3, num_rows), 20 * (number + 1)) * 0x9E3779B1 % 2**32
        columns[name] = pa.array([f"{value:08x}" for value in ids], mask=rng.random(num_rows) < 0.1)
    return pa.table(columns, schema=SCHEMA)


def streamed(rows: pa.Table, periods: tuple[int, ...] = PERIODS, batch_size: int = 333) -> RawData:
    def batches() -> Iterator[pa.RecordBatch]:
        first = 0
        for size in periods:
            yield from rows.slice(first, size).to_batches(max_chunksize=batch_size)
            first += size

    return RawData(rows=StreamedRows(schema=SCHEMA, periods=periods, batches=batches), fingerprint="of a stream")


@pytest.fixture(scope="module")
def prepared(rows: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    return prepare(
        CRITEO, streamed(rows), tmp_path_factory.mktemp("work") / "prepared", encoding=RowsConfig(split="time")
    )


def split(prepared: PreparedData, name: str) -> pd.DataFrame:
    files = [prepared.path / file for file in prepared.spec.source(name).files]
    return pd.concat([pd.read_parquet(file) for file in files], ignore_index=True)


def test_the_last_day_validates_and_no_row_changes_its_place(prepared: PreparedData, rows: pa.Table) -> None:
    assert prepared.manifest.details["rows"] == {"train": 2400, "valid": 700}
    heldout = prepared.heldout()
    expected = rows.slice(2400).select(CRITEO.inputs)
    assert heldout.select(CRITEO.inputs).to_pylist() == expected.to_pylist()
    assert heldout.schema.field("C1").type == pa.string()
    assert heldout["label"].to_pylist() == rows["label"].slice(2400).to_pylist()
    assert split(prepared, "train")["label"].tolist() == rows["label"].slice(0, 2400).to_pylist()


def test_there_is_no_catalogue_and_no_group(prepared: PreparedData) -> None:
    assert (prepared.group_by, prepared.item, prepared.catalog()) == (None, None, None)
    assert not (prepared.path / "catalog.parquet").exists()
    assert prepared.spec.metadata.online is False


def test_the_spec_holds_39_inputs_and_the_workflow_takes_integers_and_strings(prepared: PreparedData) -> None:
    spec = prepared.spec
    assert (len(spec.continuous), len(spec.categorical), spec.label.name) == (13, 26, "label")
    train = split(prepared, "train")
    for feature in spec.categorical:
        assert feature.cardinality == train[feature.name].max() + 1
    schema = prepared.workflow().input_schema
    assert {str(schema[name].dtype.to_numpy) for name in NUMBERS} == {"int64"}
    assert {str(schema[name].dtype.to_numpy) for name in CATEGORIES} == {"object"}


@pytest.mark.parametrize("batch_size", [100, 5000])
def test_batches_and_partitions_do_not_change_what_is_written(
    prepared: PreparedData, rows: pa.Table, tmp_path: Path, batch_size: int
) -> None:
    raw = streamed(rows, batch_size=batch_size)
    again = prepare(CRITEO, raw, tmp_path / "prepared", encoding=RowsConfig(split="time"), partition_rows=700)
    for name in ("train", "valid"):
        # Means over parts are added up in another order.
        pd.testing.assert_frame_equal(split(again, name), split(prepared, name), rtol=1e-5)
    assert again.heldout().equals(prepared.heldout())


def test_a_random_split_of_a_stream_follows_its_seed(rows: pa.Table, tmp_path: Path) -> None:
    config = RowsConfig(split="random", split_seed=7)
    prepared = prepare(CRITEO, streamed(rows), tmp_path / "prepared", encoding=config)
    drawn = np.random.default_rng(7).random(len(rows)) < config.valid_share
    assert prepared.heldout()["label"].to_pylist() == rows["label"].filter(pa.array(drawn)).to_pylist()


def test_a_damaged_row_stops_it_and_leaves_nothing(rows: pa.Table, tmp_path: Path) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from rows.slice(0, 1000).to_batches()
        raise DataError("day_0, line 1001: 3 columns")

    raw = RawData(rows=StreamedRows(schema=SCHEMA, periods=PERIODS, batches=batches), fingerprint="damaged")
    with pytest.raises(DataError, match="line 1001"):
        prepare(CRITEO, raw, tmp_path / "prepared", encoding=RowsConfig(split="time"))
    assert not list(tmp_path.iterdir())


def test_one_class_in_a_stream_is_refused(rows: pa.Table, tmp_path: Path) -> None:
    column = rows["label"].to_numpy().copy()
    column[2400:] = 0
    with pytest.raises(DataError, match="every label of the valid rows is 0"):
        changed = rows.set_column(0, "label", pa.array(column))
        prepare(CRITEO, streamed(changed), tmp_path / "prepared", encoding=RowsConfig(split="time"))
