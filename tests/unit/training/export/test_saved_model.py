from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
import tf_keras as keras

from rankline.serving.engines.merlin_operators import merlin_operator
from rankline.training.export.saved_model import _load_pyfunc, export_saved_model, load_signature
from rankline.training.models.config import ModelConfig, StepConfig
from rankline.training.models.dcnv2 import DCNv2Config
from rankline.training.models.dlrm import DLRMConfig
from rankline.training.models.mlp import MLPConfig
from rankline.workflows.core.errors import ArtifactError, ExportError
from rankline.workflows.schema.feature_spec import FeatureSpec
from rankline.workflows.schema.tensor_names import PADDED_SIGNATURE, RAGGED_SIGNATURE
from tests.factories.specs import scalar_spec
from tests.oracles.tolerance import SCORE_ROUNDING

WIDTH = 4


@pytest.fixture(scope="module")
def model(spec: FeatureSpec, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    keras_model = MLPConfig(embedding_init=1.0, linear_terms=True).build(spec, StepConfig())
    rng = np.random.default_rng(0)
    keras_model.set_weights([rng.normal(scale=0.3, size=w.shape) for w in keras_model.get_weights()])
    path = tmp_path_factory.mktemp("export") / "model.savedmodel"
    export_saved_model(keras_model, spec, path)
    return keras_model, path


def layouts(num_rows: int) -> dict[str, dict[str, Any]]:
    """The same random rows for Keras and for both signatures."""
    rng = np.random.default_rng(num_rows)
    nnzs = rng.integers(0, WIDTH + 1, num_rows).astype(np.int32)
    padded = rng.integers(3, 8, (num_rows, WIDTH)) * (np.arange(WIDTH) < nnzs[:, None])
    values = padded[padded > 0]
    single = {
        "userId": rng.integers(0, 60, (num_rows, 1)),
        "movieId": rng.integers(0, 40, (num_rows, 1)),
        "age": rng.random((num_rows, 1), np.float32),
    }
    lists: dict[str, dict[str, Any]] = {
        "keras": {"genres__values": values[:, None], "genres__nnzs": nnzs[:, None]},
        RAGGED_SIGNATURE: {"genres__values": values, "genres__offsets": np.append(0, np.cumsum(nnzs)).astype(np.int32)},
        PADDED_SIGNATURE: {"genres__values": padded, "genres__nnzs": nnzs[:, None]},
    }
    rows = {name: {key: tf.constant(array) for key, array in {**single, **of}.items()} for name, of in lists.items()}
    rows[RAGGED_SIGNATURE] |= {key: tf.constant(array[:, 0]) for key, array in single.items()}
    return rows


@pytest.mark.parametrize("num_rows", [0, 1, 2, 333])
def test_both_signatures_score_as_the_keras_model(model: tuple[Any, Path], num_rows: int) -> None:
    rows = layouts(num_rows)
    expected = model[0](rows["keras"]).numpy()
    for name in (RAGGED_SIGNATURE, PADDED_SIGNATURE):
        score = load_signature(model[1], name)(**rows[name])["score"]
        assert score.dtype == tf.float32
        np.testing.assert_allclose(score, expected, atol=SCORE_ROUNDING)


def test_padding_may_be_wider_than_the_longest_list_and_hold_anything(model: tuple[Any, Path]) -> None:
    rows = layouts(9)
    padded = rows[PADDED_SIGNATURE]["genres__values"].numpy()
    rows[PADDED_SIGNATURE]["genres__values"] = tf.constant(np.pad(padded, ((0, 0), (0, 3)), constant_values=5))
    got = load_signature(model[1])(**rows[PADDED_SIGNATURE])["score"]
    np.testing.assert_allclose(got, model[0](rows["keras"]), atol=SCORE_ROUNDING)


def test_signatures_have_the_fields_names_types_and_shapes(model: tuple[Any, Path]) -> None:
    def described(name: str) -> dict[str, tuple[str, list[int | None]]]:
        specs = load_signature(model[1], name).inputs
        return {key: (spec.dtype.name, spec.shape.as_list()) for key, spec in specs.items()}

    dtypes = {"userId": "int64", "movieId": "int64", "age": "float32"}
    single = {name: (dtype, [None, 1]) for name, dtype in dtypes.items()}
    assert described(RAGGED_SIGNATURE) == {
        **{name: (dtype, [None]) for name, dtype in dtypes.items()},
        "genres__values": ("int64", [None]),
        "genres__offsets": ("int32", [None]),
    }
    assert described(PADDED_SIGNATURE) == {
        **single,
        "genres__values": ("int64", [None, None]),
        "genres__nnzs": ("int32", [None, 1]),
    }


def test_one_trace_serves_every_batch_size_and_holds_no_keras_object(model: tuple[Any, Path]) -> None:
    loaded = tf.saved_model.load(str(model[1]))
    for num_rows in (1, 5, 64):
        loaded(layouts(num_rows)[RAGGED_SIGNATURE])
    assert len(loaded.__call__.concrete_functions) == 1
    assert not (model[1] / "keras_metadata.pb").exists()
    assert not any("pickle" in path.name or path.suffix == ".pkl" for path in model[1].rglob("*"))


SCALARS = scalar_spec([(50 + n, 4 + n % 2) for n in range(5)], 3)
FUSED: dict[str, tuple[ModelConfig, StepConfig]] = {
    "mlp": (MLPConfig(embedding_init=1.0), StepConfig()),
    "dlrm": (DLRMConfig(bottom_mlp=(16,), embedding_init=1.0), StepConfig()),
    "dlrm, tables apart": (DLRMConfig(embedding_init=1.0), StepConfig(batch_size=65_536)),
    "dlrm, padded": (DLRMConfig(bottom_mlp=(16,), embedding_init=1.0), StepConfig(precision="bfloat16")),
    "dcnv2": (DCNv2Config(cross_rank=4, embedding_init=1.0), StepConfig()),
}


def scalars(num_rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(num_rows)
    ids = {f"C{n}": tf.constant(rng.integers(0, 50 + n, num_rows)) for n in range(5)}
    return {**ids, **{f"I{n}": tf.constant(rng.random(num_rows, np.float32)) for n in range(3)}}


def built(model: ModelConfig, step: StepConfig) -> Any:
    return model.build(SCALARS, step)


@pytest.fixture(scope="module", params=FUSED)
def fused(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    keras_model = built(*FUSED[request.param])
    path = tmp_path_factory.mktemp("fused") / "model.savedmodel"
    export_saved_model(keras_model, SCALARS, path)
    return keras_model, path


def test_tables_that_learnt_apart_are_served_as_one(tmp_path: Path) -> None:
    keras_model = built(*FUSED["dlrm, tables apart"])
    assert len(keras_model.get_layer("features").tables) == 5
    export_saved_model(keras_model, SCALARS, tmp_path / "m")
    shapes = [shape for _, shape in tf.train.list_variables(str(tmp_path / "m" / "variables" / "variables"))]
    assert [260, 8] in shapes
    assert [50, 8] not in shapes


@pytest.mark.parametrize("num_rows", [0, 1, 333])
def test_fused_tables_are_served_by_both_signatures(fused: tuple[Any, Path], num_rows: int) -> None:
    flat = scalars(num_rows)
    padded = {name: column[:, None] for name, column in flat.items()}
    expected = fused[0](padded)
    assert expected.shape == (num_rows, 1)
    for name, rows in ((RAGGED_SIGNATURE, flat), (PADDED_SIGNATURE, padded)):
        np.testing.assert_allclose(load_signature(fused[1], name)(**rows)["score"], expected, atol=SCORE_ROUNDING)


# merlin-core and dask use interfaces that their own dependencies have deprecated.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_merlin_systems_finds_the_right_columns_and_scores(model: tuple[Any, Path]) -> None:
    from merlin.table import TensorTable

    operator = merlin_operator("tensorflow", "PredictTensorflow")(str(model[1]))
    assert sorted(operator.input_schema.column_names) == ["age", "genres", "movieId", "userId"]
    assert operator.output_schema.column_names == ["score"]
    assert operator.input_schema["genres"].is_list
    rows = layouts(3)
    table = TensorTable({name: tensor.numpy() for name, tensor in rows[RAGGED_SIGNATURE].items()})
    got = operator.transform(None, table)
    np.testing.assert_allclose(got["score"].values, model[0](rows["keras"]), atol=SCORE_ROUNDING)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_merlin_systems_scores_fused_tables(fused: tuple[Any, Path]) -> None:
    from merlin.table import TensorTable

    rows = scalars(3)
    table = TensorTable({name: tensor.numpy() for name, tensor in rows.items()})
    got = merlin_operator("tensorflow", "PredictTensorflow")(str(fused[1])).transform(None, table)["score"].values
    np.testing.assert_allclose(
        got, fused[0]({name: column[:, None] for name, column in rows.items()}), atol=SCORE_ROUNDING
    )


def test_pyfunc_scores_data_frames(model: tuple[Any, Path]) -> None:
    frame = pd.DataFrame({"userId": [3, 4], "movieId": [5, 6], "genres": [[3, 4, 5], []], "age": [0.5, 0.25]})
    keras_rows = {
        "userId": tf.constant([[3], [4]], tf.int64),
        "movieId": tf.constant([[5], [6]], tf.int64),
        "genres__values": tf.constant([[3], [4], [5]], tf.int64),
        "genres__nnzs": tf.constant([[3], [0]], tf.int32),
        "age": tf.constant([[0.5], [0.25]]),
    }
    got = _load_pyfunc(str(model[1])).predict(frame)
    np.testing.assert_allclose(got["score"], model[0](keras_rows)[:, 0], atol=SCORE_ROUNDING)


def test_a_model_that_bypasses_dense_features_is_refused(spec: FeatureSpec, tmp_path: Path) -> None:
    keras_model = MLPConfig().build(spec, StepConfig())
    shifted = keras_model.output * keras_model.input["age"]
    with pytest.raises(ExportError, match="outside of DenseFeatures"):
        export_saved_model(keras.Model(keras_model.input, shifted), spec, tmp_path / "m")


def test_a_model_with_keras_own_dense_features_is_refused(spec: FeatureSpec, tmp_path: Path) -> None:
    inputs = {"age": keras.Input((1,), name="age")}
    x = keras.layers.DenseFeatures([tf.feature_column.numeric_column("age")])(inputs)
    with pytest.raises(ExportError, match="expected those of rankline.training.models.layers"):
        export_saved_model(keras.Model(inputs, keras.layers.Dense(1)(x)), spec, tmp_path / "m")


def test_what_is_no_savedmodel_or_lacks_the_signature_is_refused(model: tuple[Any, Path], tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot be loaded"):
        load_signature(tmp_path)
    with pytest.raises(ArtifactError, match="Available: "):
        load_signature(model[1], "other")
