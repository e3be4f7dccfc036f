"""What a Keras model of any kind is as a SavedModel."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
import tf_keras as keras

from rankline.serving.engines.merlin_operators import merlin_operator
from rankline.training.config.train import TrainConfig
from rankline.training.export.saved_model import _load_pyfunc, export_saved_model, load_signature, split_at_features
from rankline.training.models.config import ModelConfig, StepConfig
from rankline.training.models.sequential import DIENConfig, DINConfig, SIMConfig
from rankline.training.models.tabular import DCNv2Config, DLRMConfig, MLPConfig
from rankline.workflows.core.errors import ArtifactError, ExportError
from rankline.workflows.schema.feature_spec import FeatureSpec
from rankline.workflows.schema.ragged import padded_rows
from rankline.workflows.schema.tensor_names import PADDED_SIGNATURE, RAGGED_SIGNATURE
from tests.factories.specs import scalar_spec
from tests.factories.training import ratings
from tests.factories.training.sequences import CATEGORIES, LISTS, MAX_LENGTH, NUM_ITEMS, make_spec, make_table
from tests.oracles.tolerance import SCORE_ROUNDING

SINGLES, HISTORIES = ("user_id", "item_id_trgt", "category_id_trgt"), LISTS[:2]
SCALARS = scalar_spec([(50 + n, 4 + n % 2) for n in range(5)], 3)
STEP = StepConfig()
DIN = DINConfig(hidden=(16, 8), embedding_dim=4, embedding_init=0.5)
DIEN = DIENConfig(**vars(DIN), short_history=4, gru_units=5, aux_hidden=(6,))
SIM = SIMConfig(**vars(DIEN), stage_one_hidden=(8,), num_searched=3)
HARD = TrainConfig(model=SIM).with_choices(search="hard", xla=True, recency=True, dot_product_features=True)


def frame_of_ratings(num_rows: int) -> pd.DataFrame:
    return ratings.make_rows(num_rows, seed=num_rows).drop(["rating"]).to_pandas()


def frame_of_histories(num_rows: int) -> pd.DataFrame:
    """No item is twice in a history: which of two equal ones SIM's search keeps depends on the CPU's rounding."""
    frame = make_table(17, seed=0).slice(0, num_rows).select([*SINGLES, *HISTORIES]).to_pandas()
    rng = np.random.default_rng(0)
    items = frame[HISTORIES[0]].map(lambda history: 3 + rng.permutation(NUM_ITEMS - 3)[: len(history)])
    return frame.assign(**dict(zip(HISTORIES, (items, items.map(CATEGORIES.__getitem__)), strict=True)))


def frame_of_scalars(num_rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(num_rows)
    ids = {f"C{n}": rng.integers(0, 50 + n, num_rows) for n in range(5)}
    return pd.DataFrame({**ids, **{f"I{n}": rng.random(num_rows, np.float32) for n in range(3)}})


Frames = Callable[[int], pd.DataFrame]
KINDS: dict[str, tuple[FeatureSpec, ModelConfig, Any, Frames]] = {
    "mlp": (ratings.make_spec(), MLPConfig(embedding_init=1.0, linear_terms=True), STEP, frame_of_ratings),
    "dlrm": (SCALARS, DLRMConfig(bottom_mlp=(16,)), STEP, frame_of_scalars),
    "dlrm, padded": (SCALARS, DLRMConfig(bottom_mlp=(16,)), StepConfig(precision="bfloat16"), frame_of_scalars),
    "dlrm, tables apart": (SCALARS, DLRMConfig(), StepConfig(batch_size=65_536), frame_of_scalars),
    "dcnv2": (SCALARS, DCNv2Config(cross_rank=4), STEP, frame_of_scalars),
    "din": (make_spec(), DIN, STEP, frame_of_histories),
    "dien": (make_spec(), DIEN, STEP, frame_of_histories),
    "sim": (make_spec(), SIM, STEP, frame_of_histories),
    "sim, hard, xla": (make_spec(), HARD.model, HARD, frame_of_histories),
}
WITH_LISTS = [name for name, (*_, frame) in KINDS.items() if frame is not frame_of_scalars]
SEQUENTIAL = [name for name, (*_, frame) in KINDS.items() if frame is frame_of_histories]


def flat(frame: pd.DataFrame) -> dict[str, Any]:
    """As the signature of ragged lists takes it."""
    columns: dict[str, Any] = {}
    for name in frame:
        if frame[name].dtype != object:
            columns[str(name)] = tf.constant(frame[name].to_numpy())
            continue
        lengths = [len(values) for values in frame[name]]
        columns[f"{name}__values"] = tf.constant(np.concatenate([[], *frame[name]]).astype(np.int64))
        columns[f"{name}__offsets"] = tf.constant(np.append(0, np.cumsum(lengths)).astype(np.int32))
    return columns


def padded(frame: pd.DataFrame) -> dict[str, Any]:
    return {name: tf.constant(array) for name, array in padded_rows(frame).items()}


def as_loaded(frame: pd.DataFrame) -> dict[str, Any]:
    """As the loader gives it to Keras; negatives are the positives, which no score depends on."""
    columns = {name: tensor[:, None] for name, tensor in flat(frame).items() if not name.endswith("__offsets")}
    for name, offsets in flat(frame).items():
        if name.endswith("__offsets"):
            columns[name.replace("__offsets", "__nnzs")] = (offsets[1:] - offsets[:-1])[:, None]
    return columns | {name.replace("_pos__", "_neg__"): tensor for name, tensor in columns.items()}


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A model, where it was exported, and the signatures of that."""

    model: Any
    path: Path
    signatures: dict[str, Any]
    frame: Frames

    def expected(self, frame: pd.DataFrame) -> Any:
        return tf.nest.flatten(self.model(as_loaded(frame)))[0].numpy()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Exported]:
    """Exports each kind when it is first asked for."""
    made: dict[str, Exported] = {}

    def export(name: str) -> Exported:
        if name not in made:
            spec, config, step, frame = KINDS[name]
            model, rng = config.build(spec, step), np.random.default_rng(0)
            model.set_weights([rng.normal(scale=0.3, size=weight.shape) for weight in model.get_weights()])
            path = tmp_path_factory.mktemp("export") / "model.savedmodel"
            export_saved_model(model, spec, path)
            signatures = {of: load_signature(path, of) for of in (RAGGED_SIGNATURE, PADDED_SIGNATURE)}
            made[name] = Exported(model=model, path=path, signatures=signatures, frame=frame)
        return made[name]

    return export


