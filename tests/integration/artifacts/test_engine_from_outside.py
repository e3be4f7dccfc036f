"""An engine in a package of its own, `outside/linear_engine`: found, exported to, compared, and served."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from rankline.serving.client import Client
from rankline.serving.engines import engine_for, engines
from rankline.serving.export.config import ExportConfig
from rankline.serving.export.exporter import export_ensemble
from rankline.serving.repository.ensemble import ExportedEnsemble
from rankline.serving.server.embedded import EmbeddedServer, ServerConfig
from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.nvt.compat import nvt, ops, quiet_nvtabular
from rankline.workflows.preprocess.dataset import Dataset
from rankline.workflows.preprocess.prepare import prepare
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.preprocess.raw import RawData
from rankline.workflows.schema.model_artifact import SAVED_MODEL, TrainedModel
from rankline.workflows.schema.targets import Head
from rankline.workflows.schema.tensor_names import NNZS, OFFSETS, PADDED_SIGNATURE, RAGGED_SIGNATURE, SCORE, VALUES
from tests.factories.training.trained_models import publish_saved_model

OUTSIDE = Path(__file__).parent / "outside"
WEIGHTS = {"user": 0.02, "price": -0.3, "tags": 0.07, "bias": 0.5}


@pytest.fixture(scope="module", autouse=True)
def _installed() -> Iterator[None]:
    """The package is on the path as an installed one is; Triton's side finds it there, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(OUTSIDE)
        engines.cache_clear()
        yield
    engines.cache_clear()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    rng = np.random.default_rng(3)
    rows = pa.table(
        {
            "user": rng.integers(0, 40, 300),
            "price": rng.normal(2, 1, 300),
            "tags": [rng.integers(0, 9, n).tolist() for n in rng.integers(0, 5, 300)],
            "label": rng.integers(0, 2, 300).astype(np.float32),
            "time": np.arange(300),
        }
    )
    raw = RawData(rows=rows, catalog=rows.select(["user"]), fingerprint="of this test")
    dataset = Dataset(
        name="linear",
        read=lambda _: raw,
        graph=lambda *_: nvt.Workflow(
            (["user", "tags"] >> ops.Categorify()) + (["price"] >> ops.Normalize(out_dtype=np.float32)) + ["label"]
        ),
        inputs=("user", "price", "tags"),
        heads=(Head("label"),),
        time="time",
        group_by="user",
        item="user",
    )
    return prepare(dataset, raw, tmp_path_factory.mktemp("linear") / "prepared", source="a test")


@pytest.fixture(scope="module")
def trained(prepared: PreparedData) -> TrainedModel:
    """A SavedModel that `linear_engine` can convert: a weight for each column, and a bias."""
    model = tf.Module()
    for name, weight in WEIGHTS.items():
        setattr(model, name, tf.Variable(weight))

    def score(user: Any, price: Any, tags: Any) -> dict[str, Any]:
        terms = [model.user * tf.cast(user, tf.float32), model.price * price, model.tags * tf.cast(tags, tf.float32)]
        return {SCORE: tf.sigmoid(tf.add_n(terms) + model.bias)[:, None]}

    def padded(user, price, tags__values, tags__nnzs):  # type: ignore[no-untyped-def]
        inside = tf.range(tf.shape(tags__values)[1]) < tags__nnzs
        return score(user[:, 0], price[:, 0], tf.reduce_sum(tf.where(inside, tags__values, 0), axis=1))

    def ragged(user, price, tags__values, tags__offsets):  # type: ignore[no-untyped-def]
        tags = tf.RaggedTensor.from_row_splits(tags__values, tags__offsets)
        return score(user, price, tf.reduce_sum(tags, axis=1))

    def concrete(function: Any, width: list[int], lists: dict[str, tf.TensorSpec]) -> Any:
        user, price = (tf.TensorSpec([None, *width], dtype) for dtype in (tf.int64, tf.float32))
        return tf.function(function).get_concrete_function(user=user, price=price, **lists)

    values, lengths = tf.TensorSpec([None, None], tf.int64), tf.TensorSpec([None, 1], tf.int32)
    flat, offsets = tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.int32)
    signatures = {
        PADDED_SIGNATURE: concrete(padded, [1], {"tags" + VALUES: values, "tags" + NNZS: lengths}),
        RAGGED_SIGNATURE: concrete(ragged, [], {"tags" + VALUES: flat, "tags" + OFFSETS: offsets}),
    }
    return publish_saved_model(prepared, model, signatures)


@pytest.fixture(scope="module", params=[False, True], ids=["steps", "fused"])
def ensemble(
    request: pytest.FixtureRequest, prepared: PreparedData, trained: TrainedModel, tmp_path_factory: Any
) -> ExportedEnsemble:
    config = ExportConfig(engine="linear", fused=request.param, max_batch_size=64)
    output = tmp_path_factory.mktemp("repository") / "linear"
    return export_ensemble(prepared, trained, output, config, name="linear")


def test_engine_from_outside_serves_a_converted_model(
    ensemble: ExportedEnsemble, prepared: PreparedData, trained: TrainedModel
) -> None:
    rows = prepared.heldout().select(prepared.inputs)
    with quiet_nvtabular():
        encoded = prepared.workflow().remove_inputs(["label"]).transform(rows.to_pandas())
    expected = engine_for(SAVED_MODEL).load_trained(trained.model_path).score_offline(encoded)
    with (
        EmbeddedServer(ServerConfig(repositories=(ensemble.path,))) as server,
        Client(server.endpoints.grpc, "linear") as client,
    ):
        np.testing.assert_allclose(client.predict(rows), expected, rtol=0, atol=1e-5)
    assert ensemble.manifest.details["engine"] == "linear"
    assert len(set(expected.tolist())) > len(expected) // 2  # there was something to tell apart


def test_engine_from_outside_is_named_when_its_package_is_missing(
    ensemble: ExportedEnsemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [entry for entry in sys.path if entry != str(OUTSIDE)])
        engines.cache_clear()
        with pytest.raises(ArtifactError, match=r"uses the backend 'linear_engine'|model.npz is not part of the"):
            ExportedEnsemble.load(ensemble.path)
    engines.cache_clear()


@pytest.mark.parametrize("replaced", ["prepared", "trained"])
def test_artifact_that_was_replaced_during_the_export_is_not_published(
    replaced: str, prepared: PreparedData, trained: TrainedModel, tmp_path: Path
) -> None:
    before = "0" * 64  # the fingerprint before a command on another machine replaced the artifact
    if replaced == "trained":
        trained = replace(trained, manifest=replace(trained.manifest, fingerprint=before))
    else:
        prepared = replace(prepared, manifest=replace(prepared.manifest, fingerprint=before))
        made_from = {prepared.manifest.kind: before}
        trained = replace(trained, manifest=replace(trained.manifest, made_from=made_from))
    with pytest.raises(
        ArtifactError, match=rf"{replaced} was replaced during the export: it had fingerprint 0{{12}} and"
    ):
        export_ensemble(prepared, trained, tmp_path / "linear", ExportConfig(engine="linear"), name="linear")
    assert not list(tmp_path.rglob("manifest.json"))
