import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankline.workflows.core.errors import ArtifactError, ConfigError, DataError, SpecError
from rankline.workflows.core.progress import SILENT
from rankline.workflows.data.movielens.dataset import MOVIELENS
from rankline.workflows.nvt.compat import nvt, ops, quiet_nvtabular
from rankline.workflows.preprocess import RowsConfig, SequenceConfig
from rankline.workflows.preprocess.config import PrepareConfig
from rankline.workflows.preprocess.dataset import Dataset
from rankline.workflows.preprocess.prepare import prepare as prepare_rows
from rankline.workflows.preprocess.prepared_data import KIND, PreparedData, write_spec
from rankline.workflows.preprocess.raw import RawData
from rankline.workflows.schema.targets import MULTICLASS, REGRESSION, Head
from rankline.workflows.storage.artifacts import publish
from tests.factories.recorders import ProgressRecord

prepare = partial(prepare_rows, source="generated")


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> RawData:
    directory = tmp_path_factory.mktemp("raw")
    MOVIELENS.generate(directory, num_rows=9_000, seed=3, cardinality_scale=1.0, progress=SILENT)
    return MOVIELENS.read(directory)


@pytest.fixture(scope="module")
def progress() -> ProgressRecord:
    """What was told while the data of `prepared` were made."""
    return ProgressRecord()


@pytest.fixture(scope="module")
def prepared(raw: RawData, tmp_path_factory: pytest.TempPathFactory, progress: ProgressRecord) -> PreparedData:
    return prepare(MOVIELENS, raw, tmp_path_factory.mktemp("work") / "prepared", best_auc=0.8, progress=progress)


@pytest.fixture
def copied(prepared: PreparedData, tmp_path: Path) -> PreparedData:
    """The same data, for a test that changes them."""
    return PreparedData.load(shutil.copytree(prepared.path, tmp_path / "prepared"))


def split(prepared: PreparedData, name: str) -> pd.DataFrame:
    files = [prepared.path / file for file in prepared.spec.source(name).files]
    return pd.concat([pd.read_parquet(file) for file in files], ignore_index=True)


