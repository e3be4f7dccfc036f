"""Options that the loaders of both formats have: `rankline.training.data.open_split.Reading`."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankline.training.data.loader.stream import BatchStream
from rankline.training.data.loader.tfrecord import rows_per_record, write_tfrecords
from rankline.training.data.open_split import tensorflow_loader
from rankline.workflows.core.errors import ConfigError, DataError
from rankline.workflows.schema.feature_spec import FeatureSpec, Source

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
def test_without_the_last_batch_all_are_full_and_no_other_row_is_lost(
    data: tuple[Path, FeatureSpec], shuffle: bool
) -> None:
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


def test_rows_that_fill_no_batch_are_told_so(data: tuple[Path, FeatureSpec]) -> None:
    with pytest.raises(DataError, match="no batch of 4,001 rows in the train data, which has 4,000. Take smaller"):
        tensorflow_loader(*data, "train", NUM_ROWS + 1, shuffle=True, seed=0, drop_last=True)


@pytest.mark.parametrize("options", [{"prefetch": 0}, {"prefetch": 1, "num_threads": 1}, {"prefetch": 40}])
def test_how_far_ahead_and_with_how_many_threads_does_not_change_the_rows(
    data: tuple[Path, FeatureSpec], options: dict[str, Any]
) -> None:
    usual, other = (
        tensorflow_loader(*data, "train", 300, shuffle=True, seed=3, **more)  # type: ignore[arg-type]
        for more in ({}, options)
    )
    assert ages(other) == ages(usual)


@pytest.mark.parametrize("option", [{"prefetch": -1}, {"num_threads": 0}])
def test_options_that_no_loader_takes_are_refused(data: tuple[Path, FeatureSpec], option: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(option))} is .*, expected a whole number of at least"):
        len(tensorflow_loader(*data, "train", 300, shuffle=True, seed=0, **option))  # type: ignore[arg-type]


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_no_more_batches_are_made_than_are_asked_for_ahead(tmp_path: Path, prefetch: int) -> None:
    path, batch_size = tmp_path / "rows.parquet", 1 << 15
    pq.write_table(pa.table({"row": np.arange(8 * batch_size)}), path, row_group_size=batch_size)
    stream = BatchStream(path, ["row"], batch_size=batch_size, shuffle=False, prefetch=prefetch, num_threads=1)
    made: list[int] = []
    batches = stream.made(lambda batch: made.append(int(batch["row"][0])))
    next(batches)
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("rankline-loader")]
    assert len(threads) == 1
    batches.close()
    assert 1 <= len(made) <= 1 + prefetch


@pytest.mark.parametrize("prebatch", [1, 7, 5000])
def test_files_tell_how_many_rows_a_record_has(
    prepared: Path, spec: FeatureSpec, tmp_path: Path, prebatch: int
) -> None:
    files = [prepared / name for name in FeatureSpec.read(prepared).source("train").files]
    written = write_tfrecords(files, spec, tmp_path, prebatch=prebatch)
    assert rows_per_record(written, spec.label) == min(prebatch, NUM_ROWS // 2)  # of each of the two files
