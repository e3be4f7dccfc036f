from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from rankline.cli.data import convert_command
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.preprocess.prepared_data import KIND, PreparedData
from rankline.workflows.schema.feature_spec import Feature, FeatureSpec, Source
from rankline.workflows.storage.artifacts import publish


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.command(name="convert")(convert_command)
    return app


@pytest.fixture
def work_dir(tmp_path: Path) -> Path:
    spec = FeatureSpec(
        features=(Feature(name="age", dtype="float32"), Feature(name="label", dtype="float32")),
        channels={"continuous": ("age",), "label": ("label",)},
        sources={"train": Source(files=("train/a.parquet",), num_rows=10)},
    )
    with publish(tmp_path / "movielens" / "prepared", KIND) as staging:
        (staging / "train").mkdir()
        columns = {"age": np.arange(10, dtype=np.float32), "label": np.ones(10, np.float32)}
        pq.write_table(pa.table(columns), staging / "train" / "a.parquet")
        (staging / "feature_spec.yaml").write_text(spec.to_yaml())
    return tmp_path


def test_the_recipes_data_is_converted_in_place_and_back(app: typer.Typer, work_dir: Path) -> None:
    prepared = work_dir / "movielens" / "prepared"
    before = pq.read_table(prepared / "train" / "a.parquet")
    there = CliRunner().invoke(app, ["movielens", "--to", "tfrecord", "--prebatch", "4", "--work-dir", str(work_dir)])
    assert there.exit_code == 0, there.output
    assert "10 of 10 rows converted" in there.output
    source = PreparedData.load(prepared).spec.source("train")
    assert (source.type, source.files) == ("tfrecord", ("train/a.tfrecord",))
    back = CliRunner().invoke(app, ["movielens", "--to", "parquet", "--work-dir", str(work_dir)])
    assert back.exit_code == 0, back.output
    assert pq.read_table(prepared / "train" / "a.parquet") == before


def test_what_is_not_known_is_refused_by_name(app: typer.Typer, work_dir: Path) -> None:
    for arguments, message in (
        (["nothing", "--to", "tfrecord"], "no recipe 'nothing'"),
        (["movielens", "--to", "csv"], "'csv'. Available: parquet, tfrecord"),
    ):
        result = CliRunner().invoke(app, [*arguments, "--work-dir", str(work_dir)])
        assert isinstance(result.exception, ConfigError)
        assert message in str(result.exception)