def test_last_fifth_of_the_seeded_permutation_validates_in_its_order(prepared: PreparedData, raw: RawData) -> None:
    order = np.random.default_rng(42).permutation(len(raw.rows))
    expected = raw.rows.take(pa.array(order[-len(raw.rows) // 5 :]))
    heldout = prepared.heldout()
    assert heldout["userId"].to_pylist() == expected["userId"].to_pylist()
    assert heldout["rating"].to_pylist() == [float(r > 3) for r in expected["rating"].to_pylist()]
    assert split(prepared, "valid")["rating"].tolist() == heldout["rating"].to_pylist()


def test_saved_workflow_encodes_heldout_rows_as_the_files_have_them(prepared: PreparedData) -> None:
    with quiet_nvtabular():
        encoded = prepared.workflow().transform(prepared.heldout().to_pandas())
    valid = split(prepared, "valid")
    assert encoded["userId"].tolist() == valid["userId"].tolist()
    assert encoded["movieId"].tolist() == valid["movieId"].tolist()
    assert [list(v) for v in encoded["genres"]] == [list(v) for v in valid["genres"]]


def test_spec_says_what_the_files_hold(prepared: PreparedData) -> None:
    train = split(prepared, "train")
    for feature in prepared.spec.categorical:
        values = np.concatenate(train[feature.name]) if feature.is_list else train[feature.name].to_numpy()
        assert feature.cardinality is not None
        assert 1 <= values.min() <= values.max() == feature.cardinality - 1
        if feature.is_list:
            assert feature.max_length == train[feature.name].map(len).max()
    assert [f.name for f in prepared.spec.categorical] == ["userId", "movieId", "genres"]
    assert prepared.spec.label.name == "rating"
    assert prepared.spec.metadata.best_auc == 0.8
    assert prepared.inputs == ("userId", "movieId")


@pytest.mark.slow
def test_rows_of_many_partitions_become_more_files(prepared: PreparedData, raw: RawData, tmp_path: Path) -> None:
    again = prepare(MOVIELENS, raw, tmp_path / "prepared", best_auc=0.8, partition_rows=100)
    files = [pq.ParquetFile(again.path / file).metadata for file in again.spec.source("train").files]
    assert [file.num_rows for file in files] == [1440] * 5
    assert {file.row_group(number).num_rows for file in files for number in range(file.num_row_groups)} == {50, 40}
    for name in ("train", "valid"):
        pd.testing.assert_frame_equal(split(again, name), split(prepared, name))
    assert again.heldout().equals(prepared.heldout())


def test_rare_and_unseen_ids_go_to_the_hash_buckets(raw: RawData, tmp_path: Path) -> None:
    config = PrepareConfig(frequency_threshold=5, hash_buckets=7)
    prepared = prepare(MOVIELENS, raw, tmp_path / "prepared", config)
    _, counts = np.unique(_raw_ids(raw, "train"), return_counts=True)
    ids = split(prepared, "train")["movieId"].to_numpy()
    assert ((ids >= 2) & (ids < 9)).sum() == counts[counts < 5].sum()
    assert prepared.spec["movieId"].cardinality == 2 + 7 + (counts >= 5).sum()


def test_rating_of_an_unknown_movie_is_kept_without_genres(raw: RawData, tmp_path: Path) -> None:
    unknown = raw.catalog["movieId"][0].as_py()
    catalog = raw.catalog.slice(1)
    prepared = prepare(MOVIELENS, replace(raw, catalog=catalog), tmp_path / "prepared")
    rows = np.concatenate([_raw_ids(raw, "train"), _raw_ids(raw, "valid")])
    encoded = pd.concat([split(prepared, "train"), split(prepared, "valid")], ignore_index=True)
    genres = encoded["genres"][rows == unknown]
    assert len(encoded) == len(raw.rows)
    assert len(genres) > 0
    assert (genres.map(len) == 0).all()


def _raw_ids(raw: RawData, name: str) -> "np.ndarray":  # type: ignore[type-arg]
    order = np.random.default_rng(42).permutation(len(raw.rows))
    rows = order[:7_200] if name == "train" else order[7_200:]
    return raw.rows["movieId"].to_numpy()[rows]  # type: ignore[no-any-return]


def test_single_class_labels_are_rejected_and_keep_the_old_artifact(
    copied: PreparedData, raw: RawData, tmp_path: Path
) -> None:
    rows = raw.rows.set_column(2, "rating", pa.array(np.full(len(raw.rows), 5, np.float32)))
    with pytest.raises(DataError, match=r"every label in the train split is 1\.0.*both classes"):
        prepare(MOVIELENS, replace(raw, rows=rows), copied.path)
    assert PreparedData.load(copied.path).manifest == copied.manifest
    assert [path.name for path in tmp_path.iterdir()] == ["prepared"]


@pytest.mark.parametrize(
    ("labels", "named"), [([1, 2, 3, 4, 5], r"2\.0, 3\.0, 4\.0, …"), ([0, 1, 1, 0, None], "missing|nan")]
)
def test_labels_other_than_0_and_1_are_refused(
    raw: RawData, tmp_path: Path, labels: list[float | None], named: str
) -> None:
    few = raw.rows.slice(0, 100)
    rows = few.set_column(2, "rating", pa.array(labels * 20, pa.float32()))
    ungraded = replace(
        MOVIELENS, graph=lambda *_: nvt.Workflow((["userId", "movieId"] >> ops.Categorify()) + ["rating"])
    )
    with pytest.raises(DataError, match=rf"the label 'rating' is ({named}) in some rows, expected 0 or 1.*GreaterThan"):
        prepare(ungraded, replace(raw, rows=rows), tmp_path / "prepared")
    assert not list(tmp_path.iterdir())


def test_graph_without_the_label_is_refused(raw: RawData, tmp_path: Path) -> None:
    unlabelled = replace(MOVIELENS, graph=lambda *_: nvt.Workflow(["userId", "movieId"] >> ops.Categorify()))
    with pytest.raises(ConfigError, match="the workflow does not output the label 'rating'"):
        prepare(unlabelled, raw, tmp_path / "prepared")


def test_truncated_parquet_is_found_on_loading(copied: PreparedData) -> None:
    damaged = copied.path / "train" / "part-001.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    with pytest.raises(ArtifactError, match=r"part-001\.parquet has \d+ bytes, expected \d+"):
        PreparedData.load(copied.path)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"split": "shuffle"}, "split is 'shuffle'. Available: random, time"),
        ({"valid_share": 1.0}, r"valid_share is 1\.0, expected a share between 0 and 1"),
        ({"frequency_threshold": -1}, "frequency_threshold is -1, expected an integer of at least 0"),
    ],
)
def test_choice_out_of_range_is_refused(choice: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        (PrepareConfig if "frequency_threshold" in choice else RowsConfig)(**choice)  # type: ignore[arg-type]


def test_options_of_another_kind_of_data_are_refused(raw: RawData, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="movielens expects RowsConfig, got SequenceConfig, because its rows are not encoded"
    ):
        prepare(MOVIELENS, raw, tmp_path / "prepared", encoding=SequenceConfig(negatives=4))
    assert not list(tmp_path.iterdir())


def test_several_labels_each_have_a_task_and_one_may_be_missing(raw: RawData, tmp_path: Path) -> None:
    graded = raw.rows.slice(0, 400)
    liked = [None if number % 3 == 0 else float(number % 2) for number in range(len(graded))]
    rows = graded.append_column("liked", pa.array(liked, pa.float32()))
    both = replace(
        MOVIELENS,
        graph=lambda *_: nvt.Workflow((["userId", "movieId"] >> ops.Categorify()) + ["rating", "liked"]),
        heads=(Head("rating", REGRESSION), Head("liked", weight=2.0)),
    )
    spec = prepare(both, replace(raw, rows=rows), tmp_path / "p").spec
    stars = pq.read_table(tmp_path / "p/train")["rating"].to_numpy()
    rating, second = spec.heads
    assert (rating.mean, rating.deviation) == pytest.approx((stars.mean(), stars.std()))
    assert second == Head("liked", weight=2.0)
    assert [label.name for label in spec.labels] == ["rating", "liked"]
    assert [feature.name for feature in spec.continuous] == []
    assert set(pq.read_table(tmp_path / "p/heldout").column_names) == {"userId", "movieId", "rating", "liked"}


def test_targets_are_encoded_by_folds_in_training_rows(raw: RawData, tmp_path: Path) -> None:
    targets = ["movieId"] >> ops.TargetEncoding("rating", kfold=3, p_smooth=10, out_dtype="float32")
    likes = replace(
        MOVIELENS,
        graph=lambda *_: nvt.Workflow(targets + (["movieId"] >> ops.Categorify()) + ["rating"]),
        heads=(Head("rating", REGRESSION),),
    )
    prepared = prepare(likes, raw, tmp_path / "p")
    train, valid = (split(prepared, name) for name in ("train", "valid"))
    encoded = [rows.groupby("movieId")["TE_movieId_rating"].nunique().max() for rows in (train, valid)]
    assert encoded == [3, 1]
    movie = train["movieId"].mode()[0]
    ratings = train["rating"][train["movieId"] == movie]
    smoothed = (ratings.sum() + 10 * train["rating"].mean()) / (len(ratings) + 10)
    assert valid["TE_movieId_rating"][valid["movieId"] == movie].iloc[0] == pytest.approx(smoothed, rel=1e-6)


def test_target_encoding_excludes_each_rows_own_target(tmp_path: Path) -> None:
    rows = pa.table({"pair": np.arange(4_000) // 2, "y": np.arange(4_000, dtype=np.float32) ** 2})
    dataset = Dataset(
        name="pairs",
        read=lambda _: raw,
        graph=lambda *_: nvt.Workflow((["pair"] >> ops.TargetEncoding("y", kfold=3, p_smooth=0)) + ["pair", "y"]),
        inputs=("pair",),
        heads=(Head("y", REGRESSION),),
    )
    raw = RawData(rows=rows, fingerprint="pairs")
    train = split(prepare(dataset, raw, tmp_path / "p", partition_rows=700), "train")
    other = train.groupby("pair")["y"].transform("sum") - train["y"]
    is_other, is_own = (np.isclose(train["TE_pair_y"], target) for target in (other, train["y"]))
    assert is_other[train["pair"].duplicated(keep=False)].mean() > 0.5  # else both are in one fold
    assert not is_own.any()


def test_unencoded_text_names_its_column(tmp_path: Path) -> None:
    rows = pa.table({"k": [1, 2] * 50, "kind": ["sun", "rain"] * 50})
    dataset = Dataset(
        name="kinds",
        read=lambda _: raw,
        graph=lambda *_: nvt.Workflow((["k"] >> ops.Categorify()) + ["kind"]),
        inputs=("k",),
        heads=(Head("kind", MULTICLASS, ("sun", "rain")),),
    )
    raw = RawData(rows=rows, fingerprint="kinds")
    with pytest.raises(
        SpecError, match=r"the graph returns text in column 'kind', .*; encode a class as its index in `classes`"
    ):
        prepare(dataset, raw, tmp_path / "p")


def test_data_whose_rows_were_to_be_encoded_in_training_are_refused(raw: RawData, tmp_path: Path) -> None:
    made = prepare(MOVIELENS, replace(raw, rows=raw.rows.slice(0, 400)), tmp_path / "p")
    online = replace(made.spec, metadata=replace(made.spec.metadata, online=True))
    with publish(tmp_path / "p", KIND) as directory:
        shutil.copytree(made.path, directory, dirs_exist_ok=True, ignore=shutil.ignore_patterns("manifest.json"))
        write_spec(online, directory)
    with pytest.raises(ArtifactError, match="contains raw rows, .*run rankline prepare"):
        PreparedData.load(tmp_path / "p")


@pytest.mark.parametrize(
    ("lacking", "encoding", "part"),
    [
        ("movieId", RowsConfig(), "inputs"),
        ("rating", RowsConfig(), "graph"),
        ("timestamp", RowsConfig(split="time"), "split by time"),
    ],
)
def test_missing_column_is_named_with_the_columns_that_exist(
    raw: RawData, tmp_path: Path, lacking: str, encoding: RowsConfig, part: str
) -> None:
    rows = raw.rows.drop_columns([lacking]).append_column("cost", raw.rows["rating"])
    with pytest.raises(DataError) as refused:
        prepare(MOVIELENS, replace(raw, rows=rows), tmp_path / "p", encoding=encoding)
    found = ", ".join(map(repr, rows.column_names))
    assert str(refused.value) == (
        f"the rows of movielens have no column '{lacking}', expected by its {part}. Their columns are {found}. Rename "
        "columns in the files, or change the dataset."
    )
    assert not list(tmp_path.iterdir())


def test_graph_that_is_no_workflow_is_refused(raw: RawData, tmp_path: Path) -> None:
    node = replace(MOVIELENS, graph=lambda *_: ["userId"] >> ops.Categorify())
    with pytest.raises(ConfigError, match=r"`graph` of dataset movielens returns Node, expected nvt\.Workflow"):
        prepare(node, raw, tmp_path / "p")


def test_reader_that_returns_something_else_is_refused(raw: RawData, tmp_path: Path) -> None:
    assert replace(MOVIELENS, read=lambda _: raw).raw_data(tmp_path) is raw
    with pytest.raises(ConfigError, match=r"`read` of dataset movielens returns Table, expected RawData\. Return"):
        replace(MOVIELENS, read=lambda _: raw.rows).raw_data(tmp_path)
    frame = replace(raw, rows=raw.rows.slice(0, 9).to_pandas())
    with pytest.raises(ConfigError, match=r"returns rows as DataFrame, expected pyarrow\.Table or StreamedRows"):
        replace(MOVIELENS, read=lambda _: frame).raw_data(tmp_path)