@pytest.fixture
def exported(models: Callable[[str], Exported], request: pytest.FixtureRequest) -> Exported:
    return models(request.param)


every_kind = pytest.mark.parametrize("exported", KINDS, indirect=True)
with_lists = pytest.mark.parametrize("exported", WITH_LISTS, indirect=True)
one_of_each_input = pytest.mark.parametrize("exported", ["mlp", "dlrm", "sim"], indirect=True)
sequential = pytest.mark.parametrize("exported", SEQUENTIAL, indirect=True)


@every_kind
@pytest.mark.parametrize("num_rows", [0, 1, 17])
def test_signatures_score_like_the_keras_model(exported: Exported, num_rows: int) -> None:
    frame = exported.frame(num_rows)
    expected = exported.expected(frame)
    for name, columns in ((RAGGED_SIGNATURE, flat(frame)), (PADDED_SIGNATURE, padded(frame))):
        score = exported.signatures[name](**columns)["score"]
        assert (score.dtype, score.shape) == (tf.float32, (num_rows, 1))
        np.testing.assert_allclose(score, expected, atol=SCORE_ROUNDING)


@with_lists
def test_padding_may_be_wide_and_hold_anything(exported: Exported) -> None:
    frame = exported.frame(9)
    columns = padded(frame)
    for name in columns:
        if name.endswith("__values"):
            columns[name] = tf.pad(columns[name], [[0, 0], [0, 9]], constant_values=5)
    score = exported.signatures[PADDED_SIGNATURE](**columns)["score"]
    np.testing.assert_allclose(score, exported.expected(frame), atol=SCORE_ROUNDING)


