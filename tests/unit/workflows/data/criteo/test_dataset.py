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


def test_it_reads_what_it_generates_and_a_request_holds_all_but_the_label(raw):
    assert raw.rows.schema == CRITEO_SCHEMA
    assert len(raw.rows) == 6_000
    assert (*CRITEO.inputs, *CRITEO.labels) == (*NUMBERS, *CATEGORIES, "label")
    assert (CRITEO.group_by, CRITEO.item) == (None, None)


def test_counts_are_filled_clipped_logged_and_standardised(rows, encoded):
    frame, _, _ = encoded
    for name in NUMBERS:
        logs = np.log1p(np.maximum(rows[name].fill_null(0).to_numpy(), 0))
        assert frame[name].to_numpy() == pytest.approx((logs - logs.mean()) / logs.std(), abs=1e-3)


def test_the_label_becomes_a_float_and_nothing_but_the_columns_comes_out(rows, encoded):
    frame, _, workflow = encoded
    assert frame["label"].dtype == np.float32
    assert frame["label"].tolist() == rows["label"].to_pylist()
    assert set(frame.columns) == set(COLUMNS)
    assert [str(tag) for tag in workflow.output_schema["label"].tags] == ["Tags.TARGET"]


def test_each_category_has_ids_by_frequency_and_one_for_missing_ones(rows, encoded):
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
