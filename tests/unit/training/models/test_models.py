"""Keras models for rows without histories; what they share with PyTorch's is in test_model_contract.py."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import mlflow
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from typer.testing import CliRunner

from rankline.cli.main import app
from rankline.training.config.train import TrainConfig
from rankline.training.models import MODELS, check_memory, check_rows, model_named
from rankline.training.models.config import ModelConfig, NetworkConfig, StepConfig
from rankline.training.models.frameworks import TENSORFLOW
from rankline.training.models.layers import Cross
from rankline.training.models.tabular import DCNv2Config, DeepFMConfig, DLRMConfig, MLPConfig, MMoEConfig
from rankline.training.models.tabular.network import NumberVectors, PairProducts
from rankline.training.run.train import train
from rankline.training.tracking import TrackingConfig
from rankline.workflows.core.errors import ConfigError, SpecError
from rankline.workflows.schema.feature_spec import Feature, FeatureSpec, SpecMetadata
from rankline.workflows.schema.model_artifact import TrainedModel
from rankline.workflows.schema.targets import MULTICLASS, REGRESSION, Head
from tests.factories.specs import scalar_spec
from tests.factories.training import outside_models
from tests.factories.training.outside_models import WideConfig
from tests.harness.process.programs import leave_installed
from tests.oracles.tolerance import ROUNDING

SMALL: dict[str, Any] = {"embedding_dim": 4, "embedding_init": 0.5}
CONFIGS: dict[str, NetworkConfig] = {
    "mlp": MLPConfig(**SMALL, hidden=(16, 8)),
    "dlrm": DLRMConfig(**SMALL, bottom_mlp=(8,), top_mlp=(16, 8)),
    "dcnv2": DCNv2Config(**SMALL, hidden=(16, 8)),
    "deepfm": DeepFMConfig(**SMALL, hidden=(16, 8)),
    "mmoe": MMoEConfig(**SMALL, hidden=(16, 8), experts=3, tower=(4,)),
}
KERAS_MODELS = [name for name, model in MODELS.items() if model.framework == TENSORFLOW and not model.takes_histories]
STEP = StepConfig()

SCALARS = FeatureSpec(
    features=(
        Feature(name="userId", dtype="int64", cardinality=60, embedding_dim=16),
        Feature(name="movieId", dtype="int64", cardinality=40, embedding_dim=12),
        Feature(name="age", dtype="float32"),
        Feature(name="price", dtype="float32"),
        Feature(name="rating", dtype="float32"),
    ),
    channels={"categorical": ("userId", "movieId"), "continuous": ("age", "price"), "label": ("rating",)},
)


def scalars(num_rows: int = 3) -> dict[str, Any]:
    rng = np.random.default_rng(num_rows)
    return {
        "userId": tf.constant(rng.integers(3, 60, (num_rows, 1))),
        "movieId": tf.constant(rng.integers(3, 40, (num_rows, 1))),
        "age": tf.constant(rng.random((num_rows, 1), np.float32)),
        "price": tf.constant(rng.random((num_rows, 1), np.float32)),
    }


@pytest.mark.parametrize("name", KERAS_MODELS)
def test_fused_linear_terms_add_one_weight_per_id_to_the_logit(name: str) -> None:
    model = replace(CONFIGS[name], linear_scale=2.0).build(SCALARS, STEP)
    rows = scalars()
    before = model(rows).numpy()
    # The tables stand in the order of the columns' names: movieId, userId.
    movies, users = rows["movieId"].numpy()[:, 0], 40 + rows["userId"].numpy()[:, 0]
    table = model.get_layer("linear").tables["width_1_embedding"]
    table.scatter_update(tf.IndexedSlices([[0.5], [0.25]], [movies[0], users[1]]))
    after = model(rows).numpy()
    logit = [np.log(score / (1 - score))[:, 0] for score in (before, after)]
    expected = 2 * (0.5 * (movies == movies[0]) + 0.25 * (users == users[1]))
    np.testing.assert_allclose(logit[1] - logit[0], expected, atol=1e-5)


def test_default_embedding_init_matches_embedding_columns(spec: FeatureSpec) -> None:
    table = MLPConfig(embedding_init=0.0).build(spec, STEP).get_layer("features").tables["userId"].numpy()
    assert table.std() == pytest.approx(0.88 / np.sqrt(16), rel=0.15)  # a normal cut at two deviations has 0.88 of it


HEADS = (
    Head("rating"),
    Head("price", REGRESSION, mean=100.0, deviation=7.0),
    Head("kind", MULTICLASS, ("a", "b", "c")),
)
SEVERAL = FeatureSpec(
    features=(*SCALARS.features[:3], *(Feature(name=head.column, dtype="float32") for head in HEADS)),
    channels={"categorical": ("userId", "movieId"), "continuous": ("age",), "label": ("rating", "price", "kind")},
    metadata=SpecMetadata(heads=HEADS),
)


@pytest.mark.parametrize("name", KERAS_MODELS)
def test_keras_models_have_an_output_per_head(name: str) -> None:
    model = CONFIGS[name].build(SEVERAL, STEP)
    inputs = {key: value for key, value in scalars(5).items() if key != "price"}
    rating, price, kind = (output.numpy() for output in model(inputs))
    assert (rating.shape, price.shape, kind.shape) == ((5, 1), (5, 1), (5, 3))
    assert ((rating > 0) & (rating < 1)).all()
    assert np.abs(price - 100).max() < 70  # in the unit of the label
    np.testing.assert_allclose(kind.sum(axis=1), 1, rtol=1e-5)


def test_deepfm_multiplies_all_pairs() -> None:
    vectors = np.random.default_rng(0).normal(size=(4, 3, 2)).astype(np.float32)
    pairs = sum(vectors[:, i] * vectors[:, j] for i in range(3) for j in range(i))
    np.testing.assert_allclose(PairProducts()(vectors), pairs, rtol=1e-4, atol=1e-5)
    numbers, layer = np.array([[2.0, 0.0]], np.float32), NumberVectors(3)
    np.testing.assert_allclose(layer(numbers), [[2 * layer.vectors[0], 0 * layer.vectors[1]]])


def test_task_that_a_model_does_not_learn_is_refused() -> None:
    histories = {"target_item_features": ("movieId",), "positive_history": ("past",), "label": ("rating",)}
    spec = FeatureSpec(
        features=(
            SCALARS["movieId"],
            replace(SCALARS["movieId"], name="past", is_list=True, max_length=3),
            Feature(name="rating", dtype="float32"),
        ),
        channels=histories,
        metadata=SpecMetadata(heads=(Head("rating", REGRESSION),)),
    )
    with pytest.raises(
        SpecError, match="'din' supports task binary, but the task of label 'rating' is regression. No built-in model"
    ):
        check_rows(spec, MODELS["din"]())
    with pytest.raises(SpecError, match=r"'outside' supports one label, .*'other'.*Choose one"):
        check_rows(
            replace(
                SCALARS,
                features=(*SCALARS.features, Feature(name="other", dtype="float32")),
                channels={**SCALARS.channels, "label": ("rating", "other")},
            ),
            Outside(),
        )


@dataclass(frozen=True, kw_only=True)
class Outside(ModelConfig):
    name: ClassVar[str] = "outside"
    network: ClassVar[str] = "nowhere:build"


@pytest.mark.parametrize("name", CONFIGS)
def test_weights_are_counted_before_there_are_any(name: str) -> None:
    config = CONFIGS[name]
    counted = sum(config.num_weights(SCALARS).values())
    num_weights = config.build(SCALARS, STEP).count_params()
    assert num_weights / 2 < counted <= num_weights


@pytest.mark.parametrize(
    ("config", "largest"),
    [
        (MLPConfig(hidden=(65_536, 65_536)), "hidden"),
        (MLPConfig(embedding_dim=65_536, hidden=()), "column 'userId'"),
        (DLRMConfig(bottom_mlp=(16_384, 16_384)), "bottom_mlp"),
        (DCNv2Config(embedding_dim=16_384, hidden=()), "cross_layers"),
        (MMoEConfig(experts=1_000, hidden=(2_048, 2_048)), "hidden"),
    ],
)
def test_model_that_does_not_fit_into_memory_is_refused(config: ModelConfig, largest: str) -> None:
    needed = 4 * sum(config.num_weights(SCALARS).values())
    check_memory(SCALARS, config, copies=1, num_bytes=needed)
    with pytest.raises(ConfigError, match=rf"needs [\d,.]+ GB .* GB for {largest}, but only 0\.0 GB are free"):
        check_memory(SCALARS, config, copies=1, num_bytes=1_000_000)


CROSSED = scalar_spec([(7, 2), (9, 3)], 1)
CROSS = DCNv2Config(hidden=(5,), cross_layers=2, embedding_init=1.0, linear_terms=False)


def crossed_rows(num_rows: int = 6) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    ids = {f"C{n}": tf.constant(rng.integers(3, 7, (num_rows, 1))) for n in range(2)}
    return {**ids, "I0": tf.constant(rng.normal(size=(num_rows, 1)), tf.float32)}


@pytest.mark.parametrize("rank", [0, 2])
def test_dcnv2_scores_by_cross_layers_and_then_dense_ones(rank: int) -> None:
    model = replace(CROSS, cross_rank=rank).build(CROSSED, STEP)
    model.set_weights([np.random.default_rng(n).normal(size=w.shape) for n, w in enumerate(model.get_weights())])
    inputs = crossed_rows()
    tables = [model.get_layer("features").table(name).numpy() for name in ("C0", "C1")]
    start = np.concatenate([tables[0][inputs["C0"][:, 0]], tables[1][inputs["C1"][:, 0]], inputs["I0"]], axis=1)
    x = start
    for layer in model.layers:
        if isinstance(layer, Cross):
            *matrices, bias = layer.get_weights()
            assert [matrix.shape for matrix in matrices] == ([(6, 2), (2, 6)] if rank else [(6, 6)])
            x = start * (np.linalg.multi_dot([x, *matrices]) + bias) + x
    hidden, output = (layer.get_weights() for layer in model.layers if isinstance(layer, keras.layers.Dense))
    logit = np.maximum(x @ hidden[0] + hidden[1], 0) @ output[0] + output[1]
    np.testing.assert_allclose(model(inputs), 1 / (1 + np.exp(-logit)), **ROUNDING)


def test_outside_model_is_trained_and_recorded(prepared: Path, tmp_path: Path, work: Path) -> None:
    assert "wide" not in MODELS
    config = TrainConfig(model=WideConfig(first_weight=0.5), epochs=2, learning_rate=0.01, batch_size=256)
    tracking = TrackingConfig(directory=work, experiment="outside")
    trained = train(prepared, tmp_path / "model", config, tracking=tracking)
    again = TrainedModel.load(tmp_path / "model")
    assert again.metrics["valid_auc"] == trained.metrics["valid_auc"] > 0.6
    recorded = again.manifest.details["config"]
    assert (recorded["model"], recorded["first_weight"]) == ("wide", 0.5)
    params = mlflow.MlflowClient(tracking.uri).get_run(trained.run_id).data.params
    assert (params["model"], params["first_weight"]) == ("wide", "0.5")
    assert not {"hidden", "bottom_mlp", "gru_units", "embedding_dim"} & params.keys()


@pytest.mark.parametrize("name", ["mpl", "no.such:Model", f"{outside_models.__name__}:Wide", "pathlib:Path"])
def test_model_named_refuses_what_is_no_config(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}.*(ModelConfig|Available)"):
        model_named(name)


@dataclass(frozen=True, kw_only=True)
class NamelessConfig(ModelConfig):
    network: ClassVar[str] = f"{__name__}:scalar_spec"


@dataclass(frozen=True, kw_only=True)
class NetworklessConfig(ModelConfig):
    name: ClassVar[str] = "networkless"
    network: ClassVar[str] = "math:sqrt"


@dataclass(frozen=True, kw_only=True)
class RequiredConfig(NetworklessConfig):
    units: int
    depth: int = 1


def test_outside_model_that_is_not_complete_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="lacks name. Define both as class variables"):
        model_named(f"{__name__}:NamelessConfig")
    with pytest.raises(ConfigError, match=r"RequiredConfig' has units without a default, expected a default for each"):
        model_named(f"{__name__}:RequiredConfig")
    with pytest.raises(ConfigError, match=r"'math:sqrt' of model 'networkless' is not a function of three arguments"):
        NetworklessConfig().build(scalar_spec([(9, 4)], 1), StepConfig())
    (tmp_path / "thawed.py").write_text(
        "from dataclasses import dataclass\n"
        "from rankline.training.models.config import ModelConfig\n"
        "@dataclass\nclass Thawed(ModelConfig): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="'thawed:Thawed' cannot be defined: cannot inherit non-frozen"):
        model_named("thawed:Thawed")


def test_installed_package_gives_it_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_installed(tmp_path, "outside", f"[rankline.models]\nwide = {outside_models.__name__}:WideConfig\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert model_named("wide") is WideConfig
    with pytest.raises(ConfigError, match=r"unknown model 'wider'.*torch_mlp, wide, or MODULE:CLASS"):
        model_named("wider")


def test_outside_model_brings_its_options_to_the_command_line() -> None:
    name = f"{outside_models.__name__}:WideConfig"
    text = CliRunner().invoke(app, ["train", "movielens", "--model", name, "--help-all"], env={"COLUMNS": "200"}).output
    assert "--first-weight" in text
    assert "--hidden" not in text
