"""DIN, DIEN and SIM as SavedModels."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import tensorflow as tf

from rankline.serving.engines.merlin_operators import merlin_operator
from rankline.training.config.train import TrainConfig
from rankline.training.export.saved_model import _load_pyfunc, export_saved_model, load_signature
from rankline.training.models.sequential.dien import DIENConfig
from rankline.training.models.sequential.din import DINConfig
from rankline.training.models.sequential.sim import SIMConfig
from rankline.workflows.schema.ragged import padded_rows
from rankline.workflows.schema.tensor_names import PADDED_SIGNATURE, RAGGED_SIGNATURE
from tests.factories.training.sequences import LISTS, MAX_LENGTH, keras_batch, make_spec, make_table
from tests.oracles.tolerance import SCORE_ROUNDING

DIN = DINConfig(hidden=(16, 8), embedding_dim=4, embedding_init=0.5)
DIEN = DIENConfig(**vars(DIN), short_history=4, gru_units=5, aux_hidden=(6,))
SIM = SIMConfig(**vars(DIEN), stage_one_hidden=(8,), num_searched=3)
KINDS = {
    "din": TrainConfig(model=DIN),
    "dien": TrainConfig(model=DIEN),
    "sim": TrainConfig(model=SIM),
    "sim, hard, xla": TrainConfig(model=SIM).with_choices(
        search="hard", xla=True, recency=True, dot_product_features=True
    ),
}
SINGLES, HISTORIES = ("user_id", "item_id_trgt", "category_id_trgt"), LISTS[:2]
SPEC = make_spec()


class Exported(NamedTuple):
    """A model, where it was exported, and the signatures of that."""

    model: Any
    path: Path
    signatures: dict[str, Any]


@pytest.fixture(scope="module", params=KINDS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    config = KINDS[request.param]
    model = config.model.build(SPEC, config)
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(scale=0.4, size=weight.shape) for weight in model.get_weights()])
    path = tmp_path_factory.mktemp("export") / "model.savedmodel"
    export_saved_model(model, SPEC, path)
    return Exported(model, path, {name: load_signature(path, name) for name in (RAGGED_SIGNATURE, PADDED_SIGNATURE)})


def expected_of(model: Any, rows: pa.Table) -> Any:
    return tf.nest.flatten(model(keras_batch(rows)))[0].numpy()


def flat(rows: pa.Table) -> dict[str, Any]:
    columns = {name: tf.constant(rows[name].to_numpy()) for name in SINGLES}
    for name in HISTORIES:
        lists = rows[name].combine_chunks()
        columns[f"{name}__values"] = tf.constant(lists.flatten().to_numpy(), tf.int64)
        columns[f"{name}__offsets"] = tf.constant(np.append(0, np.cumsum(lists.value_lengths().to_numpy())), tf.int32)
    return columns


def padded(rows: pa.Table) -> dict[str, Any]:
    arrays = padded_rows(rows.select([*SINGLES, *HISTORIES]).to_pandas())
    return {name: tf.constant(array) for name, array in arrays.items()}


@pytest.mark.parametrize("num_rows", [0, 1, 17])
def test_both_signatures_score_as_the_keras_model(exported: Exported, num_rows: int) -> None:
    rows = make_table(17, seed=0).slice(0, num_rows)
    expected = expected_of(exported.model, rows)
    for name, columns in ((RAGGED_SIGNATURE, flat(rows)), (PADDED_SIGNATURE, padded(rows))):
        score = exported.signatures[name](**columns)["score"]
        assert score.dtype == tf.float32
        assert score.shape == (num_rows, 1)
        np.testing.assert_allclose(score, expected, atol=SCORE_ROUNDING)


def test_no_signature_asks_for_negatives_and_targets_may_be_several(exported: Exported) -> None:
    def described(name: str) -> dict[str, list[int | None]]:
        specs = exported.signatures[name].inputs
        return {key: spec.shape.as_list() for key, spec in specs.items()}

    assert described(RAGGED_SIGNATURE) == {
        **{name: [None] for name in SINGLES},
        **{f"{name}__{part}": [None] for name in HISTORIES for part in ("values", "offsets")},
    }
    assert described(PADDED_SIGNATURE) == {
        "user_id": [None, 1],
        "item_id_trgt": [None, None],
        "category_id_trgt": [None, None],
        **{f"{name}__values": [None, None] for name in HISTORIES},
        **{f"{name}__nnzs": [None, 1] for name in HISTORIES},
    }


@pytest.mark.parametrize("num_rows", [1, 5])
def test_candidates_of_one_request_score_as_rows_of_their_own(exported: Exported, num_rows: int) -> None:
    score = exported.signatures[PADDED_SIGNATURE]
    columns = padded(make_table(num_rows, seed=3))
    rng = np.random.default_rng(0)
    items, categories = rng.integers(3, 60, (num_rows, 7)), rng.integers(3, 7, (num_rows, 7))
    together = score(**columns | {"item_id_trgt": tf.constant(items), "category_id_trgt": tf.constant(categories)})[
        "score"
    ]
    assert together.shape == (num_rows, 7)
    for number in range(7):
        one = {"item_id_trgt": items[:, number : number + 1], "category_id_trgt": categories[:, number : number + 1]}
        alone = score(**columns | {name: tf.constant(ids) for name, ids in one.items()})["score"]
        np.testing.assert_allclose(together[:, number], alone[:, 0], atol=SCORE_ROUNDING)


def test_padding_may_be_wide_and_hold_anything_and_histories_may_be_empty_or_too_long(exported: Exported) -> None:
    rows, score = make_table(6, seed=0), exported.signatures[PADDED_SIGNATURE]
    columns = padded(rows)
    for name in HISTORIES:
        wide = np.pad(columns[f"{name}__values"].numpy(), ((0, 0), (0, 9)), constant_values=5)
        columns[f"{name}__values"] = tf.constant(wide)
    np.testing.assert_allclose(score(**columns)["score"], expected_of(exported.model, rows), atol=SCORE_ROUNDING)
    empty = {f"{name}__nnzs": tf.zeros((6, 1), tf.int32) for name in HISTORIES}
    nothing = {f"{name}__values": tf.zeros((6, 0), tf.int64) for name in HISTORIES}
    np.testing.assert_allclose(
        score(**columns | empty)["score"], score(**columns | empty | nothing)["score"], atol=SCORE_ROUNDING
    )
    # Of a history that is too long the right-most items count.
    rng = np.random.default_rng(0)
    long = rng.integers(3, 7, (6, MAX_LENGTH + 20))
    scores = []
    for values in (long, long[:, -MAX_LENGTH:]):
        lists = {f"{name}__values": tf.constant(values) for name in HISTORIES}
        lists |= {f"{name}__nnzs": tf.fill((6, 1), values.shape[1]) for name in HISTORIES}
        scores.append(score(**columns | lists)["score"])
    np.testing.assert_allclose(scores[0], scores[1], atol=SCORE_ROUNDING)


def test_one_trace_serves_every_size_and_holds_no_keras_object(exported: Exported) -> None:
    loaded = tf.saved_model.load(str(exported.path))
    for num_rows in (1, 5, 40):
        loaded(flat(make_table(num_rows, seed=0)))
    assert len(loaded.__call__.concrete_functions) == 1
    assert not (exported.path / "keras_metadata.pb").exists()


# merlin-core and dask use interfaces that their own dependencies have deprecated.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_merlin_systems_finds_the_right_columns_and_scores(exported: Exported) -> None:
    from merlin.table import TensorTable

    operator = merlin_operator("tensorflow", "PredictTensorflow")(str(exported.path))
    assert sorted(operator.input_schema.column_names) == sorted((*SINGLES, *HISTORIES))
    rows = make_table(3, seed=0)
    table = TensorTable({name: tensor.numpy() for name, tensor in flat(rows).items()})
    got = operator.transform(None, table)["score"].values
    np.testing.assert_allclose(got, expected_of(exported.model, rows), atol=SCORE_ROUNDING)


@pytest.mark.parametrize(
    "histories", [[[3, 4, 5], []], [[]], [[3, 4, 5, 6] * 5]], ids=["two", "one, empty", "one, long"]
)
def test_pyfunc_scores_data_frames_with_lists(exported: Exported, histories: list[list[int]]) -> None:
    num_rows = len(histories)
    frame = pd.DataFrame(
        {
            **{name: np.arange(3, 3 + num_rows) for name in SINGLES},
            **dict.fromkeys(HISTORIES, histories),
        }
    )
    got = _load_pyfunc(str(exported.path)).predict(frame)
    rows = pa.Table.from_pandas(
        frame.assign(**dict.fromkeys(LISTS[2:], histories)),
        pa.schema([*((name, pa.int64()) for name in SINGLES), *((name, pa.list_(pa.int64())) for name in LISTS)]),
    )
    assert list(got.columns) == ["score"]
    np.testing.assert_allclose(got["score"], expected_of(exported.model, rows)[:, 0], atol=SCORE_ROUNDING)
