"""DLRM against NVIDIA's Criteo notebook and against its own formula."""

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from rankline.training.models.config import StepConfig
from rankline.training.models.tabular import DLRMConfig
from rankline.workflows.core.errors import SpecError
from rankline.workflows.schema.feature_spec import Feature, FeatureSpec
from tests.oracles.tolerance import ROUNDING

CATEGORY_COUNTS = [
    7599500, 33521, 17022, 7339, 20046, 3, 7068, 1377, 63, 5345303, 561810, 242827, 11, 2209, 10616, 100, 4, 968, 14,
    7838519, 2580502, 6878028, 298771, 11951, 97, 35,
]  # fmt: skip
NOTEBOOK = DLRMConfig(embedding_dim=8, bottom_mlp=(1024, 512, 256), top_mlp=(1024, 1024, 512, 256), linear_terms=False)
TINY = replace(NOTEBOOK, embedding_dim=4, bottom_mlp=(5,), top_mlp=(8, 6), embedding_init=1.0)


def spec_of(cardinalities: list[int], num_numbers: int, **channels: tuple[str, ...]) -> FeatureSpec:
    ids = [
        Feature(name=f"C{n}", dtype="int64", cardinality=cardinality, embedding_dim=3)
        for n, cardinality in enumerate(cardinalities)
    ]
    numbers = [Feature(name=f"I{n}", dtype="float32") for n in range(num_numbers)]
    tags = Feature(name="tags", dtype="int64", cardinality=9, embedding_dim=3, is_list=True, max_length=2)
    return FeatureSpec(
        features=(*ids, *numbers, tags, Feature(name="label", dtype="float32")),
        channels={
            "categorical": tuple(feature.name for feature in ids),
            "continuous": tuple(feature.name for feature in numbers),
            "label": ("label",),
            **channels,
        },
    )


SPEC = spec_of([7, 9], 2)


def rows(num_rows: int = 5) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    ids = {f"C{n}": tf.constant(rng.integers(0, 7, (num_rows, 1))) for n in range(2)}
    return {**ids, **{f"I{n}": tf.constant(rng.normal(size=(num_rows, 1)), tf.float32) for n in range(2)}}


def build(model: DLRMConfig, precision: str = "float32") -> Any:
    keras.utils.set_random_seed(0)
    return model.build(SPEC, StepConfig(precision=precision))


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "padding"), [("float32", 0), ("float16", 9 * 1024)])
def test_notebooks_sizes_have_its_numbers_of_weights_and_padding_adds_its_own(precision: str, padding: int) -> None:
    spec = spec_of([int(0.75 * count) for count in CATEGORY_COUNTS], 13)
    with tf.Graph().as_default():  # describes 700 MB of tables without making them
        model = NOTEBOOK.build(spec, StepConfig(precision=precision))
        sizes = {variable.name: prod(variable.shape) for variable in model.trainable_variables}
    tables = sum(size for name, size in sizes.items() if name.endswith("_embedding:0"))
    assert (tables, sum(sizes.values()) - tables) == (188_746_160, 2_747_145 + padding)


def test_dlrm_score_is_the_papers_formula() -> None:
    model, inputs = build(TINY), rows()
    embedded = [model.get_layer("features").table(f"C{n}").numpy()[inputs[f"C{n}"][:, 0]] for n in range(2)]
    weights = [layer.get_weights() for layer in model.layers if isinstance(layer, keras.layers.Dense)]
    relu = [True, False, True, True, False]
    assert [kernel.shape for kernel, _ in weights] == [(2, 5), (5, 4), (7, 8), (8, 6), (6, 1)]

    def through(x: Any, layers: slice) -> Any:
        for (kernel, bias), is_hidden in zip(weights[layers], relu[layers], strict=True):
            x = x @ kernel + bias
            x = np.maximum(x, 0) if is_hidden else x
        return x

    dense = through(np.concatenate([inputs["I0"], inputs["I1"]], axis=1), slice(0, 2))
    vectors = [*embedded, dense]
    pairs = [(vectors[i] * vectors[j]).sum(axis=1, keepdims=True) for i, j in ((1, 0), (2, 0), (2, 1))]
    logit = through(np.concatenate([*pairs, dense], axis=1), slice(2, 5))
    np.testing.assert_allclose(model(inputs), 1 / (1 + np.exp(-logit)), **ROUNDING)


def test_padding_changes_no_score_and_its_weights_are_and_stay_zero() -> None:
    plain, padded = build(TINY), build(TINY, "bfloat16")
    np.testing.assert_allclose(plain(rows()), padded(rows()), **ROUNDING)
    kernels = [first_kernel(model) for model in (plain, padded)]
    assert [kernel.shape for kernel in kernels] == [(7, 8), (16, 8)]
    np.testing.assert_array_equal(kernels[0], kernels[1][:7])
    assert not kernels[1][7:].numpy().any()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(padded(rows()))
    gradient = tape.gradient(loss, kernels[1]).numpy()
    assert gradient[:7].any()
    assert not gradient[7:].any()


def first_kernel(model: Any) -> Any:
    """Of the layer behind the interactions."""
    return next(layer.kernel for layer in model.layers if getattr(layer, "units", None) == TINY.top_mlp[0])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (spec_of([7, 9], 0), r"requires categorical and continuous features, got 2 and 0\. Use model 'mlp'"),
        (spec_of([], 2), r"requires categorical and continuous features, got 0 and 2\. Use model"),
        (spec_of([7], 2, categorical=("C0", "tags")), r"one value per row, but \['tags'\] are lists"),
    ],
)
def test_dlrm_refuses_specs_without_ids_or_numbers_and_lists(spec: FeatureSpec, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        TINY.build(spec, StepConfig())
