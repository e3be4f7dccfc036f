from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankline.training.config.train import TrainConfig
from rankline.training.data.convert import convert
from rankline.training.data.loader.tfrecord import rows_per_record
from rankline.training.models.tabular import MLPConfig
from rankline.training.run.train import train
from rankline.training.tracking import TrackingConfig
from rankline.workflows.core.errors import ConfigError, DataError
from rankline.workflows.preprocess.prepared_data import KIND, PreparedData
from rankline.workflows.schema.feature_spec import FeatureSpec
from rankline.workflows.storage.artifacts import Manifest, load_manifest
from tests.factories.recorders import ProgressRecord


def tables(data: PreparedData) -> dict[str, pa.Table]:
    return {
        split: pa.concat_tables([pq.read_table(data.path / name) for name in source.files])
        for split, source in data.spec.sources.items()
    }


def test_convert_changes_only_the_splits(tmp_path: Path, prepared: Path) -> None:
    old = PreparedData.load(prepared)
    new = convert(prepared, tmp_path / "new", "tfrecord", prebatch=16, prebatch_valid=4)
    assert {source.type for source in new.spec.sources.values()} == {"tfrecord"}
    assert new.spec.source("train").files == ("train/part_0.tfrecord", "train/part_1.tfrecord")
    assert new.spec.source("train").num_rows == 4000
    assert new.spec == replace(old.spec, sources=new.spec.sources)
    kept = {name: record for name, record in old.manifest.files.items() if name.startswith("workflow/")}
    assert kept.items() <= new.manifest.files.items()
    assert not list(new.path.rglob("*.parquet"))
    assert new.manifest.made_from[KIND] == old.manifest.fingerprint != new.manifest.fingerprint
    assert new.manifest.details["converted"] == {"to": "tfrecord", "prebatch": 16, "prebatch_valid": 4}
    assert {
        split: rows_per_record([new.path / name for name in source.files], new.spec.label)
        for split, source in new.spec.sources.items()
    } == {"train": 16, "valid": 4}
    assert new.encoded(10) is None


@pytest.mark.parametrize("prebatch", [1, 64])
def test_back_again_the_rows_are_the_same(tmp_path: Path, prepared: Path, prebatch: int) -> None:
    there = convert(prepared, tmp_path / "data", "tfrecord", prebatch=prebatch)
    back = convert(there.path, there.path, "parquet")  # in place
    assert back.spec == FeatureSpec.read(prepared)
    assert tables(back) == tables(PreparedData.load(prepared))
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_progress_covers_all_rows_once(tmp_path: Path, prepared: Path) -> None:
    for source, to in ((prepared, "tfrecord"), (tmp_path / "tfrecord", "parquet")):
        progress = ProgressRecord()
        convert(source, tmp_path / to, to, progress=progress)
        done = [report[0] for report in progress.reports]
        assert done == sorted(done)
        assert len(set(done)) >= 4  # files
        assert progress.reports[-1] == (5000, 5000, "5,000 of 5,000 rows converted")


def test_rows_that_do_not_fit_the_spec_leave_the_old_data(tmp_path: Path, new_prepared: Any) -> None:
    def unknown_movie(table: pa.Table) -> pa.Table:
        ids = table["movieId"].to_numpy().copy()
        ids[-1] = 1000
        return table.set_column(table.schema.get_field_index("movieId"), "movieId", pa.array(ids))

    data = new_prepared(tmp_path / "prepared", num_train=40, num_valid=40, change=unknown_movie)
    before = Manifest.read(data)
    with pytest.raises(DataError, match=r"part_1\.parquet.*'movieId'.*1000"):
        convert(data, data, "tfrecord")
    assert load_manifest(data, KIND) == before
    assert [path.name for path in tmp_path.iterdir()] == ["prepared"]


@pytest.mark.slow
def test_model_trains_on_tfrecord(tmp_path: Path, prepared: Path, work: Path) -> None:
    config = TrainConfig(
        model=MLPConfig(hidden=(8,)), epochs=1, batch_size=250, learning_rate=0.01, early_stopping_patience=0
    )
    data = convert(prepared, tmp_path / "data", "tfrecord", prebatch=64)
    tracking = TrackingConfig(directory=work, experiment="convert")
    trained = train(data.path, tmp_path / "model", config, tracking=tracking)
    assert trained.manifest.made_from == {KIND: data.manifest.fingerprint}
    assert trained.metrics["valid_auc"] > 0.7


@pytest.mark.parametrize(
    ("to", "prebatch", "message"),
    [
        ("csv", 1, "'csv'. Available: parquet, tfrecord"),
        ("tfrecord", 0, "prebatch is 0"),
        ("parquet", 8, "prebatch is 8"),
        ("parquet", 1, "already contains parquet"),
    ],
)
def test_convert_refuses_impossible_choices(
    tmp_path: Path, prepared: Path, to: str, prebatch: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        convert(prepared, tmp_path / "new", to, prebatch=prebatch)
    assert not (tmp_path / "new").exists()
