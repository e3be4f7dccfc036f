from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from rankline.training.config.train import TrainConfig
from rankline.training.models import MODELS, check_rows
from rankline.training.models.sequential import DIENConfig, DINConfig, SIMConfig
from rankline.workflows.core.errors import SpecError
from rankline.workflows.schema.feature_spec import Feature, FeatureSpec, SpecMetadata
from tests.factories.training.sequences import LISTS, MAX_LENGTH, keras_batch, make_spec, make_table
from tests.oracles.tolerance import SCORE_ROUNDING

DIN = DINConfig(hidden=(16, 8), embedding_dim=4, embedding_init=0.5)
DIEN = DIENConfig(**vars(DIN), short_history=4, gru_units=5, aux_hidden=(6,))
SIM = SIMConfig(**vars(DIEN), stage_one_hidden=(8,), num_searched=3)
SPEC = make_spec()
KINDS = {
    "din": TrainConfig(model=DIN),
    "dien": TrainConfig(model=DIEN),
    "sim": TrainConfig(model=SIM),
    "sim, hard": TrainConfig(model=SIM).with_choices(search="hard"),
    "din, recency": TrainConfig(model=DIN).with_choices(recency=True, dot_product_features=True),
    "sim, recency": TrainConfig(model=SIM).with_choices(recency=True, dot_product_features=True),
    "din, reference": TrainConfig(model=DIN).with_choices(variant="reference"),
    "sim, reference": TrainConfig(model=SIM).with_choices(variant="reference"),
}
all_kinds = pytest.mark.parametrize("config", KINDS.values(), ids=list(KINDS))


@cache
def built(config: TrainConfig) -> Any:
    """A model with weights that make differences plain. Tests share it, so none may change it."""
    return with_large_weights(config.model.build(SPEC, config))


def built_of(spec: FeatureSpec, config: TrainConfig) -> Any:
    return config.model.build(spec, config)


def with_large_weights(model: Any) -> Any:
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(scale=0.4, size=weight.shape) for weight in model.get_weights()])
    return model


def without_evolution(model: Any) -> Any:
    """The model with a recurrent part whose state stays zero."""
    for weight in model.weights:
        if "dien_block" in weight.name:
            weight.assign(tf.zeros_like(weight))
    return model


def scores(model: Any, batch: Mapping[str, Any]) -> Any:
    return tf.nest.flatten(model(batch))[0].numpy()


def with_lists(rows: pa.Table, change: Any) -> pa.Table:
    """The rows with each list as `change` makes it."""
    for name in LISTS:
        lists = pa.array([change(values) for values in rows[name].to_pylist()], pa.list_(pa.int64()))
        rows = rows.set_column(rows.schema.get_field_index(name), name, lists)
    return rows


@pytest.mark.slow
@all_kinds
def test_sequential_model_gives_each_row_of_the_loader_a_score_of_its_own(config: TrainConfig) -> None:
    model, rows = built(config), make_table(4, seed=0)
    together = scores(model, keras_batch(rows))
    assert sorted(model.input) == sorted(keras_batch(rows))
    has_stage_one = isinstance(config.model, SIMConfig) and config.model.search == "soft"
    assert model.output_names == (["output", "stage_one"] if has_stage_one else ["output"])
    assert together.shape == (4, 1)
    assert ((together > 0) & (together < 1)).all()
    assert len(np.unique(together)) == 4
    # A batch of one row, and what stands beside a row, which sets the width of the padding, change nothing.
    alone = [scores(model, keras_batch(rows.slice(number, 1))) for number in range(4)]
    np.testing.assert_allclose(np.concatenate(alone), together, atol=SCORE_ROUNDING)
    assert scores(model, keras_batch(rows.slice(0, 0))).shape == (0, 1)


