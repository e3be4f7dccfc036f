"""What was prepared, trained and exported with the packages of 2023: made again, loaded, and asked."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from serving.client import Client
from serving.ensemble import ExportedEnsemble
from serving.export import export_ensemble
from serving.export_config import ExportConfig
from serving.server import EmbeddedServer, ServerConfig
from tests.support.golden.files import HAS_FMA, MADE_WITH, NO_FMA, read_json, unpack
from tests.support.golden.models import MODELS, scores
from tests.support.golden.prepares import PREPARES, generate, prepare_raw, tables_of
from tests.support.golden.tables import read_table, steps_apart
from tests.support.rounding import SCORE_ROUNDING
from training.checkpoints import checkpoint_path
from training.config import SessionConfig
from training.tracking import TrackingConfig
from training.train import train
from workflows.prepared import HISTORIES, PreparedData
from workflows.tensor_names import SCORE
from workflows.trained import TrainedModel

ENSEMBLES = {f"{name}_{engine}": name for name, model in MODELS.items() for engine in model.engines}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("golden"))


@pytest.fixture(scope="module")
def tracking(tmp_path_factory: pytest.TempPathFactory) -> TrackingConfig:
    return TrackingConfig(directory=tmp_path_factory.mktemp("runs"), experiment="golden")


def data_of(files: Path, name: str) -> PreparedData:
    return PreparedData.load(files / "prepared" / MODELS[name].data)


def requests(files: Path, name: str) -> pa.Table:
    return read_table(files / "scores" / name).drop_columns([SCORE])


def assert_scores_as_made(actual: object, files: Path, name: str) -> None:
    expected = read_table(files / "scores" / name)[SCORE].to_numpy()
    assert np.ptp(expected) > 1_000 * SCORE_ROUNDING  # no constant
    np.testing.assert_allclose(actual, expected, rtol=0, atol=SCORE_ROUNDING)


def test_it_was_made_with_the_packages_of_2023(files: Path) -> None:
    versions = read_json(files / MADE_WITH)
    made_with = {name: versions[name].rsplit(".", 1)[0] for name in ("pandas", "numpy", "dask", "tensorflow-cpu")}
    assert made_with == {"pandas": "1.5", "numpy": "1.26", "dask": "2023.7", "tensorflow-cpu": "2.15"}


@pytest.mark.parametrize("name", PREPARES)
def test_raw_files_are_generated_to_the_byte(name: str, files: Path, tmp_path: Path) -> None:
    generate(name, tmp_path)
    raw = files / "raw" / PREPARES[name].dataset.name
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        path.name: path.read_bytes() for path in raw.iterdir()
    }


@pytest.mark.skipif(not HAS_FMA, reason=NO_FMA)
@pytest.mark.parametrize("name", PREPARES)
def test_data_are_prepared_to_the_bit(name: str, files: Path, tmp_path: Path) -> None:
    made, expected = (files / "raw" / PREPARES[name].dataset.name), files / "prepared" / name
    prepared = prepare_raw(name, made, tmp_path / "prepared")
    tables, tables_made = tables_of(prepared.path), tables_of(expected)
    assert tables.keys() - {HISTORIES} == tables_made.keys() - {HISTORIES}  # rows have had them since
    assert {path: steps_apart(tables[path], table) for path, table in tables_made.items()} == {
        path: {} for path in tables_made
    }
    assert (prepared.path / "feature_spec.yaml").read_text() == (expected / "feature_spec.yaml").read_text()


@pytest.mark.parametrize("name", MODELS)
def test_a_trained_model_scores_the_same(name: str, files: Path) -> None:
    trained = TrainedModel.load(files / "models" / name)
    assert_scores_as_made(scores(data_of(files, name), trained, requests(files, name))[SCORE].to_numpy(), files, name)


@pytest.mark.parametrize("name", MODELS)
def test_a_run_goes_on_from_its_checkpoint_to_the_same_model(
    name: str, files: Path, tmp_path: Path, tracking: TrackingConfig
) -> None:
    output, data = tmp_path / name, data_of(files, name)
    shutil.copytree(checkpoint_path(files / "models" / name), checkpoint_path(output))
    session = SessionConfig(resume=True)
    trained = train(data, output, MODELS[name].config, session=session, tracking=tracking)
    assert_scores_as_made(scores(data, trained, requests(files, name))[SCORE].to_numpy(), files, name)


@pytest.mark.parametrize("ensemble", ENSEMBLES)
def test_a_trained_model_is_exported_again(ensemble: str, files: Path, tmp_path: Path) -> None:
    name = ENSEMBLES[ensemble]
    engine = ensemble.removeprefix(f"{name}_")
    trained = TrainedModel.load(files / "models" / name)
    config = ExportConfig(engine=engine, fused=False)  # as all were then
    exported = export_ensemble(data_of(files, name), trained, tmp_path / "new", config, name=ensemble)
    before = ExportedEnsemble.load(files / "ensembles" / ensemble)
    assert (exported.name, exported.version, exported.steps) == (before.name, before.version, before.steps)


@pytest.fixture(scope="module")
def server(files: Path) -> Iterator[EmbeddedServer]:
    repositories = tuple(files / "ensembles" / ensemble for ensemble in ENSEMBLES)
    with EmbeddedServer(ServerConfig(repositories=repositories, models=tuple(ENSEMBLES))) as running:
        yield running


@pytest.mark.parametrize("ensemble", ENSEMBLES)
def test_an_ensemble_is_served_and_scores_the_same(ensemble: str, files: Path, server: EmbeddedServer) -> None:
    assert ExportedEnsemble.load(files / "ensembles" / ensemble).name == ensemble
    with Client(server.endpoints.grpc, ensemble) as client:
        answer = client.predict(requests(files, ENSEMBLES[ensemble]))
    assert_scores_as_made(answer.reshape(-1), files, ENSEMBLES[ensemble])