@pytest.mark.parametrize(
    ("exported", "one_per_row", "lists", "candidates"),
    [("mlp", ("userId", "movieId", "age"), ("genres",), ()), ("sim", SINGLES[:1], HISTORIES, SINGLES[1:])],
    indirect=["exported"],
)
def test_signatures_have_the_names_types_and_shapes_of_their_layout(
    exported: Exported, one_per_row: tuple[str, ...], lists: tuple[str, ...], candidates: tuple[str, ...]
) -> None:
    def described(name: str) -> dict[str, tuple[str, list[int | None]]]:
        specs = exported.signatures[name].inputs
        return {key: (spec.dtype.name, spec.shape.as_list()) for key, spec in specs.items()}

    kinds = {name: "float32" if name == "age" else "int64" for name in (*one_per_row, *candidates)}
    assert described(RAGGED_SIGNATURE) == {
        **{name: (kind, [None]) for name, kind in kinds.items()},
        **{f"{name}__values": ("int64", [None]) for name in lists},
        **{f"{name}__offsets": ("int32", [None]) for name in lists},
    }
    assert described(PADDED_SIGNATURE) == {
        **{name: (kinds[name], [None, 1]) for name in one_per_row},
        **{name: (kinds[name], [None, None]) for name in candidates},
        **{f"{name}__values": ("int64", [None, None]) for name in lists},
        **{f"{name}__nnzs": ("int32", [None, 1]) for name in lists},
    }


@one_of_each_input
def test_keras_step_traces_once_and_holds_no_python_object(exported: Exported) -> None:
    loaded = tf.saved_model.load(str(exported.path))
    for num_rows in (1, 5, 16):
        loaded(flat(exported.frame(num_rows)))
    assert len(loaded.__call__.concrete_functions) == 1
    assert not (exported.path / "keras_metadata.pb").exists()
    assert not any("pickle" in path.name or path.suffix == ".pkl" for path in exported.path.rglob("*"))


# merlin-core and dask use interfaces that their own dependencies have deprecated.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@one_of_each_input
def test_merlin_systems_finds_the_columns_and_scores(exported: Exported) -> None:
    from merlin.table import TensorTable

    frame = exported.frame(3)
    operator = merlin_operator("tensorflow", "PredictTensorflow")(str(exported.path))
    assert sorted(operator.input_schema.column_names) == sorted(frame)
    assert operator.output_schema.column_names == ["score"]
    table = TensorTable({name: tensor.numpy() for name, tensor in flat(frame).items()})
    got = operator.transform(None, table)["score"].values
    np.testing.assert_allclose(got, exported.expected(frame), atol=SCORE_ROUNDING)


@one_of_each_input
def test_pyfunc_scores_data_frames(exported: Exported) -> None:
    scorer = _load_pyfunc(str(exported.path))
    whole = exported.frame(9)
    lists = [name for name in whole if whole[name].dtype == object]
    empty = whole.head(1).assign(**{name: [[]] for name in lists})
    for frame in (whole, empty):
        got = scorer.predict(frame)
        assert list(got.columns) == ["score"]
        np.testing.assert_allclose(got["score"], exported.expected(frame)[:, 0], atol=SCORE_ROUNDING)


@sequential
@pytest.mark.parametrize("num_rows", [1, 5])
def test_candidates_of_one_request_score_as_rows_of_their_own(exported: Exported, num_rows: int) -> None:
    score, columns = exported.signatures[PADDED_SIGNATURE], padded(exported.frame(num_rows))
    rng = np.random.default_rng(0)
    targets = {name: rng.integers(3, limit, (num_rows, 7)) for name, limit in zip(SINGLES[1:], (60, 7), strict=True)}
    together = score(**columns | {name: tf.constant(ids) for name, ids in targets.items()})["score"]
    assert together.shape == (num_rows, 7)
    for number in range(7):
        one = {name: tf.constant(ids[:, number : number + 1]) for name, ids in targets.items()}
        np.testing.assert_allclose(
            together[:, number], score(**columns | one)["score"][:, 0], atol=SCORE_ROUNDING, err_msg=str(number)
        )


