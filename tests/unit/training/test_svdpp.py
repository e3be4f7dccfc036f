from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from sequence_rows import keras_batch, make_spec

from tests.support.rounding import SCORE_ROUNDING
from training.config import TrainConfig
from training.layers import RatedHistory
from training.models.din import DINConfig
from training.models.svdpp import SVDppConfig
from training.saved_model import export_saved_model, load_signature
from workflows.errors import ConfigError, SpecError
from workflows.feature_spec import Feature, FeatureSpec

MODEL = SVDppConfig(embedding_dim=4, embedding_init=0.5, hidden=(8,))
RUN = TrainConfig(model=MODEL)
LENGTHS, MAX_LENGTH = (3, 0, 1, 5), 5


def spec() -> FeatureSpec:
    sizes = {"user": 9, "item_trgt": 12, "year_trgt": 6, "item_pos": 12, "year_pos": 6, "stars_grade": 8}
    features = [
        Feature(
            name=name,
            dtype="int64",
            cardinality=size,
            embedding_dim=4,
            is_list=name.endswith(("_pos", "_grade")),
            max_length=MAX_LENGTH if name.endswith(("_pos", "_grade")) else None,
        )
        for name, size in sizes.items()
    ]
    return FeatureSpec(
        features=(*features, Feature(name="label", dtype="float32")),
        channels={
            "user_features": ("user",),
            "target_item_features": ("item_trgt", "year_trgt"),
            "positive_history": ("item_pos", "year_pos"),
            "history_grades": ("stars_grade",),
            "label": ("label",),
        },
    )


def rows(seed: int = 0) -> dict[str, Any]:
    """Four rows: the first rated item 5 among others, and is asked for it."""
    rng = np.random.default_rng(seed)
    lists = {name: [rng.integers(3, size, n) for n in LENGTHS] for name, size in (("item", 12), ("year", 6), ("s", 8))}
    lists["item"][0] = np.array([7, 5, 4])
    lists["year"][0][1] = 3  # as the item to score has it
    return {
        "user": [3, 4, 5, 6],
        "item_trgt": [5, 6, 3, 2],
        "year_trgt": [3, 4, 5, 3],
        "item_pos": lists["item"],
        "year_pos": lists["year"],
        "stars_grade": lists["s"],
    }


def scores(model: Any, columns: dict[str, Any]) -> Any:
    return model(keras_batch(pa.table(columns), spec())).numpy()


@pytest.fixture(scope="module")
def model() -> Any:
    built = MODEL.build(spec(), RUN)
    rng = np.random.default_rng(1)
    built.set_weights([rng.normal(scale=0.3, size=weight.shape) for weight in built.get_weights()])
    return built


def test_a_row_does_not_know_its_own_rating(model: Any) -> None:
    before, given = scores(model, rows()), rows()
    given["stars_grade"][0][1] += 1 if given["stars_grade"][0][1] < 7 else -1  # of item 5, the row's own
    np.testing.assert_allclose(scores(model, given), before, atol=SCORE_ROUNDING)
    given["stars_grade"][0][0] = 3 if given["stars_grade"][0][0] != 3 else 4  # of item 7
    assert abs(scores(model, given)[0] - before[0]) > SCORE_ROUNDING


def test_a_rated_row_scores_as_if_its_user_had_not_rated_it(model: Any) -> None:
    given = rows()
    for name in ("item_pos", "year_pos", "stars_grade"):
        given[name][0] = np.delete(given[name][0], 1)
    np.testing.assert_allclose(scores(model, given), scores(model, rows()), atol=SCORE_ROUNDING)


def test_the_user_is_only_what_was_rated(model: Any) -> None:
    np.testing.assert_array_equal(scores(model, rows() | {"user": [8, 8, 8, 1]}), scores(model, rows()))


def test_the_saved_model_scores_several_candidates_as_rows_of_their_own(model: Any, tmp_path: Path) -> None:
    export_saved_model(model, spec(), tmp_path / "model")
    score, given = load_signature(tmp_path / "model"), rows()
    padded: dict[str, Any] = {"user": tf.constant(given["user"], tf.int64)[:, None]}
    for name in ("item_pos", "year_pos", "stars_grade"):
        values = np.zeros((4, MAX_LENGTH), np.int64)
        for place, row in enumerate(given[name]):
            values[place, : len(row)] = row
        padded |= {f"{name}__values": values, f"{name}__nnzs": np.array(LENGTHS, np.int32)[:, None]}
    for name in ("item_trgt", "year_trgt"):
        padded[name] = np.tile(given[name], (4, 1)).astype(np.int64)
    together = score(**{name: tf.constant(value) for name, value in padded.items()})["score"].numpy()
    np.testing.assert_allclose(np.diag(together)[:, None], scores(model, given), atol=SCORE_ROUNDING)


def test_without_items_nothing_is_said_but_constants() -> None:
    layer = RatedHistory(2)
    target, history = tf.ones((1, 1, 4)), tf.ones((1, 3, 4))
    graded, implicit, numbers = layer([target, history, tf.zeros((1, 3)), tf.zeros((1, 1, 3)), tf.ones((1, 3))])
    assert not np.any(graded)
    assert not np.any(implicit)
    np.testing.assert_allclose(numbers[0, 0], [0, -1, 0, 0, -1, 0, 0, -1, 0])


def test_the_mean_of_grades_is_shrunk() -> None:
    layer = RatedHistory(1)
    grade = tf.constant([[1.0, 2.0, 100.0]])
    own = tf.constant([[[0.0, 0.0, 1.0]]])
    _, _, numbers = layer([tf.zeros((1, 1, 4)), tf.zeros((1, 3, 4)), tf.ones((1, 3)), own, grade])
    assert float(numbers[0, 0, 0]) == pytest.approx(20 * 3 / (2 + 5))
    assert RatedHistory.from_config(layer.get_config()).heads == 1


def test_histories_without_grades_are_refused() -> None:
    with pytest.raises(SpecError, match="takes histories with grades .* Choose one of dien, din, sim"):
        MODEL.build(make_spec(), RUN)


def test_histories_with_grades_are_refused_by_models_that_would_see_the_rows_own_item() -> None:
    with pytest.raises(SpecError, match="takes histories without grades .* Choose one of svdpp"):
        DINConfig().build(spec(), TrainConfig(model=DINConfig()))


def test_heads_must_divide_the_dimension() -> None:
    with pytest.raises(ConfigError, match="heads"):
        SVDppConfig(embedding_dim=8, heads=3)
