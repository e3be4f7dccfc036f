"""Options that the loaders of both formats have: see `tensorflow_loader`."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rankline.training.data.loader.tensorflow import KerasSequenceLoader
from rankline.training.data.loader.tfrecord import TFRecordLoader, write_tfrecords
from rankline.training.data.open_split import check_parquet, first_rows, tensorflow_loader
from rankline.workflows.core.errors import ConfigError, DataError, SpecError
from rankline.workflows.schema.feature_spec import FeatureSpec, Source
from rankline.workflows.schema.ragged import Ragged
from tests.factories.training.heads import HEADS, spec_of


@pytest.fixture(scope="module")
def both(prepared: Path, tmp_path_factory: Any) -> tuple[Path, FeatureSpec]:
    """Training data in TFRecord beside validation data in Parquet."""
    spec = FeatureSpec.read(prepared)
    directory = tmp_path_factory.mktemp("both")
    (directory / "valid").symlink_to(prepared / "valid")
    files = [prepared / name for name in spec.source("train").files]
    written = write_tfrecords(files, spec, directory / "train", prebatch=100)
    train = Source(files=tuple(f"train/{path.name}" for path in written), num_rows=4000, type="tfrecord")
    return directory, replace(spec, sources={**spec.sources, "train": train})


@pytest.mark.parametrize(
    ("split", "kind", "num_rows"), [("train", TFRecordLoader, 4000), ("valid", KerasSequenceLoader, 1000)]
)
def test_split_is_opened_by_its_type(both: tuple[Path, FeatureSpec], split: str, kind: type, num_rows: int) -> None:
    loader = tensorflow_loader(*both, split, 300, shuffle=True, seed=1)
    assert isinstance(loader, kind)
    assert loader.num_rows == num_rows
    batches = list(loader)
    assert len(batches) == len(loader) == -(-num_rows // 300)
    assert sum(labels.shape[0] for _, labels in batches) == num_rows
    assert list(batches[0][0]) == ["userId", "movieId", "genres__values", "genres__nnzs", "age"]


def test_several_workers_share_the_rows_of_a_split_in_as_many_batches_each(both: tuple[Path, FeatureSpec]) -> None:
    shares = [
        tensorflow_loader(*both, "valid", 100, shuffle=False, seed=0, global_rank=rank, global_size=3)
        for rank in range(3)
    ]
    assert {len(share) for share in shares} == {4}
    users = [np.concatenate([inputs["userId"].numpy() for inputs, _ in share]) for share in shares]
    (inputs, _), *_ = tensorflow_loader(*both, "valid", 1000, shuffle=False, seed=0)
    np.testing.assert_array_equal(np.concatenate(users), inputs["userId"].numpy())
    with pytest.raises(ConfigError, match="tfrecord, but a run with several workers reads only parquet"):
        tensorflow_loader(*both, "train", 100, shuffle=True, seed=0, global_rank=1, global_size=3)


def test_split_without_rows_or_files_is_refused(both: tuple[Path, FeatureSpec]) -> None:
    directory, spec = both
    (directory / "none.tfrecord").touch()
    empty = replace(spec, sources={"train": Source(files=("none.tfrecord",), num_rows=0, type="tfrecord")})
    with pytest.raises(DataError, match="the train data in .* has no rows"):
        tensorflow_loader(directory, empty, "train", 10, shuffle=False, seed=0)
    with pytest.raises(SpecError, match="unknown split 'test'"):
        tensorflow_loader(directory, spec, "test", 10, shuffle=False, seed=0)


def test_reader_of_parquet_refuses_tfrecord_with_the_way_back(both: tuple[Path, FeatureSpec]) -> None:
    _, spec = both
    with pytest.raises(
        ConfigError, match="the train data is tfrecord, but a torch model reads only parquet.*--to parq"
    ):
        check_parquet(spec, reader="a torch model")
    check_parquet(replace(spec, sources={"valid": spec.source("valid")}), reader="a torch model")


def test_tfrecord_is_refused_where_there_are_several_labels(both: tuple[Path, FeatureSpec]) -> None:
    directory, spec = both
    several = spec_of(HEADS, dict(spec.sources))
    with pytest.raises(ConfigError, match="tfrecord, but a model with several labels reads only parquet"):
        tensorflow_loader(directory, several, "train", 10, shuffle=False, seed=0)


def test_first_rows_are_the_same_in_each_format(both: tuple[Path, FeatureSpec], prepared: Path) -> None:
    ours, theirs = first_rows(*both, "train", 5), first_rows(prepared, FeatureSpec.read(prepared), "train", 5)
    assert list(ours) == list(theirs) == ["userId", "movieId", "genres", "age"]
    for name in ("userId", "movieId", "age"):
        np.testing.assert_array_equal(ours[name], theirs[name])
    our_lists, their_lists = ours["genres"], theirs["genres"]
    assert isinstance(our_lists, Ragged)
    assert isinstance(their_lists, Ragged)
    np.testing.assert_array_equal(our_lists.values, their_lists.values)
    np.testing.assert_array_equal(our_lists.lengths, their_lists.lengths)


def test_spec_says_what_stands_for_missing_values(new_prepared: Any, tmp_path: Path) -> None:
    def without_ages(rows: pa.Table) -> pa.Table:
        return rows.set_column(rows.column_names.index("age"), "age", pa.nulls(len(rows), pa.float32()))

    prepared = new_prepared(tmp_path / "prepared", num_train=600, num_valid=600, change=without_ages)
    spec = FeatureSpec.read(prepared)
    with pytest.raises(DataError, match=r"column 'age' contains 100 nulls"):
        list(tensorflow_loader(prepared, spec, "train", 300, shuffle=False, seed=0))
    filled = replace(spec, features=tuple(replace(f, null_fill=0.5) if f.name == "age" else f for f in spec.features))
    for inputs, _ in tensorflow_loader(prepared, filled, "train", 300, shuffle=True, seed=0):
        assert (inputs["age"].numpy() == 0.5).all()
    assert first_rows(prepared, filled, "train", 2)["age"].tolist() == [0.5, 0.5]  # type: ignore[union-attr]


NUM_ROWS = 4000


@pytest.fixture(scope="module", params=["parquet", "tfrecord", "prebatched"])
def data(request: pytest.FixtureRequest, prepared: Path, tmp_path_factory: Any) -> tuple[Path, FeatureSpec]:
    """The training rows in a format."""
    spec = FeatureSpec.read(prepared)
    if request.param == "parquet":
        return prepared, spec
    directory, prebatch = tmp_path_factory.mktemp("records"), 7 if request.param == "prebatched" else 1
    files = [prepared / name for name in spec.source("train").files]
    names = tuple(path.name for path in write_tfrecords(files, spec, directory, prebatch=prebatch))
    source = Source(files=names, num_rows=NUM_ROWS, type="tfrecord")
    return directory, replace(spec, sources={"train": source})


def ages(batches: Any) -> list[float]:
    """What tells the rows apart."""
    return [age for inputs, _ in batches for age in inputs["age"].numpy()[:, 0].tolist()]


@pytest.mark.parametrize("shuffle", [False, True])
def test_drop_last_leaves_full_batches_and_loses_no_other_row(data: tuple[Path, FeatureSpec], shuffle: bool) -> None:
    whole = tensorflow_loader(*data, "train", 600, shuffle=False, seed=0)
    loader = tensorflow_loader(*data, "train", 600, shuffle=shuffle, seed=0, drop_last=True)
    assert (loader.num_rows, len(loader)) == (3600, 6)
    for _ in range(2):
        batches = list(loader)
        assert [labels.shape[0] for _, labels in batches] == [600] * 6
        rows = ages(batches)
        if shuffle:
            assert len(set(rows) & set(ages(whole))) == len(set(rows)) > 3500
        else:
            assert rows == ages(whole)[:3600]


def test_rows_fewer_than_a_batch_raise_an_error(data: tuple[Path, FeatureSpec]) -> None:
    with pytest.raises(DataError, match="the train data has 4,000 rows, fewer than one batch of 4,001. Use smaller"):
        tensorflow_loader(*data, "train", NUM_ROWS + 1, shuffle=True, seed=0, drop_last=True)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"prefetch": 0}, {"prefetch": 1, "num_threads": 1}, {"prefetch": 40}])
def test_prefetch_and_threads_do_not_change_rows(data: tuple[Path, FeatureSpec], options: dict[str, Any]) -> None:
    usual, other = (
        tensorflow_loader(*data, "train", 300, shuffle=True, seed=3, **more)  # type: ignore[arg-type]
        for more in ({}, options)
    )
    assert ages(other) == ages(usual)


@pytest.mark.parametrize("option", [{"prefetch": -1}, {"num_threads": 0}])
def test_options_that_no_loader_takes_are_refused(data: tuple[Path, FeatureSpec], option: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(option))} is .*, expected an integer of at least"):
        len(tensorflow_loader(*data, "train", 300, shuffle=True, seed=0, **option))  # type: ignore[arg-type]
