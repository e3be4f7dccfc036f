"""A Bayesian factorisation machine: what it learns, what it must not know, and that what is served says the same."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tensorflow as tf

from rankline.serving.engines.onnxruntime import ENGINE as ONNX
from rankline.training.config.train import TrainConfig
from rankline.training.export.saved_model import export_saved_model, load_signature
from rankline.training.models.factorization import BayesianFMConfig
from rankline.training.models.factorization.bayesian_fm import BayesianFM
from rankline.workflows.core.errors import SpecError
from rankline.workflows.data.auc import exact_auc
from rankline.workflows.schema.feature_spec import FILE_NAME, Feature, FeatureSpec, SpecMetadata
from rankline.workflows.schema.model_artifact import KIND, SAVED_MODEL, TrainedModel
from rankline.workflows.schema.ragged import Ragged
from rankline.workflows.schema.targets import REGRESSION, Head
from rankline.workflows.storage.artifacts import publish
from tests.oracles.tolerance import SCORE_ROUNDING

USERS, ITEMS, GENRES, LONGEST = 123, 63, 9, 4
MODEL = BayesianFMConfig(factors=3, sweeps=60, burn_in=20, served_dim=8)
IDS: Any = {"dtype": "int64", "embedding_dim": 4}
STRANGER = 2
"""The id of whoever and whatever training did not show."""


def spec_of(head: Head | None = None) -> FeatureSpec:
    return FeatureSpec(
        features=(
            Feature(name="user", **IDS, cardinality=USERS),
            Feature(
                name="genres", dtype="int64", cardinality=GENRES, embedding_dim=4, is_list=True, max_length=LONGEST
            ),
            Feature(name="item", **IDS, cardinality=ITEMS),
            Feature(name="label", dtype="float32"),
        ),
        channels={"categorical": ("user", "genres", "item"), "label": ("label",)},
        metadata=SpecMetadata(group_by="user", item="item", heads=(head,) if head else ()),
    )


def inputs_of(num_rows: int, seed: int) -> dict[str, Any]:
    """Users and items that are known, and zero to four genres, which are the item's."""
    rng = np.random.default_rng(seed)
    items = rng.integers(3, ITEMS, num_rows)
    genres = [3 + (item + np.arange(item % (LONGEST + 1))) % (GENRES - 3) for item in items]
    return {"user": rng.integers(3, USERS, num_rows), "genres": Ragged.of_rows(genres), "item": items}


def planted(inputs: dict[str, Any]) -> Any:
    """A score by what user and item are, in two dimensions."""
    users, items = np.random.default_rng(9).normal(size=(USERS, 2)), np.random.default_rng(8).normal(size=(ITEMS, 2))
    return (users[inputs["user"]] * items[inputs["item"]]).sum(axis=1)


def fitted(
    labels: Any, inputs: dict[str, Any], head: Head | None = None, model: BayesianFMConfig = MODEL
) -> BayesianFM:
    machine = BayesianFM(spec_of(head), model)
    machine.begin(machine.matrix(inputs), labels.astype(np.float32), seed=1)
    machine.learn(1.0)
    return machine


@pytest.fixture(scope="module")
def machine() -> BayesianFM:
    rows = inputs_of(8_000, seed=1)
    return fitted(planted(rows) > 0, rows)


def scores(machine: BayesianFM, inputs: dict[str, Any]) -> Any:
    return machine.scores(machine.matrix(inputs))[:, 0]


def test_planted_tastes_are_learned(machine: BayesianFM) -> None:
    rows = inputs_of(4_000, seed=2)
    assert exact_auc(planted(rows) > 0, scores(machine, rows)) > 0.95


def test_numbers_are_learned_in_their_own_unit() -> None:
    head = Head("label", REGRESSION, mean=50.0, deviation=20.0)
    train, valid = inputs_of(8_000, seed=1), inputs_of(2_000, seed=2)
    said = scores(fitted(50 + 20 * planted(train), train, head), valid)
    assert np.sqrt(np.mean((said - 50 - 20 * planted(valid)) ** 2)) < 4