@all_kinds
def test_empty_history_has_a_score_and_gradients_that_are_numbers(config: TrainConfig) -> None:
    model = built(config)
    batch = keras_batch(with_lists(make_table(4, seed=0), lambda _: []))
    with tf.GradientTape() as tape:
        outputs = tf.nest.flatten(model(batch, training=True))
        loss = tf.add_n([tf.reduce_sum(output) for output in outputs] + model.losses)
    assert np.isfinite(loss)
    for gradient in tape.gradient(loss, model.trainable_variables, unconnected_gradients="zero"):
        assert np.isfinite(tf.convert_to_tensor(gradient)).all()


@all_kinds
def test_latest_items_of_a_history_that_is_too_long_count(config: TrainConfig) -> None:
    model, rows = built(config), make_table(5, seed=1)
    rng = np.random.default_rng(0)
    exact = with_lists(rows, lambda values: (values * 4 + rng.integers(3, 7, MAX_LENGTH).tolist())[:MAX_LENGTH])
    longer = with_lists(exact, lambda values: [3, 4, *values])
    np.testing.assert_allclose(
        scores(model, keras_batch(longer)), scores(model, keras_batch(exact)), atol=SCORE_ROUNDING
    )


def test_model_sees_its_part_of_a_history() -> None:
    rows = with_lists(make_table(6, seed=2), lambda values: (values * MAX_LENGTH or [3] * MAX_LENGTH)[:MAX_LENGTH])
    swapped_far, swapped_near = (
        with_lists(rows, lambda v, at=at: [*v[:at], 3 + (v[at] - 2) % 3, *v[at + 1 :]]) for at in (1, 10)
    )
    sim = KINDS["sim"].with_choices(num_searched=MAX_LENGTH)
    for config, sees_far in ((KINDS["din"], True), (KINDS["dien"], False), (sim, True)):
        model = built(config)
        before, far, near = (scores(model, keras_batch(table)) for table in (rows, swapped_far, swapped_near))
        assert np.any(far != before) == sees_far
        assert np.any(near != before)


def test_hard_search_sees_earlier_items_of_the_targets_category_only() -> None:
    model = built(KINDS["sim, hard"])
    rows = make_table(1, seed=0)
    batch = keras_batch(rows) | {
        "item_id_trgt": tf.constant([[8]], tf.int64),
        "category_id_trgt": tf.constant([[4]], tf.int64),
    }

    def scored(items: list[int], categories: list[int]) -> Any:
        lists = {
            "item_id_pos": items,
            "category_id_pos": categories,
            "item_id_neg": items,
            "category_id_neg": categories,
        }
        for name, values in lists.items():
            batch[f"{name}__values"] = tf.constant(values, tf.int64)[:, None]
            batch[f"{name}__nnzs"] = tf.constant([[len(values)]], tf.int32)
        return scores(model, batch)

    latest = [10, 11, 12, 13]
    start = scored([20, 21, 22, *latest], [3, 4, 5, 3, 3, 3, 3])
    assert np.any(scored([20, 30, 22, *latest], [3, 4, 5, 3, 3, 3, 3]) != start)
    np.testing.assert_array_equal(scored([30, 21, 31, *latest], [5, 4, 3, 3, 3, 3, 3]), start)
    # The search is over when it has found `num_searched`, the latest ones first.
    full = scored([20, 21, 22, 23, *latest], [4] * 4 + [3] * 4)
    np.testing.assert_array_equal(scored([30, 21, 22, 23, *latest], [4] * 4 + [3] * 4), full)


