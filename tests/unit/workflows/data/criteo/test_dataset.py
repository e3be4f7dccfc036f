"""Criteo's graph, and rows that come as a stream of more than one part."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankline.workflows.data.criteo.dataset import CRITEO
from rankline.workflows.data.criteo.reader import CATEGORIES, COLUMNS, CRITEO_SCHEMA, NUMBERS
from rankline.workflows.nvt.compat import nvt, quiet_nvtabular
from rankline.workflows.nvt.io.workflow import keep_vocabularies_in
from rankline.workflows.preprocess import RowsConfig
from rankline.workflows.preprocess.config import PrepareConfig
from rankline.workflows.preprocess.prepare import prepare as prepare_rows
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.preprocess.raw import RawData, StreamedRows


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    directory = tmp_path_factory.mktemp("generated")
    CRITEO.generate(directory, num_rows=6_000, seed=1, cardinality_scale=0.01)
    return CRITEO.read(directory)


@pytest.fixture(scope="module")
def rows(raw):
    return pa.Table.from_batches(raw.rows.batches())


@pytest.fixture(scope="module")
def encoded(raw, rows, tmp_path_factory):
    return encode(raw, rows, tmp_path_factory.mktemp("encoded"))


def encode(raw, rows, tmp_path, **choices):
    """Fit the graph on the rows, as two parts; the encoded rows, column → number of ids, the fitted workflow."""
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=-(-rows.num_rows // 2))
    with quiet_nvtabular():
        workflow = CRITEO.graph(raw, PrepareConfig(**choices), RowsConfig())
        keep_vocabularies_in(workflow, tmp_path)
        workflow.fit(nvt.Dataset(str(tmp_path / "rows.parquet"), engine="parquet", row_groups_per_part=1))
        encoded = workflow.transform(rows.to_pandas())
    schemas = workflow.output_schema.column_schemas
    sizes = {name: int(schemas[name].properties["embedding_sizes"]["cardinality"]) for name in CATEGORIES}
    return encoded, sizes, workflow


def test_numbers_are_filled_clipped_logged_and_standardised(rows, encoded):
    frame, _, _ = encoded
    for name in NUMBERS:
        logs = np.log1p(np.maximum(rows[name].fill_null(0).to_numpy(), 0))
        assert frame[name].to_numpy() == pytest.approx((logs - logs.mean()) / logs.std(), abs=1e-3)


def test_label_becomes_a_float(rows, encoded):
    frame, _, workflow = encoded
    assert frame["label"].dtype == np.float32
    assert frame["label"].tolist() == rows["label"].to_pylist()
    assert set(frame.columns) == set(COLUMNS)
    assert [str(tag) for tag in workflow.output_schema["label"].tags] == ["Tags.TARGET"]


def test_categories_have_ids_and_one_for_missing_ones(rows, encoded):
    frame, sizes, _ = encoded
    for name in CATEGORIES:
        ids, texts = frame[name].to_numpy(), rows[name].to_pandas()
        assert sizes[name] == texts.nunique() + 3  # padding, missing, unseen
        assert set(ids[texts.isna()]) <= {1}
        assert ids.max() < sizes[name]
        pairs = pd.DataFrame({"id": ids, "text": texts}).dropna()
        assert pairs.groupby("text")["id"].nunique().max() == 1
        assert pairs["id"].nunique() == texts.nunique()


def test_rare_and_unseen_ids_share_one_id_or_some_buckets(raw, rows, encoded, tmp_path):
    _, all_ids, _ = encoded
    _, sizes, workflow = encode(raw, rows, tmp_path, frequency_threshold=20)
    assert 3 < sizes["C1"] < all_ids["C1"] / 10
    unseen = rows.slice(0, 2).to_pandas().assign(C1=["ffffffff", "FFFFFFFE"])
    with quiet_nvtabular():
        assert workflow.transform(unseen)["C1"].tolist() == [2, 2]
    frame, buckets, _ = encode(raw, rows, tmp_path, frequency_threshold=20, hash_buckets=10)
    assert buckets["C1"] == sizes["C1"] + 9
    assert set(range(2, 12)) <= set(frame["C1"])


PERIODS = (1500, 900, 700)
prepare = partial(prepare_rows, source="generated")


@pytest.fixture(scope="module")
def clicks() -> pa.Table:
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
    return pa.table(columns, schema=CRITEO_SCHEMA)


def streamed(rows: pa.Table, periods: tuple[int, ...] = PERIODS, batch_size: int = 333) -> RawData:
    def batches() -> Iterator[pa.RecordBatch]:
        first = 0
        for size in periods:
            yield from rows.slice(first, size).to_batches(max_chunksize=batch_size)
            first += size

    return RawData(rows=StreamedRows(schema=CRITEO_SCHEMA, periods=periods, batches=batches), fingerprint="of a stream")


@pytest.fixture(scope="module")
def prepared(clicks: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    return prepare(
        CRITEO, streamed(clicks), tmp_path_factory.mktemp("work") / "prepared", encoding=RowsConfig(split="time")
    )


def split(prepared: PreparedData, name: str) -> pd.DataFrame:
    files = [prepared.path / file for file in prepared.spec.source(name).files]
    return pd.concat([pd.read_parquet(file) for file in files], ignore_index=True)


def test_last_day_validates_and_no_row_changes_its_place(prepared: PreparedData, clicks: pa.Table) -> None:
    assert prepared.manifest.details["rows"] == {"train": 2400, "valid": 700}
    heldout = prepared.heldout()
    expected = clicks.slice(2400).select(CRITEO.inputs)
    assert heldout.select(CRITEO.inputs).to_pylist() == expected.to_pylist()
    assert heldout.schema.field("C1").type == pa.string()
    assert heldout["label"].to_pylist() == clicks["label"].slice(2400).to_pylist()
    assert split(prepared, "train")["label"].tolist() == clicks["label"].slice(0, 2400).to_pylist()


def test_spec_holds_39_inputs_of_integers_and_strings(prepared: PreparedData) -> None:
    spec = prepared.spec
    assert (len(spec.continuous), len(spec.categorical), spec.label.name) == (13, 26, "label")
    train = split(prepared, "train")
    for feature in spec.categorical:
        assert feature.cardinality == train[feature.name].max() + 1
    schema = prepared.workflow().input_schema
    assert {str(schema[name].dtype.to_numpy) for name in NUMBERS} == {"int64"}
    assert {str(schema[name].dtype.to_numpy) for name in CATEGORIES} == {"object"}


@pytest.mark.parametrize("batch_size", [100, 5000])
def test_batches_and_partitions_do_not_change_the_rows(
    prepared: PreparedData, clicks: pa.Table, tmp_path: Path, batch_size: int
) -> None:
    raw = streamed(clicks, batch_size=batch_size)
    again = prepare(CRITEO, raw, tmp_path / "prepared", encoding=RowsConfig(split="time"), partition_rows=700)
    for name in ("train", "valid"):
        # Means over parts are added up in another order.
        pd.testing.assert_frame_equal(split(again, name), split(prepared, name), rtol=1e-5)
    assert again.heldout().equals(prepared.heldout())


def test_random_split_of_a_stream_follows_its_seed(clicks: pa.Table, tmp_path: Path) -> None:
    config = RowsConfig(split="random", split_seed=7)
    prepared = prepare(CRITEO, streamed(clicks), tmp_path / "prepared", encoding=config)
    drawn = np.random.default_rng(7).random(len(clicks)) < config.valid_share
    assert prepared.heldout()["label"].to_pylist() == clicks["label"].filter(pa.array(drawn)).to_pylist()