def test_noise_is_not_learned() -> None:
    """Which pairs there are is all that the model knows beside the ids: no label is in it, not even the row's own.
    20,000 rows: the AUC of noise has a deviation of 0.004."""
    labels = np.random.default_rng(3).random(28_000) < 0.5
    pairs = (
        np.random.default_rng(4).permutation((USERS - 3) * (ITEMS - 3) * 4)[:28_000] // 4
    )  # rated twice, some of them
    users, items = np.divmod(pairs, ITEMS - 3)
    rows = {"user": users + 3, "item": items + 3, "genres": Ragged.of_rows([[3 + item % 5] for item in items])}

    def part(begin: int, end: int | None) -> dict[str, Any]:
        lists = np.split(rows["genres"].values, rows["genres"].offsets[1:-1])
        return {name: rows[name][begin:end] for name in ("user", "item")} | {"genres": Ragged.of_rows(lists[begin:end])}

    machine = fitted(labels[:8_000], part(0, 8_000))
    assert exact_auc(labels[8_000:], scores(machine, part(8_000, None))) == pytest.approx(0.5, abs=0.02)


def strangers() -> dict[str, Any]:
    """Known and unknown users and items, with and without genres, and ids of nothing."""
    return {
        "user": np.array([5, STRANGER, 5, STRANGER, 1, 0]),
        "item": np.array([7, 7, STRANGER, STRANGER, 1, 0]),
        "genres": Ragged.of_rows([[4, 5], [4, 5], [], [], [3, 3, 3, 8], [1]]),
    }


def test_unknown_are_as_the_known_are_on_average(machine: BayesianFM) -> None:
    users, genres, items = machine.tables
    np.testing.assert_allclose(users[STRANGER], users[3:].mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(items[STRANGER], items[3:].mean(axis=0), atol=1e-5)
    np.testing.assert_array_equal(genres[1], genres[STRANGER])
    said = scores(machine, strangers())
    assert np.all((said > 0) & (said < 1))


def test_lists_that_are_all_empty_say_nothing() -> None:
    rows = {**inputs_of(500, seed=1), "genres": Ragged.of_rows([[]] * 500)}
    machine = fitted(planted(rows) > 0, rows)
    assert not machine.tables[1].any()


@pytest.mark.parametrize("head", [None, Head("label", REGRESSION, mean=50.0, deviation=20.0)])
def test_saved_model_and_onnx_say_the_same(machine: BayesianFM, head: Head | None, tmp_path: Path) -> None:
    spec, ours = spec_of(head), BayesianFM(spec_of(head), MODEL)
    ours.tables = machine.tables
    details = {"format": SAVED_MODEL, "run_id": "r", "tracking_uri": "", "metrics": {}}
    with publish(tmp_path / "model", KIND, details=details) as staging:
        (staging / FILE_NAME).write_text(spec.to_yaml(), encoding="utf-8")
        export_saved_model(ours.keras_model(), spec, staging / SAVED_MODEL)
    rows = strangers()
    expected, padded = ours.scores(ours.matrix(rows)), rows["genres"].padded()
    tensors = {
        "user": rows["user"][:, None],
        "item": rows["item"][:, None],
        "genres__values": padded.values.astype(np.int64),
        "genres__nnzs": padded.lengths[:, None],
    }
    signature = load_signature(tmp_path / "model" / SAVED_MODEL)
    (served,) = signature(**{name: tf.constant(tensor) for name, tensor in tensors.items()}).values()
    np.testing.assert_allclose(served.numpy(), expected, atol=SCORE_ROUNDING * (1 if head is None else 100))
    ONNX.convert(TrainedModel.load(tmp_path / "model"), tmp_path / "model.onnx")
    (converted,) = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, tensors)
    np.testing.assert_allclose(converted, expected, atol=SCORE_ROUNDING * (1 if head is None else 100))


def without(spec: FeatureSpec, **metadata: Any) -> FeatureSpec:
    return replace(spec, metadata=replace(spec.metadata, **metadata))


def test_users_and_items_may_be_named_and_must_be_known() -> None:
    nameless = without(spec_of(), group_by=None, item=None)
    BayesianFM(nameless, replace(MODEL, user_column="user", item_column="item"))
    with pytest.raises(
        SpecError, match=r"with one user id per row, got None\. Set user_column\. Available: user, item"
    ):
        BayesianFM(nameless, MODEL)
    with pytest.raises(SpecError, match="with one item id per row, got 'genres'"):
        BayesianFM(spec_of(), replace(MODEL, item_column="genres"))
    with pytest.raises(SpecError, match="'user' for both users and items, expected two columns"):
        BayesianFM(spec_of(), replace(MODEL, item_column="user"))


def test_numbers_are_refused(spec: FeatureSpec) -> None:
    with pytest.raises(SpecError, match=r"\['age'\] are numeric"):
        MODEL.build(spec, TrainConfig(model=MODEL))