@pytest.mark.parametrize("name", ["din", "dien", "sim"])
@pytest.mark.parametrize(("num_user_features", "num_item_features"), [(0, 1), (2, 3)])
def test_any_number_of_features(name: str, num_user_features: int, num_item_features: int) -> None:
    users = [Feature(name=f"u{n}", dtype="int64", cardinality=9, embedding_dim=2) for n in range(num_user_features)]
    items = [
        Feature(
            name=f"i{n}_{kind}",
            dtype="int64",
            cardinality=9 + n,
            embedding_dim=2,
            is_list=kind != "trgt",
            max_length=None if kind == "trgt" else 5,
        )
        for kind in ("trgt", "pos", "neg")
        for n in range(num_item_features)
    ]
    names = [feature.name for feature in items]
    channels = {
        "label": ("label",),
        "user_features": tuple(feature.name for feature in users),
        **{
            channel: tuple(names[start * num_item_features : (start + 1) * num_item_features])
            for start, channel in enumerate(("target_item_features", "positive_history", "negative_history"))
        },
    }
    spec = FeatureSpec(features=(*users, *items, Feature(name="label", dtype="float32")), channels=channels)
    batch = {}
    for feature in (*users, *items):
        if feature.is_list:
            batch |= {f"{feature.name}__values": tf.constant([[3], [4], [5]], tf.int64)}
            batch |= {f"{feature.name}__nnzs": tf.constant([[1], [2]], tf.int32)}
        else:
            batch[feature.name] = tf.constant([[3], [4]], tf.int64)
    model = with_large_weights(built_of(spec, KINDS[name]))
    assert scores(model, batch).shape == (2, 1)
    assert len(model.get_layer("features").tables) == num_user_features + num_item_features


@pytest.mark.parametrize("name", ["din", "sim"])
def test_linear_terms_add_one_weight_per_id_of_the_target(name: str) -> None:
    rows = keras_batch(make_table(3, seed=0))
    model = with_large_weights(built_of(SPEC, KINDS[name].with_choices(linear_scale=2.0)))
    before = scores(model, rows)
    for key, weight in (("item_id_trgt", 0.5), ("category_id_trgt", 0.25)):
        table = model.get_layer("features").bias_tables[key]
        table.assign_add(tf.fill(table.shape, weight))
    logits = [np.log(found / (1 - found)) for found in (before, scores(model, rows))]
    np.testing.assert_allclose(logits[1] - logits[0], np.full((3, 1), 1.5), atol=1e-4)
    without = built_of(SPEC, KINDS[name].with_choices(linear_terms=False))
    assert not without.get_layer("features").bias_tables


@pytest.mark.slow
@pytest.mark.parametrize("name", ["din", "dien", "sim", "sim, hard"])
def test_fixed_length_as_xla_wants_it_gives_the_same(name: str) -> None:
    config = KINDS[name]
    model, fixed = built(config), built(config.with_choices(xla=True))
    rows = keras_batch(with_lists(make_table(6, seed=0), lambda values: values[:5]))
    assert fixed.get_layer("features").length is not None
    np.testing.assert_allclose(scores(fixed, rows), scores(model, rows), atol=SCORE_ROUNDING)


def test_tables_get_sparse_gradients_by_names_that_optimizers_know_and_one_penalty_per_part() -> None:
    model = built_of(SPEC, KINDS["sim"].with_choices(l2_embedding=0.5, l2_linear=0.25, aux_weight=0.0))
    rows = keras_batch(make_table(8, seed=0))
    with tf.GradientTape() as tape:
        tf.nest.flatten(model(rows, training=True))
        penalty = tf.add_n(model.losses)
    found = model.get_layer("features")(rows)
    expected = 0.5 * sum(float(tf.reduce_sum(found[name] ** 2)) for name in ("target", "history", "user")) / 8
    assert float(penalty) == pytest.approx(expected + 0.25 * float(tf.reduce_sum(found["bias"] ** 2)) / 8, rel=1e-5)
    tables = model.get_layer("features").trainable_variables
    assert all(table.name.removesuffix(":0").endswith("_embedding") for table in tables)
    assert all(isinstance(gradient, tf.IndexedSlices) for gradient in tape.gradient(penalty, tables))


