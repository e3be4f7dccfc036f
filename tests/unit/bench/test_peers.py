"""The peers of benchmarks: NVIDIA's DLRM, and which rows those of quality learn from."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.peers.native import feature_columns, hashed, make_dataset, num_buckets, peer
from bench.training import quality
from rankline.training.config.train import TrainConfig
from rankline.training.data.loader.tfrecord import write_tfrecords
from rankline.training.export.saved_model import split_at_features
from rankline.training.models.tabular import DLRMConfig
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.data.movielens.dataset import MOVIELENS
from rankline.workflows.preprocess.raw import RawData
from rankline.workflows.preprocess.splits import time_split
from rankline.workflows.schema.feature_spec import Feature, FeatureSpec, Source

CARDINALITIES = {"C1": 400, "C2": 40, "C3": 1}
NUM_ROWS, BATCH_SIZE = 4_000, 500
MODEL = DLRMConfig(bottom_mlp=(16,), embedding_dim=4, top_mlp=(32, 16))
CONFIG = TrainConfig(
    model=MODEL,
    optimizer="lazy_adam",
    learning_rate=0.03,
    batch_size=BATCH_SIZE,
)

Files = Callable[[bool], list[Path]]


@pytest.fixture(scope="module")
def spec() -> FeatureSpec:
    return FeatureSpec(
        features=(
            Feature(name="row", dtype="float32"),
            Feature(name="number", dtype="float32"),
            *(
                Feature(name=name, dtype="int64", cardinality=size, embedding_dim=4)
                for name, size in CARDINALITIES.items()
            ),
            Feature(name="label", dtype="float32"),
        ),
        channels={"continuous": ("row", "number"), "categorical": tuple(CARDINALITIES), "label": ("label",)},
        sources={"train": Source(files=("part.parquet",), num_rows=NUM_ROWS)},
    )


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    rng = np.random.default_rng(0)
    ids = {name: rng.integers(0, size, NUM_ROWS) for name, size in CARDINALITIES.items()}
    numbers = rng.standard_normal(NUM_ROWS).astype(np.float32)
    logit = 3 * np.sin(ids["C2"]) + numbers
    label = (rng.random(NUM_ROWS) < 1 / (1 + np.exp(-logit))).astype(np.float32)
    number_of_row = np.arange(NUM_ROWS, dtype=np.float32) / NUM_ROWS
    return pa.table({"row": number_of_row, "number": numbers, **ids, "label": label})


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, spec: FeatureSpec, rows: pa.Table) -> Files:
    path = tmp_path_factory.mktemp("native") / "part.parquet"
    pq.write_table(rows, path, row_group_size=1_000)
    records = write_tfrecords([path], spec, path.parent)
    return lambda accelerated: [path] if accelerated else records


def dataset(files: Files, spec: FeatureSpec, *, accelerated: bool) -> Any:
    columns = feature_columns(spec, MODEL, accelerated=accelerated)
    return make_dataset(files(accelerated), spec, columns, BATCH_SIZE, accelerated=accelerated)


def one_epoch(files: Files, spec: FeatureSpec, *, accelerated: bool) -> dict[str, Any]:
    """All columns in the order of the rows, whatever order they came in."""
    columns: dict[str, list[Any]] = {}
    for inputs, labels in dataset(files, spec, accelerated=accelerated):
        for name, tensor in (*inputs.items(), ("label", labels)):
            columns.setdefault(name, []).append(tensor.numpy()[:, 0])
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    order = np.argsort(joined["row"])
    assert not np.array_equal(order, np.arange(NUM_ROWS))  # they are shuffled
    return {name: values[order] for name, values in joined.items()}


def tables(model: Any) -> list[Any]:
    return [variable for layer in split_at_features(model)[0] for variable in layer.trainable_variables]


def others(model: Any) -> list[Any]:
    head: list[Any] = split_at_features(model)[1].trainable_variables
    return head


def column_of(table: Any) -> str:
    return next(name for name in CARDINALITIES if f"{name}_embedding" in table.name)


def test_pipelines_yield_each_row_once_and_only_the_accelerated_one_hashes(
    files: Files, spec: FeatureSpec, rows: pa.Table
) -> None:
    native, accelerated = (one_epoch(files, spec, accelerated=side) for side in (False, True))
    assert native.keys() == accelerated.keys() == set(rows.column_names)
    for name in ("row", "number", "label"):
        assert np.array_equal(native[name], rows[name].to_numpy())
        assert np.array_equal(accelerated[name], rows[name].to_numpy())
    for name, size in CARDINALITIES.items():
        assert np.array_equal(native[name], rows[name].to_numpy())
        pairs = set(zip(native[name].tolist(), accelerated[name].tolist(), strict=True))
        assert len(pairs) == len(set(native[name].tolist()))  # an id has one bucket, wherever it stands
        assert {bucket for _, bucket in pairs} <= set(range(num_buckets(size)))
    assert len(set(accelerated["C1"].tolist())) > 100  # and the buckets are used
    assert [feature.cardinality for feature in hashed(spec).categorical] == [300, 30, 1]


def test_native_and_accelerated_peers_agree_on_the_same_vectors(spec: FeatureSpec) -> None:
    native, accelerated = (peer(CONFIG, accelerated=side).model.build(spec, CONFIG) for side in (False, True))
    vectors = dict(zip(CARDINALITIES, np.random.default_rng(1).standard_normal((3, 4)), strict=True))
    for table in tables(native):
        table.assign(np.tile(vectors[column_of(table)], (table.shape[0], 1)))
    (fused,) = tables(accelerated)  # the columns' tables one below the other
    fused.assign(np.repeat(list(vectors.values()), [num_buckets(size) for size in CARDINALITIES.values()], axis=0))
    for ours, theirs in zip(others(accelerated), others(native), strict=True):
        ours.assign(theirs)
    assert native.count_params() == accelerated.count_params()
    inputs = {name: np.zeros((5, 1), np.int64) for name in CARDINALITIES}
    inputs |= {name: np.random.default_rng(2).random((5, 1), np.float32) for name in ("row", "number")}
    assert native(inputs).numpy() == pytest.approx(accelerated(inputs).numpy(), abs=1e-5)


def interactions(users: list[int], items: list[int], liked: list[bool]) -> quality.Interactions:
    return quality.Interactions(
        users=np.array(users), items=np.array(items), liked=np.array(liked), position=np.zeros(4), shape=(4, 60)
    )


def test_items_rated_before_are_not_ranked_and_later_likes_are_relevant() -> None:
    rows = interactions([0, 0, 1, 2], [0, 1, 2, 3], [True, False, True, True])
    later = interactions([0, 0, 1, 3], [5, 6, 7, 8], [True, False, True, True])
    assert rows.chosen().toarray().nonzero()[1].tolist() == [0, 2, 3]
    scores = np.arange(60.0)[::-1]  # item 0 first: user 0 has 2, 3, 4 and then 5 before it; user 1 has 7 in place seven
    figures = rows.measure(later, lambda _: scores)
    assert figures["users"] == 2  # 2 likes nothing later, and 3 has rated nothing before
    assert figures["recall_at_20"] == 1
    assert figures["ndcg_at_20"] == pytest.approx((1 / np.log2(5) + 1 / np.log2(8)) / 2)


def test_position_split_validates_on_each_users_latest_rows() -> None:
    users, times = [7, 7, 9, 7, 9, 7, 7, 9, 9, 9], [5, 1, 900, 3, 800, 2, 4, 600, 500, 700]
    rows = pa.table({"userId": users, "timestamp": times})
    dataset = replace(MOVIELENS, read=lambda _: RawData(rows=rows, catalog=None, fingerprint="f"))
    by_position = quality.by_position(dataset)
    positions = by_position.read(Path()).rows[str(by_position.time)].to_numpy()
    _, valid = time_split(positions, 0.2)
    assert sorted(valid.tolist()) == [0, 2]


def test_recipe_without_user_item_and_time_is_rejected() -> None:
    with pytest.raises(ConfigError, match="recipe 'criteo-dlrm' does not have rows of a user, an item and a time"):
        quality.run(1, recipe="criteo-dlrm")
