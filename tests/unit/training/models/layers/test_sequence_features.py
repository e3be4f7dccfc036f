"""The lookup of users, targets and histories against NumPy."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from rankline.training.models.layers import Lists, SequenceFeatures
from rankline.training.models.layers.sequence_features import PaddedLists
from rankline.workflows.core.errors import ConfigError, SpecError
from rankline.workflows.schema.feature_spec import Feature, FeatureSpec
from tests.examples import examples
from tests.oracles.tolerance import ROUNDING

NUM_USERS, NUM_ITEMS, NUM_CATEGORIES, MAX_LENGTH, DIMENSION = 6, 12, 5, 6, 3
ITEM_FEATURES = ("item", "category")
LENGTHS = (3, 0, MAX_LENGTH, 1)


def make_spec(max_length: int = MAX_LENGTH) -> FeatureSpec:
    sizes = {"item": NUM_ITEMS, "category": NUM_CATEGORIES}
    lists = {"is_list": True, "max_length": max_length}
    features = [
        Feature(name=f"{name}_{suffix}", dtype="int64", cardinality=size, embedding_dim=8, **options)
        for suffix, options in (("trgt", {}), ("pos", lists), ("neg", lists))
        for name, size in sizes.items()
    ]
    user = Feature(name="user", dtype="int64", cardinality=NUM_USERS, embedding_dim=8)
    channels = {
        "user_features": ("user",),
        "target_item_features": ("item_trgt", "category_trgt"),
        "positive_history": ("item_pos", "category_pos"),
        "negative_history": ("item_neg", "category_neg"),
        "label": ("label",),
    }
    return FeatureSpec(features=(user, *features, Feature(name="label", dtype="float32")), channels=channels)


class Rows:
    """Random rows, in every layout in which the layer takes them."""

    def __init__(self, lengths: Sequence[int], num_candidates: int = 1, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        sizes = {"item": NUM_ITEMS, "category": NUM_CATEGORIES}
        self.lengths, self.num_rows = np.array(lengths, np.int32), len(lengths)
        self.user = rng.integers(NUM_USERS, size=(self.num_rows, 1))
        self.targets = {name: rng.integers(size, size=(self.num_rows, num_candidates)) for name, size in sizes.items()}
        self.lists = {
            f"{name}_{suffix}": [rng.integers(size, size=length) for length in lengths]
            for suffix in ("pos", "neg")
            for name, size in sizes.items()
        }

    def singles(self, candidate: int | None = None) -> dict[str, Any]:
        columns = slice(None) if candidate is None else slice(candidate, candidate + 1)
        targets = {f"{name}_trgt": tf.constant(ids[:, columns]) for name, ids in self.targets.items()}
        return {"user": tf.constant(self.user), **targets}

    def batch(self, candidate: int | None = None) -> dict[str, Any]:
        tensors = self.singles(candidate)
        for name, lists in self.lists.items():
            tensors[f"{name}__values"] = tf.constant(np.concatenate([[], *lists])[:, None], tf.int64)
            tensors[f"{name}__nnzs"] = tf.constant(self.lengths[:, None])
        return tensors

    def flat_columns(self) -> dict[str, Any]:
        rows = tf.constant(np.repeat(np.arange(self.num_rows), self.lengths))
        lists = {name: tf.constant(np.concatenate([[], *lists]), tf.int64) for name, lists in self.lists.items()}
        return self.singles() | {name: Lists(values, rows, self.num_rows) for name, values in lists.items()}

    def padded_columns(self, width: int) -> dict[str, Any]:
        columns = self.singles()
        for name, lists in self.lists.items():
            values = np.zeros((self.num_rows, width), np.int64)
            for row, ids in zip(values, lists, strict=True):
                row[: len(ids)] = ids
            columns[name] = PaddedLists(tf.constant(values), tf.constant(self.lengths[:, None]))
        return columns


def make_layer(max_length: int = MAX_LENGTH, **options: Any) -> SequenceFeatures:
    return SequenceFeatures(make_spec(max_length), dimension=DIMENSION, initializer="uniform", **options)


def expected(layer: SequenceFeatures, rows: Rows, num_steps: int, num_recent: int) -> dict[str, Any]:
    """One place at a time."""
    tables = {name.removesuffix("_trgt"): table.numpy() for name, table in layer.tables.items()}
    biases = {name.removesuffix("_trgt"): table.numpy() for name, table in layer.bias_tables.items()}

    def placed(suffix: str, num_steps: int) -> Any:
        result = np.zeros((rows.num_rows, num_steps, DIMENSION * 2))
        for row in range(rows.num_rows):
            length = rows.lengths[row]
            for back in range(1, min(length, num_steps) + 1):
                ids = [rows.lists[f"{name}_{suffix}"][row][length - back] for name in ITEM_FEATURES]
                pairs = zip(ITEM_FEATURES, ids, strict=True)
                result[row, num_steps - back] = np.concatenate([tables[name][i] for name, i in pairs])
        return result

    num_candidates = rows.targets["item"].shape[1]
    same = np.zeros((rows.num_rows, num_candidates, num_steps))
    for row, candidate, back in np.ndindex(rows.num_rows, num_candidates, num_steps):
        listed = rows.lists["category_pos"][row][::-1]
        if back < len(listed):
            same[row, candidate, num_steps - 1 - back] = listed[back] == rows.targets["category"][row, candidate]
    return {
        "target": np.concatenate([tables[name][rows.targets[name]] for name in ITEM_FEATURES], axis=-1),
        "history": placed("pos", num_steps),
        "mask": (np.arange(num_steps) >= num_steps - rows.lengths[:, None]).astype(np.float32),
        "user": tables["user"][rows.user[:, 0]],
        "bias": sum(biases[name][rows.targets[name]][..., 0] for name in ITEM_FEATURES),
        "same": same,
        "negatives": placed("neg", num_recent),
    }


def assert_equal(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(got[name], value, **ROUNDING, err_msg=name)


@examples(1 / 4)
@given(
    lengths=st.lists(st.integers(0, MAX_LENGTH + 2), min_size=1, max_size=4),
    num_recent=st.integers(1, 4),
    length=st.sampled_from([None, 4, 9]),
    seed=st.integers(0, 99),
)
def test_history_positions_hold_their_rows_latest_last(
    lengths: list[int], num_recent: int, length: int | None, seed: int
) -> None:
    rows = Rows(lengths, seed=seed)
    layer = make_layer(num_recent=num_recent, length=length, biases=True, same=True)
    layer(rows.batch())
    for table in layer.bias_tables.values():
        table.assign(tf.random.stateless_normal(table.shape, (seed, 1)))
    num_steps = length or max(num_recent, min(max(lengths), MAX_LENGTH))
    wanted = expected(layer, rows, num_steps, num_recent)
    got = layer.call(rows.batch())
    assert_equal(got, wanted)
    assert all(tuple(got[name].shape) == value.shape for name, value in wanted.items())


@pytest.mark.parametrize("length", [None, 4])
@pytest.mark.parametrize("num_candidates", [1, 3])
def test_serving_looks_up_the_same_whatever_the_layout(length: int | None, num_candidates: int) -> None:
    rows = Rows(LENGTHS, num_candidates)
    layer = make_layer(num_recent=2, length=length, biases=True, same=True)
    layer(rows.batch(0))
    flat = layer.for_serving().lookup(rows.flat_columns())
    assert_equal(flat, expected(layer, rows, length or MAX_LENGTH, 2))
    for width in (MAX_LENGTH, MAX_LENGTH + 3):
        assert_equal(layer.lookup(rows.padded_columns(width)), flat)
    for candidate in range(num_candidates):
        one = layer.call(rows.batch(candidate))
        for name in ("target", "bias", "same"):
            np.testing.assert_array_equal(one[name][:, 0], flat[name][:, candidate])
        for name in ("history", "mask", "user", "negatives"):
            np.testing.assert_array_equal(one[name], flat[name])


def test_missing_negatives_are_zeros() -> None:
    rows, layer = Rows(LENGTHS), make_layer(num_recent=2)
    layer(rows.batch())
    scored = {name: tensor for name, tensor in rows.batch().items() if "_neg" not in name}
    columns = {name: column for name, column in rows.flat_columns().items() if "_neg" not in name}
    spec = make_spec().for_scoring
    other = SequenceFeatures(spec, dimension=DIMENSION, initializer="uniform", num_recent=2)
    for got in (layer.call(scored), layer.lookup(columns), other(scored)):
        np.testing.assert_array_equal(got["negatives"], np.zeros((4, 2, 2 * DIMENSION)))
    assert layer.call(rows.batch())["negatives"].numpy().any()


def test_gradients_touch_only_the_rows_that_were_looked_up() -> None:
    rows = Rows([2, 0])
    rows.targets = {"item": np.array([[5], [6]]), "category": np.array([[3], [3]])}
    rows.lists["item_pos"] = [np.array([7, 5]), np.array([], np.int64)]
    rows.lists["category_pos"] = [np.array([4, 3]), np.array([], np.int64)]
    rows.lists["item_neg"] = [np.array([9, 8]), np.array([], np.int64)]
    rows.lists["category_neg"] = [np.array([2, 2]), np.array([], np.int64)]
    layer = make_layer(num_recent=1, biases=True)
    with tf.GradientTape() as tape:
        result = layer(rows.batch())
        loss = tf.add_n([tf.reduce_sum(result[name]) for name in ("target", "history", "negatives", "user", "bias")])
    variables = {**layer.tables, **{f"{name}_bias": table for name, table in layer.bias_tables.items()}}
    gradients = dict(zip(variables, tape.gradient(loss, list(variables.values())), strict=True))
    assert all(isinstance(gradient, tf.IndexedSlices) for gradient in gradients.values())
    touched = {name: set(gradient.indices.numpy()) for name, gradient in gradients.items()}
    assert touched["item_trgt"] == {5, 6, 7, 8}  # 9 is not among the recent negatives, 0 is no padding
    assert touched["category_trgt"] == {2, 3, 4}
    assert touched["item_trgt_bias"] == {5, 6}
    assert touched["user"] == set(rows.user[:, 0])
    of_items = tf.convert_to_tensor(gradients["item_trgt"])
    np.testing.assert_array_equal(of_items[:, 0], [0, 0, 0, 0, 0, 2, 1, 1, 1, 0, 0, 0])


def test_tables_are_gathered_once_and_never_read_whole() -> None:
    layer, rows = make_layer(num_recent=2, biases=True, same=True), Rows(LENGTHS)

    def gradients(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(part) for part in layer(batch).values()])
        return [gradient.values for gradient in tape.gradient(loss, layer.trainable_variables)]

    layer(rows.batch())
    graph = tf.function(gradients).get_concrete_function(rows.batch()).graph
    kinds = [operation.type for operation in graph.get_operations()]
    assert kinds.count("ResourceGather") == len(layer.trainable_variables)
    assert "ReadVariableOp" not in kinds


def test_lists_of_unequal_lengths_and_ids_outside_of_their_table_are_errors() -> None:
    layer, batch = make_layer(), Rows((2, 1)).batch()
    layer(batch)
    for changed, message in (
        ({"category_pos__nnzs": tf.constant([[1], [2]])}, "lists item_pos and category_pos have different lengths"),
        ({"item_pos__values": tf.constant([[1], [NUM_ITEMS], [2]], tf.int64)}, "12 is not in"),
        ({"category_trgt": tf.constant([[-1], [0]], tf.int64)}, "-1 is not in"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            tf.function(layer.call)(batch | changed)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (partial(make_layer, length=2, num_recent=3), ConfigError, "length is 2"),
        (partial(make_layer, length=0), ConfigError, "length is 0"),
        (
            lambda: SequenceFeatures(
                FeatureSpec(features=(Feature(name="label", dtype="float32"),), channels={"label": ("label",)}),
                dimension=2,
                initializer="uniform",
            ),
            SpecError,
            "which sequence features need",
        ),
    ],
)
def test_sequence_features_refuse_what_they_cannot_do(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