@pytest.mark.parametrize("name", ["dien", "sim"])
@pytest.mark.parametrize(
    ("spec", "aux_weight"), [(SPEC.for_scoring, 1.0), (SPEC, 0.0)], ids=["no negatives", "no weight"]
)
def test_auxiliary_loss_needs_negatives_and_a_weight(name: str, spec: FeatureSpec, aux_weight: float) -> None:
    model = built_of(spec, KINDS[name].with_choices(aux_weight=aux_weight))
    model(keras_batch(make_table(5, seed=0), spec), training=True)
    assert model.losses == []
    assert not any("auxiliary" in variable.name for variable in model.variables)


@pytest.mark.parametrize("name", ["din", "sim"])
def test_several_negatives_keep_one_score_per_row(name: str) -> None:
    spec = replace(SPEC, metadata=SpecMetadata(negatives=4))
    model, rows = with_large_weights(built_of(spec, KINDS[name])), keras_batch(make_table(5, seed=0))
    np.testing.assert_array_equal(scores(model, rows), scores(built(KINDS[name]), rows))
    for learnt, scored in zip(*(tf.nest.flatten(model(rows, training=mode)) for mode in (True, False)), strict=True):
        np.testing.assert_allclose(4 * learnt / (1 - learnt), scored / (1 - scored), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("search", ["soft", "hard"])
def test_exact_search_weighs_findings_against_the_latest_items_and_knows_how_long_ago(search: str) -> None:
    """The recurrent part is held at zero, so that nothing else sees the latest items."""
    config = KINDS["sim"].with_choices(search=search, num_searched=MAX_LENGTH, aux_weight=0.0)
    rows = with_lists(make_table(6, seed=2), lambda values: (values * MAX_LENGTH or [3] * MAX_LENGTH)[:MAX_LENGTH])
    latest_swapped = with_lists(rows, lambda v: [*v[:-2], v[-1], v[-2]])
    earlier_swapped = with_lists(rows, lambda v: [v[1], v[0], *v[2:]])
    for variant, sees in (("corrected", True), ("reference", False)):
        model = built_of(SPEC, config.with_choices(variant=variant))
        model = without_evolution(with_large_weights(model))
        before, latest, earlier = (
            scores(model, keras_batch(table)) for table in (rows, latest_swapped, earlier_swapped)
        )
        assert (np.abs(latest - before).max() > 1e-4) == sees
        if search == "soft":
            assert (np.abs(earlier - before).max() > 1e-4) == sees


PLAIN = FeatureSpec(
    features=(Feature(name="u", dtype="int64", cardinality=5, embedding_dim=2), Feature(name="y", dtype="float32")),
    channels={"categorical": ("u",), "label": ("y",)},
)


def test_user_can_be_left_out() -> None:
    rows = keras_batch(make_table(5, seed=0))
    others = rows | {"user_id": 3 + (rows["user_id"] - 2) % 30}
    assert np.any(scores(built(KINDS["sim"]), rows) != scores(built(KINDS["sim"]), others))
    without = built(KINDS["sim"].with_choices(user_embeddings=False))
    np.testing.assert_array_equal(scores(without, rows), scores(without, others))
    assert "user_id" not in without.get_layer("features").tables


AGE = Feature(name="age", dtype="float32")
WITH_AGE = replace(SPEC, features=(*SPEC.features, AGE), channels={**SPEC.channels, "continuous": ("age",)})


@pytest.mark.parametrize(
    ("name", "spec", "message"),
    [
        ("sim", PLAIN, "'sim' requires rows with a history and.*Choose one of .*dcnv2, .*mlp"),
        ("torch_mlp", SPEC, r"'torch_mlp' requires rows without a.* Choose one of dien, din, sim\."),
        ("din", WITH_AGE, r"but \['age'\] are not"),
    ],
)
def test_model_refuses_rows_of_another_kind(name: str, spec: FeatureSpec, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        check_rows(spec, MODELS[name]())
        built_of(spec, KINDS[name])
