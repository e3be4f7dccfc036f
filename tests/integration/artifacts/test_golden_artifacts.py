"""Artifacts of earlier versions are made again, loaded, resumed and served with the same results.

The archive `2023` was made with the packages of that year, `2026-11` by commit b1a9917 with the ones of that month.
"""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rankline.serving.client import Client
from rankline.serving.export.config import ExportConfig
from rankline.serving.export.exporter import export_ensemble
from rankline.serving.repository.ensemble import ExportedEnsemble
from rankline.serving.server.embedded import EmbeddedServer, ServerConfig
from rankline.training.config.train import SessionConfig, TrainConfig
from rankline.training.run.checkpoint import checkpoint_path
from rankline.training.run.train import train
from rankline.training.tracking import TrackingConfig
from rankline.workflows.preprocess.prepared_data import HISTORIES, PreparedData
from rankline.workflows.schema.model_artifact import TrainedModel
from rankline.workflows.schema.tensor_names import SCORE
from tests.oracles.golden.files import HAS_FMA, NO_FMA, unpack
from tests.oracles.golden.models import MODELS, scores
from tests.oracles.golden.prepares import PREPARES, generate, prepare_raw, tables_of
from tests.oracles.golden.tables import read_table, steps_apart
from tests.oracles.tolerance import SCORE_ROUNDING

pytestmark = pytest.mark.slow

ENSEMBLES = {f"{name}_{engine}": name for name, model in MODELS.items() for engine in model.engines}
DATA = {("2023", name): model.data for name, model in MODELS.items()} | {
    ("2026-11", "mlp"): "movielens",
    ("2026-11", "torch_mlp"): "movielens",
    ("2026-11", "lightgbm"): "movielens",
    ("2026-11", "bayesian_fm"): "history",
    ("2026-11", "ease"): "next",
    ("2026-11", "dlrm"): "criteo",
    ("2026-11", "dlrm-hashed"): "criteo-hashed",
    ("2026-11", "sim"): "amazon",
}
"""Archive and model → the prepared data that the model was trained on."""
SERVED = {("2023", ensemble): name for ensemble, name in ENSEMBLES.items()} | {
    ("2026-11", "mlp_tensorflow"): "mlp",
    ("2026-11", "mlp_tensorflow_apart"): "mlp",
    ("2026-11", "mlp_onnx"): "mlp",
    ("2026-11", "mlp_onnx_apart"): "mlp",
    ("2026-11", "mlp_python"): "mlp",
    ("2026-11", "torch_mlp_pytorch"): "torch_mlp",
    ("2026-11", "lightgbm_onnx"): "lightgbm",
    ("2026-11", "bayesian_fm_onnx"): "bayesian_fm",
    ("2026-11", "ease_onnx"): "ease",
    ("2026-11", "dlrm_tensorflow"): "dlrm",
    ("2026-11", "dlrm_tensorflow_apart"): "dlrm",
    ("2026-11", "dlrm_python"): "dlrm",
    ("2026-11", "dlrm-hashed_onnx"): "dlrm-hashed",
    ("2026-11", "sim_tensorflow"): "sim",
}
"""Archive and ensemble → its model."""


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: unpack(tmp_path_factory.mktemp("golden"), name) for name in ("2023", "2026-11")}


@pytest.fixture(scope="module")
def files(archives: dict[str, Path]) -> Path:
    return archives["2023"]


@pytest.fixture(scope="module")
def tracking(tmp_path_factory: pytest.TempPathFactory) -> TrackingConfig:
    return TrackingConfig(directory=tmp_path_factory.mktemp("runs"), experiment="golden")


def requests(files: Path, name: str) -> pa.Table:
    return read_table(files / "scores" / name).drop_columns([SCORE])


def assert_scores_as_made(actual: object, files: Path, name: str) -> None:
    expected = read_table(files / "scores" / name)[SCORE].to_numpy()
    assert np.ptp(expected) > 1_000 * SCORE_ROUNDING  # no constant
    np.testing.assert_allclose(actual, expected, rtol=0, atol=SCORE_ROUNDING)


