"""Rows with histories from raw interactions, encoded by the workflow that serves."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankline.workflows.core.errors import DataError, SpecError
from rankline.workflows.data.amazon.dataset import AMAZON
from rankline.workflows.nvt.compat import quiet_nvtabular
from rankline.workflows.preprocess import SequenceConfig
from rankline.workflows.preprocess.config import PrepareConfig
from rankline.workflows.preprocess.dataset import Dataset
from rankline.workflows.preprocess.negative_sampling import TRAIN, VALID
from rankline.workflows.preprocess.prepare import prepare as prepare_data
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.preprocess.raw import RawData, StreamedRows
from rankline.workflows.schema.feature_spec import SpecMetadata

USER, ITEM, HISTORY, LABEL = "user_id", "item_id", "history", "label"
COLUMNS = [
    LABEL, USER, "item_id_trgt", "category_id_trgt", "item_id_pos", "category_id_pos", "item_id_neg", "category_id_neg",
]  # fmt: skip
SEQUENCE = SequenceConfig(max_history=4)
prepare = partial(prepare_data, source="made up")


def raw_of(chosen: list[list[Any]], user_ids: list[Any] | None = None) -> RawData:
    """Interactions of users, and a catalogue of all items but the first, which is not known."""
    user_ids = user_ids or [f"U{number:03d}" for number in range(len(chosen))]
    items = sorted({item for items in chosen for item in items})
    return RawData(
        rows=pa.table(
            {
                USER: [user for user, items in zip(user_ids, chosen, strict=True) for _ in items],
                ITEM: [item for items in chosen for item in items],
            }
        ),
        catalog=pa.table({ITEM: items[1:], "category": [f"kind {number % 3}" for number in range(len(items) - 1)]}),
        dropped={"without time": 2},
        noticed={"twice": 1},
        fingerprint="made up",
    )


@pytest.fixture(scope="module")
def chosen() -> list[list[str]]:
    rng = np.random.default_rng(11)
    sequences = [[f"B{item:02d}" for item in rng.zipf(1.4, length) % 30] for length in rng.integers(1, 15, 60)]
    sequences[3] = [*(f"B{item:02d}" for item in range(6)), "B99"]  # nobody chooses the last one before
    return sequences


@pytest.fixture(scope="module")
def raw(chosen: list[list[str]]) -> RawData:
    return raw_of(chosen)


@pytest.fixture(scope="module")
def prepared(raw: RawData, tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    return prepare(AMAZON, raw, tmp_path_factory.mktemp("work") / "prepared", PrepareConfig(), SEQUENCE, best_auc=0.9)


def split(prepared: PreparedData, name: str) -> pd.DataFrame:
    return pq.read_table([prepared.path / file for file in prepared.spec.source(name).files]).to_pandas()


def assert_same_rows(one: PreparedData, other: PreparedData) -> None:
    for name in (TRAIN, VALID):
        pd.testing.assert_frame_equal(split(one, name), split(other, name))
    assert one.heldout().equals(other.heldout())
    assert one.histories() == other.histories()


def encoded(prepared: PreparedData, rows: pd.DataFrame) -> pd.DataFrame:
    with quiet_nvtabular():
        made = prepared.workflow().transform(rows)
    return pd.DataFrame({name: made[name].map(np.asarray) if "_pos" in name else made[name] for name in made})


def assert_encoded(rows: pd.DataFrame, expected: pd.DataFrame) -> None:
    rows = rows.reset_index(drop=True)
    pd.testing.assert_frame_equal(rows, expected[rows.columns.tolist()].reset_index(drop=True), check_dtype=False)


def test_heldout_rows_are_encoded_as_the_files_have_them(prepared: PreparedData) -> None:
    heldout = prepared.heldout()
    assert heldout.column_names == [USER, ITEM, HISTORY, LABEL]
    valid = split(prepared, VALID)
    assert_encoded(valid[COLUMNS[1:6]], encoded(prepared, heldout.to_pandas()))
    assert valid[LABEL].tolist() == heldout[LABEL].to_pylist() == [1.0, 0.0] * (len(valid) // 2)


def test_training_rows_are_the_encoded_raw_prefixes(prepared: PreparedData, chosen: list[list[str]]) -> None:
    rows = [
        {USER: f"U{user:03d}", ITEM: items[place], HISTORY: items[max(0, place - 4) : place]}
        for user, items in enumerate(chosen)
        if len(items) >= 5
        for place in range(1, len(items) - 1)
    ]
    train = split(prepared, TRAIN)
    assert_encoded(train[train[LABEL] == 1][COLUMNS[1:6]], encoded(prepared, pd.DataFrame(rows)))
    alike = [USER, "item_id_pos", "category_id_pos"]
    pd.testing.assert_frame_equal(
        train[train[LABEL] == 0][alike].reset_index(drop=True), train[train[LABEL] == 1][alike].reset_index(drop=True)
    )


def test_held_out_items_are_the_last_of_each_user(prepared: PreparedData, chosen: list[list[str]]) -> None:
    positives = [row for row in prepared.heldout().to_pylist() if row[LABEL]]
    kept = [(f"U{user:03d}", items) for user, items in enumerate(chosen) if len(items) >= 5]
    assert [(row[USER], row[ITEM], row[HISTORY]) for row in positives] == [
        (user, items[-1], items[-5:-1]) for user, items in kept
    ]


def test_negatives_have_the_attributes_of_their_items(prepared: PreparedData) -> None:
    for name in (TRAIN, VALID):
        rows = split(prepared, name)
        kinds = dict(zip(rows["item_id_trgt"], rows["category_id_trgt"], strict=True))
        assert (rows["item_id_neg"].map(len) == rows["item_id_pos"].map(len)).all()
        for items, categories in zip(rows["item_id_neg"], rows["category_id_neg"], strict=True):
            assert len(items) == len(categories)
            assert all(kinds.get(item, kind) == kind for item, kind in zip(items, categories, strict=True) if item > 2)


def test_vocabularies_do_not_know_the_held_out_items(prepared: PreparedData, chosen: list[list[str]]) -> None:
    seen = [item for items in chosen if len(items) >= 5 for item in items[:-1]]
    spec = prepared.spec
    assert spec["item_id_trgt"].cardinality == 3 + len(set(seen))
    assert spec[USER].cardinality == 3 + sum(len(items) >= 5 for items in chosen)
    heldout = prepared.heldout().to_pandas()
    only_held_out = heldout[heldout[ITEM] == "B99"]
    assert len(only_held_out) > 0
    assert (split(prepared, VALID)["item_id_trgt"][only_held_out.index] == 2).all()
    # The item that is seen most has the first id of the vocabulary.
    most = max(set(seen), key=seen.count)
    assert (split(prepared, VALID)["item_id_trgt"][heldout[heldout[ITEM] == most].index] == 3).all()


def test_spec_says_what_the_files_hold(prepared: PreparedData) -> None:
    spec = prepared.spec
    assert [feature.name for feature in spec.features] == COLUMNS == split(prepared, TRAIN).columns.tolist()
    assert spec.channels == {
        "label": (LABEL,),
        "user_features": (USER,),
        "target_item_features": ("item_id_trgt", "category_id_trgt"),
        "positive_history": ("item_id_pos", "category_id_pos"),
        "negative_history": ("item_id_neg", "category_id_neg"),
    }
    assert {spec[name].max_length for name in COLUMNS[4:]} == {4}
    assert spec.metadata == SpecMetadata(
        dataset="amazon",
        inputs=(USER, ITEM, HISTORY),
        group_by=USER,
        item=ITEM,
        candidates=(ITEM,),
        history=HISTORY,
        negatives=1,
        best_auc=0.9,
    )
    assert prepared.candidates == (ITEM,)


def test_cardinalities_are_the_largest_ids_as_the_document_has_them(prepared: PreparedData) -> None:
    document = json.loads((prepared.path / "metadata.json").read_text())
    spec = prepared.spec
    names = {USER: USER, "item_id": "item_id_trgt", "category_id": "category_id_trgt"}
    assert document == {
        "cardinalities": [
            {"name": name, "value": spec[column].embedding_shape[0] - 1} for name, column in names.items()
        ]
    }


def test_histories_hold_all_items_of_all_users(prepared: PreparedData, chosen: list[list[str]]) -> None:
    histories = prepared.histories()
    assert histories is not None
    expected = [{USER: f"U{user:03d}", HISTORY: items} for user, items in enumerate(chosen)]
    assert histories.to_pylist() == expected


def test_splits_come_as_several_files_and_nothing_else_is_left(prepared: PreparedData, raw: RawData) -> None:
    for name, num_files in ((TRAIN, 4), (VALID, 2)):
        source = prepared.spec.source(name)
        assert len(source.files) == num_files
        assert sum(pq.ParquetFile(prepared.path / file).metadata.num_rows for file in source.files) == source.num_rows
    assert prepared.catalog() == raw.catalog
    assert [path.name for path in prepared.path.parent.iterdir()] == ["prepared"]
    assert {path.name for path in prepared.path.iterdir()} == {
        "train", "valid", "workflow", "feature_spec.yaml", "manifest.json", "metadata.json", "heldout",
        "histories.parquet", "catalog.parquet",
    }  # fmt: skip


def test_partitions_and_blocks_do_not_change_the_rows(prepared: PreparedData, raw: RawData, tmp_path: Path) -> None:
    again = prepare(AMAZON, raw, tmp_path / "prepared", PrepareConfig(), SEQUENCE, best_auc=0.9, partition_rows=20)
    assert_same_rows(again, prepared)


def test_stream_is_prepared_as_a_table_is(prepared: PreparedData, raw: RawData, tmp_path: Path) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from raw.rows.to_batches(max_chunksize=17)  # type: ignore[union-attr]

    streamed = StreamedRows(schema=raw.rows.schema, periods=(len(raw.rows),), batches=batches)
    again = prepare(AMAZON, replace(raw, rows=streamed), tmp_path / "prepared", PrepareConfig(), SEQUENCE)
    assert_same_rows(again, prepared)


def test_ids_may_be_numbers_and_negative_histories_left_out(chosen: list[list[str]], tmp_path: Path) -> None:
    raw = raw_of([[int(item[1:]) for item in items] for items in chosen], [7 * user for user in range(len(chosen))])
    sequence = replace(SEQUENCE, negative_history=False, negatives=2)
    prepared = prepare(AMAZON, raw, tmp_path / "prepared", PrepareConfig(), sequence)
    assert [feature.name for feature in prepared.spec.features] == COLUMNS[:6]
    assert "negative_history" not in prepared.spec.channels
    heldout = prepared.heldout()
    assert heldout.schema.field(HISTORY).type.value_type == pa.int64()
    valid = split(prepared, VALID)
    assert valid[LABEL].tolist() == [1.0, 0.0] * (len(valid) // 2)
    train = split(prepared, TRAIN)
    assert train[LABEL].tolist() == [1.0, 0.0, 0.0] * (len(train) // 3)
    assert_encoded(valid[COLUMNS[1:6]], encoded(prepared, heldout.to_pandas()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: {"rows": raw.rows.slice(0, 0)}, "contain no interactions"),
        (lambda raw: {"catalog": raw.catalog.slice(0, 0)}, "catalog of amazon is empty"),
        (lambda raw: {"rows": pa.concat_tables([raw.rows, raw.rows.slice(0, 1)])}, "user_id U000 appears again"),
        (
            lambda raw: {"rows": raw.rows.set_column(1, ITEM, pa.array([None] * len(raw.rows), pa.string()))},
            "interactions have no 'item_id'",
        ),
    ],
)
def test_unusable_data_leave_the_old_artifact(raw: RawData, tmp_path: Path, change: Any, message: str) -> None:
    (tmp_path / "prepared").mkdir()
    with pytest.raises(DataError, match=message):
        prepare(AMAZON, replace(raw, **change(raw)), tmp_path / "prepared", PrepareConfig(), SEQUENCE)
    assert not list((tmp_path / "prepared").iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["prepared"]


def _hashed(suffix: str, num_buckets: int) -> Dataset:
    """A graph whose histories are hashed to other ids than the items, under some name."""

    def graph(raw: RawData, config: PrepareConfig, sequence: SequenceConfig) -> Any:
        from rankline.workflows.nvt.compat import nvt, ops
        from rankline.workflows.nvt.operators import StableHashBucket

        def hashed(name: str, new_name: str, size: int) -> Any:
            return [name] >> StableHashBucket(size) >> ops.Rename(name=new_name)

        item, history = hashed(ITEM, "item_id_trgt", 50), hashed(HISTORY, "item_id" + suffix, num_buckets)
        return nvt.Workflow(([USER] >> StableHashBucket(9)) + item + history)

    return replace(AMAZON, graph=graph)


@pytest.mark.parametrize(
    ("suffix", "num_buckets", "message"),
    [("_pos", 40, "different ids in item_id_pos than in item_id_trgt"), ("_before", 50, r"but not \['item_id_pos'\]")],
)
def test_histories_of_other_ids_are_refused(
    raw: RawData, tmp_path: Path, suffix: str, num_buckets: int, message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        prepare(_hashed(suffix, num_buckets), raw, tmp_path / "prepared", PrepareConfig(), SEQUENCE)
    assert not list(tmp_path.iterdir())


def test_missing_column_of_interactions_is_named(raw: RawData, tmp_path: Path) -> None:
    renamed = replace(raw, rows=raw.rows.rename_columns([USER, "product"]))
    with pytest.raises(DataError, match=f"have no column '{ITEM}', expected by its histories.*'{USER}', 'product'"):
        prepare(AMAZON, renamed, tmp_path / "prepared", PrepareConfig(), SEQUENCE)