@sequential
def test_latest_items_count_of_a_history_that_is_too_long(exported: Exported) -> None:
    score, columns = exported.signatures[PADDED_SIGNATURE], padded(exported.frame(6))
    long, scores = np.random.default_rng(0).integers(3, 7, (6, MAX_LENGTH + 20)), []
    for values in (long, long[:, -MAX_LENGTH:]):
        lists = {f"{name}__values": tf.constant(values) for name in HISTORIES}
        lists |= {f"{name}__nnzs": tf.fill((6, 1), values.shape[1]) for name in HISTORIES}
        scores.append(score(**columns | lists)["score"])
    np.testing.assert_allclose(scores[0], scores[1], atol=SCORE_ROUNDING)


@pytest.mark.parametrize("exported", ["dlrm, tables apart"], indirect=True)
def test_tables_that_learnt_apart_are_served_as_one(exported: Exported) -> None:
    assert len(exported.model.get_layer("features").tables) == 5
    shapes = [shape for _, shape in tf.train.list_variables(str(exported.path / "variables" / "variables"))]
    assert [260, 8] in shapes
    assert [50, 8] not in shapes


@pytest.mark.parametrize("exported", ["mlp"], indirect=True)
def test_load_signature_refuses_what_is_no_savedmodel_or_lacks_it(exported: Exported, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot be loaded"):
        load_signature(tmp_path)
    with pytest.raises(ArtifactError, match="Available: "):
        load_signature(exported.path, "other")


def uses_an_input_beside_its_features(spec: FeatureSpec) -> Any:
    model = MLPConfig().build(spec, STEP)
    return keras.Model(model.input, model.output * model.input["age"])


def has_dense_features_of_keras(spec: FeatureSpec) -> Any:
    inputs = {"age": keras.Input((1,), name="age")}
    x = keras.layers.DenseFeatures([tf.feature_column.numeric_column("age")])(inputs)
    return keras.Model(inputs, keras.layers.Dense(1)(x))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (uses_an_input_beside_its_features, "bypasses DenseFeatures"),
        (has_dense_features_of_keras, "expected those from rankline.training.models.layers"),
    ],
)
def test_export_refuses_models_whose_inputs_it_cannot_replace(
    spec: FeatureSpec, tmp_path: Path, make: Callable[[FeatureSpec], Any], message: str
) -> None:
    with pytest.raises(ExportError, match=message):
        export_saved_model(make(spec), spec, tmp_path / "m")


# --- The two parts that a model is cut into


def test_graph_cut_gives_two_parts_that_are_the_model(spec: FeatureSpec) -> None:
    model = MLPConfig(linear_terms=True).build(spec, STEP)
    layers, head = split_at_features(model)
    row = {name: tf.ones((1, 1), tensor.dtype) for name, tensor in model.input.items()}
    assert [layer.name for layer in layers] == ["features", "linear"]
    np.testing.assert_array_equal(head([layer(row) for layer in layers]), model(row))
    assert {id(weight) for layer in [*layers, head] for weight in layer.weights} == {id(w) for w in model.weights}


def test_graph_cut_takes_keras_own_feature_layers() -> None:
    ids = tf.feature_column.categorical_column_with_identity("user", 5)
    inputs = {"user": keras.Input((1,), name="user", dtype=tf.int64)}
    looked_up = keras.layers.DenseFeatures([tf.feature_column.embedding_column(ids, 2)])(inputs)
    layers, head = split_at_features(keras.Model(inputs, keras.layers.Dense(1)(looked_up)))
    assert [weight.shape.as_list() for weight in layers[0].weights] == [[5, 2]]
    assert [weight.shape.as_list() for weight in head.weights] == [[2, 1], [1]]