@pytest.mark.parametrize("name", PREPARES)
def test_golden_raw_files_are_generated_to_the_byte(name: str, files: Path, tmp_path: Path) -> None:
    generate(name, tmp_path)
    raw = files / "raw" / PREPARES[name].dataset.name
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        path.name: path.read_bytes() for path in raw.iterdir()
    }


@pytest.mark.skipif(not HAS_FMA, reason=NO_FMA)
@pytest.mark.parametrize("name", PREPARES)
def test_golden_data_are_prepared_to_the_bit(name: str, files: Path, tmp_path: Path) -> None:
    made, expected = (files / "raw" / PREPARES[name].dataset.name), files / "prepared" / name
    prepared = prepare_raw(name, made, tmp_path / "prepared")
    tables, tables_made = tables_of(prepared.path), tables_of(expected)
    assert tables.keys() - {HISTORIES} == tables_made.keys() - {HISTORIES}  # rows have had them since
    assert {path: steps_apart(tables[path], table) for path, table in tables_made.items()} == {
        path: {} for path in tables_made
    }
    assert (prepared.path / "feature_spec.yaml").read_text() == (expected / "feature_spec.yaml").read_text()


@pytest.mark.parametrize(("archive", "name"), DATA)
def test_golden_model_scores_the_same(archive: str, name: str, archives: dict[str, Path]) -> None:
    files = archives[archive]
    prepared = PreparedData.load(files / "prepared" / DATA[archive, name])
    actual = scores(prepared, TrainedModel.load(files / "models" / name), requests(files, name))
    assert_scores_as_made(actual[SCORE].to_numpy(), files, name)


@pytest.mark.parametrize(("archive", "name"), DATA)
def test_golden_checkpoint_resumes_to_the_same_model(
    archive: str, name: str, archives: dict[str, Path], tmp_path: Path, tracking: TrackingConfig
) -> None:
    files, output = archives[archive], tmp_path / name
    prepared = PreparedData.load(files / "prepared" / DATA[archive, name])
    shutil.copytree(checkpoint_path(files / "models" / name), checkpoint_path(output))
    config = (
        MODELS[name].config
        if archive == "2023"
        else TrainConfig.from_dict(TrainedModel.load(files / "models" / name).manifest.details["config"])
    )
    trained = train(prepared, output, config, session=SessionConfig(resume=True), tracking=tracking)
    assert_scores_as_made(scores(prepared, trained, requests(files, name))[SCORE].to_numpy(), files, name)


@pytest.mark.parametrize("ensemble", ENSEMBLES)
def test_golden_model_is_exported_again(ensemble: str, files: Path, tmp_path: Path) -> None:
    name = ENSEMBLES[ensemble]
    engine = ensemble.removeprefix(f"{name}_")
    trained = TrainedModel.load(files / "models" / name)
    config = ExportConfig(engine=engine, fused=False)  # as all were then
    prepared = PreparedData.load(files / "prepared" / MODELS[name].data)
    exported = export_ensemble(prepared, trained, tmp_path / "new", config, name=ensemble)
    before = ExportedEnsemble.load(files / "ensembles" / ensemble)
    assert (exported.name, exported.version, exported.steps) == (before.name, before.version, before.steps)


@pytest.fixture(scope="module")
def servers(archives: dict[str, Path]) -> Iterator[dict[str, EmbeddedServer]]:
    with ExitStack() as stack:
        yield {
            archive: stack.enter_context(
                EmbeddedServer(
                    ServerConfig(
                        repositories=tuple(files / "ensembles" / name for of, name in SERVED if of == archive),
                        models=tuple(name for of, name in SERVED if of == archive),
                    )
                )
            )
            for archive, files in archives.items()
        }


@pytest.mark.parametrize(("archive", "ensemble"), SERVED)
def test_golden_ensemble_is_served_and_scores_the_same(
    archive: str, ensemble: str, archives: dict[str, Path], servers: dict[str, EmbeddedServer]
) -> None:
    files, name = archives[archive], SERVED[archive, ensemble]
    assert ExportedEnsemble.load(files / "ensembles" / ensemble).name == ensemble
    with Client(servers[archive].endpoints.grpc, ensemble) as client:
        answer = client.predict(requests(files, name))
    assert_scores_as_made(answer.reshape(-1), files, name)
