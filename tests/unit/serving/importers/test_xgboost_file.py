"""XGBoost's files: the ONNX model scores as XGBoost does, and what cannot is refused by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rankline.serving.export.parity import SCORE_TOLERANCE
from rankline.serving.importers import xgboost as xgboost_file
from rankline.serving.importers.xgboost import read_ubjson
from rankline.workflows.core.errors import ArtifactError
from tests.oracles.trees import NAMES, both_scores, random_rows, signal_of, tried_rows

OBJECTIVES: dict[str, dict[str, Any]] = {
    "reg:squarederror": {},
    "reg:squaredlogerror": {},
    "reg:pseudohubererror": {},
    "reg:absoluteerror": {},
    "reg:quantileerror": {"quantile_alpha": 0.6},
    "reg:expectileerror": {"expectile_alpha": 0.6},
    "reg:logistic": {},
    "reg:gamma": {},
    "reg:tweedie": {},
    "count:poisson": {},
    "survival:cox": {},
    "survival:aft": {},
    "binary:logistic": {},
    "binary:logitraw": {},
    "multi:softprob": {"num_class": 3},
    "rank:pairwise": {},
    "rank:ndcg": {},
    "rank:map": {},
}


def train(
    rows: NDArray[np.float32],
    objective: str = "reg:squarederror",
    trees: int = 10,
    names: Any = NAMES,
    categories: bool = False,
    **options: Any,
) -> xgboost.Booster:
    signal = signal_of(rows)
    labels = {
        "reg:logistic": np.clip(signal / 4, 0, 1),
        "count:poisson": np.round(signal),
        "multi:softprob": np.digitize(signal, [1, 2]),
        "multi:softmax": np.digitize(signal, [1, 2]),
    }.get(objective, signal > 1.5 if objective.startswith(("binary", "rank")) else signal)
    data = xgboost.DMatrix(
        rows,
        labels,
        feature_names=None if names is None else list(names),
        feature_types=["q", "q", "c", "q"] if categories else None,
        enable_categorical=categories,
    )
    if objective.startswith("rank"):
        data.set_group([len(rows) // 10] * 10)
    if objective == "survival:aft":
        data.set_float_info("label_lower_bound", signal)
        data.set_float_info("label_upper_bound", signal + 1)
    usual = {"objective": objective, "max_depth": 3, "min_child_weight": 0, "verbosity": 0, "nthread": 1}
    return xgboost.train(usual | options, data, trees)


def saved(booster: xgboost.Booster, directory: Path, kind: str = "json") -> Path:
    booster.save_model(directory / f"model.{kind}")
    return directory / f"model.{kind}"


def document_of(booster: xgboost.Booster) -> Any:
    return json.loads(bytes(booster.save_raw("json")))


def trees_of(document: Any) -> Any:
    part = document["learner"]["gradient_booster"]
    return part.get("gbtree", part)["model"]["trees"]


def thresholds(booster: xgboost.Booster) -> list[tuple[int, float]]:
    found = {
        (feature, threshold)
        for tree in trees_of(document_of(booster))
        for left, feature, threshold in zip(
            tree["left_children"], tree["split_indices"], tree["split_conditions"], strict=True
        )
        if left != -1
    }
    return sorted(found)


def finite(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """A DMatrix takes no others, nor such as it cannot tell from them."""
    return rows[~np.isinf(rows).any(axis=1)]


def check(booster: xgboost.Booster, rows: NDArray[np.float32], rng: np.random.Generator, directory: Path) -> None:
    model = xgboost_file.Model(saved(booster, directory, "ubj"))
    tried = tried_rows(rng, rows, thresholds(booster))
    expected, made = both_scores(model, tried, directory)
    direct, _ = both_scores(model, finite(tried), directory)
    theirs = booster.predict(xgboost.DMatrix(finite(tried), feature_names=booster.feature_names))
    np.testing.assert_array_equal(direct.ravel(), theirs.ravel())
    np.testing.assert_allclose(made, expected, rtol=SCORE_TOLERANCE, atol=2e-6)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_each_objective_scores_as_xgboost_does(objective: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    rows = random_rows(rng, 600)
    try:
        booster = train(rows, objective, **OBJECTIVES[objective])
    except xgboost.core.XGBoostError as error:
        if objective == "reg:expectileerror" and "Unknown objective" in str(error):
            pytest.skip("XGBoost 3.2, the last for Python 3.11, is without it")
        raise
    check(booster, rows, rng, tmp_path)


@pytest.mark.parametrize("objective", ["reg:squarederror", "binary:logistic", "multi:softprob"])
@pytest.mark.parametrize(
    "options",
    [
        {"booster": "dart", "rate_drop": 0.5},
        {"num_parallel_tree": 3, "subsample": 0.5},
        {"base_score": 0.3},
        {"tree_method": "exact"},
        {"tree_method": "approx", "grow_policy": "lossguide", "max_leaves": 9},
        {"gamma": 1e9},  # one leaf a tree
    ],
    ids=lambda options: next(iter(options)) + str(next(iter(options.values()))),
)
def test_each_way_of_boosting_scores_as_xgboost_does(objective: str, options: dict[str, Any], tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    rows = random_rows(rng, 300)
    check(train(rows, objective, **OBJECTIVES[objective], **options), rows, rng, tmp_path)


@pytest.mark.parametrize("objective", ["reg:squarederror", "binary:logistic", "count:poisson"])
def test_hundreds_of_trees_score_as_xgboost_does(objective: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    rows = random_rows(rng, 300)
    check(train(rows, objective, trees=500, eta=0.05), rows, rng, tmp_path)


def test_where_training_stopped_early_the_best_trees_score(tmp_path: Path) -> None:
    """As in XGBoost's scikit-learn classes; later trees are there all the same."""
    rows = random_rows(np.random.default_rng(4), 400)
    booster = train(rows, "multi:softprob", trees=9, num_class=3, num_parallel_tree=2)
    booster.set_attr(best_iteration="4")
    model = xgboost_file.Model(saved(booster, tmp_path))
    expected, made = both_scores(model, rows, tmp_path)
    theirs = booster.predict(xgboost.DMatrix(rows, feature_names=list(NAMES)), iteration_range=(0, 5))
    np.testing.assert_array_equal(expected, theirs)
    np.testing.assert_allclose(made, expected, atol=1e-6)


def test_numbered_features_are_matched_by_their_names(tmp_path: Path) -> None:
    rows = random_rows(np.random.default_rng(6), 300)
    model = xgboost_file.Model(saved(train(rows, names=None), tmp_path))
    expected, made = both_scores(model, rows[:, [3, 1, 0, 2]], tmp_path, ["f3", "f1", "f0", "f2"])
    straight, _ = both_scores(model, rows, tmp_path)
    np.testing.assert_array_equal(expected, straight)
    np.testing.assert_allclose(made, expected, rtol=1e-6)


def test_a_value_that_was_missing_in_training_is_so_when_it_is_served(tmp_path: Path) -> None:
    rows = random_rows(np.random.default_rng(6), 300)
    marked = np.where(np.isnan(rows), np.float32(-999), rows)
    classifier = xgboost.XGBRegressor(missing=-999, n_estimators=5, n_jobs=1).fit(marked, signal_of(rows))
    classifier.save_model(tmp_path / "model.json")
    model = xgboost_file.Model(tmp_path / "model.json")
    (said,) = model.assumed()
    assert "--missing VALUE" in said
    wrong, _ = both_scores(model, marked, tmp_path)
    model.take_as_missing(-999.0)
    assert model.assumed() == ()
    expected, made = both_scores(model, marked, tmp_path)
    np.testing.assert_array_equal(expected[:, 0], classifier.predict(marked))
    np.testing.assert_allclose(made, expected, rtol=1e-6)
    assert (wrong != expected).any()


def test_a_file_is_told_by_what_it_holds(tmp_path: Path) -> None:
    booster = train(random_rows(np.random.default_rng(8), 100), trees=1)
    for kind in ("json", "ubj"):
        assert xgboost_file.takes(saved(booster, tmp_path, kind).rename(tmp_path / f"{kind} without a name"))
    document = document_of(booster)
    (tmp_path / "indented").write_text(json.dumps(dict(reversed(document.items())), indent=2))
    assert xgboost_file.takes(tmp_path / "indented")
    assert xgboost_file.Model(tmp_path / "indented").inputs[0].features == NAMES
    for content in (b"", b"{}", b'{"a": {"learner": {}}}', b'["learner"]', b"{L\0\0\0\0\0\0\0\7version[", b"PK\3\4"):
        (tmp_path / "other").write_bytes(content)
        assert not xgboost_file.takes(tmp_path / "other")
    assert not xgboost_file.takes(tmp_path)


def test_ubjson_says_what_json_says() -> None:
    rows = random_rows(np.random.default_rng(9), 100)
    booster = train(rows, booster="dart")
    document = document_of(booster)
    read = read_ubjson(bytes(booster.save_raw("ubj")))
    assert read["version"] == document["version"]
    trees, expected = (trees_of(found) for found in (read, document))
    for tree, other in zip(trees, expected, strict=True):
        for name in ("left_children", "right_children", "split_indices", "default_left", "tree_param"):
            assert tree[name] == other[name]
        np.testing.assert_array_equal(np.float32(tree["split_conditions"]), np.float32(other["split_conditions"]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"booster": "gblinear"}, "model of gblinear, expected trees"),
        ({"categories": True}, "splits at categories.*without enable_categorical"),
        ({"objective": "multi:softmax", "num_class": 3}, "a number of a class: booster.set_param"),
        ({"objective": "binary:hinge"}, "train with binary:logistic"),
        ({"objective": "reg:quantileerror", "quantile_alpha": [0.2, 0.8]}, "2 targets, expected one"),
        (
            {"objective": "multi:softprob", "num_class": 3, "multi_strategy": "multi_output_tree"},
            "leaves of several scores.*one_output_per_tree",
        ),
    ],
    ids=["linear", "categories", "classes", "hinge", "targets", "vectors"],
)
def test_what_is_not_served_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    rows = np.nan_to_num(random_rows(np.random.default_rng(10), 300))
    if options.get("booster") == "gblinear":
        labels = signal_of(rows)
        booster = xgboost.train({**options, "verbosity": 0}, xgboost.DMatrix(rows, labels), 2)
    else:
        booster = train(rows, **options)
    for kind in ("json", "ubj"):
        with pytest.raises(ArtifactError, match=message):
            xgboost_file.Model(saved(booster, tmp_path, kind))


def test_the_remedy_for_numbers_of_classes_works(tmp_path: Path) -> None:
    rows = random_rows(np.random.default_rng(11), 300)
    booster = train(rows, "multi:softmax", num_class=3)
    booster.set_param("objective", "multi:softprob")
    expected, made = both_scores(xgboost_file.Model(saved(booster, tmp_path)), rows, tmp_path)
    assert expected.shape == (300, 3)
    np.testing.assert_allclose(made, expected, atol=1e-6)


def change(name: str, place: int, value: Any) -> Callable[[Any], None]:
    def changed(tree: Any) -> None:
        tree[name][place] = value

    return changed


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (change("left_children", 0, 999), "leads to node 999"),
        (change("right_children", 0, 0), "two parents"),
        (change("right_children", 0, -1), "leads to node -1"),
        (change("split_indices", 0, 4), "compares feature 4, and there are 4"),
        (change("split_conditions", 0, float("nan")), "not a number"),
        (change("split_conditions", -1, 1e300), "not a number"),
        (change("split_conditions", 0, "a"), "'a'"),
        (lambda tree: tree["left_children"].pop(), "shorter|longer"),
        (lambda tree: tree.pop("split_indices"), "no 'split_indices'"),
    ],
)
def test_a_damaged_tree_is_refused_before_xgboost_walks_it(
    damage: Callable[[Any], Any], message: str, tmp_path: Path
) -> None:
    document = document_of(train(random_rows(np.random.default_rng(12), 300), trees=1))
    damage(document["learner"]["gradient_booster"]["model"]["trees"][0])
    path = tmp_path / "model.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ArtifactError, match=f"damaged XGBoost model: .*({message})"):
        xgboost_file.Model(path)


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (("gradient_booster", "model", "tree_info", 0), 3, "class 3, and there are 1"),
        (("gradient_booster", "model", "tree_info"), [], "no trees"),
        (("gradient_booster", "model", "trees"), [], "shorter|longer"),
        (("learner_model_param", "num_class"), "2000000000", "2000000000 classes, and 1 trees"),
        (("learner_model_param", "num_feature"), "5", "names 4 features, expected 5"),
        (("learner_model_param", "base_score"), "0x10", "unexpected value '0x10'"),
        (("objective", "reg_loss_param"), {"scale_pos_weight": "1" * 1000}, "unexpected value '111"),
        (("attributes",), {"best_iteration": "1"}, "best iteration is 1, and there are 1"),
        (("feature_names",), [1, 2, 3, 4], "not a string"),
        (("objective",), {}, "no 'name'"),
        (("gradient_booster",), [], "list"),
    ],
)
def test_a_damaged_description_is_refused(where: tuple[Any, ...], value: Any, message: str, tmp_path: Path) -> None:
    document = document_of(train(random_rows(np.random.default_rng(13), 100), trees=1))
    part = document["learner"]
    for name in where[:-1]:
        part = part[name]
    part[where[-1]] = value
    path = tmp_path / "model.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ArtifactError, match=f"damaged XGBoost model: .*{message}"):
        xgboost_file.Model(path)


def test_many_features_without_names_are_refused(tmp_path: Path) -> None:
    """XGBoost allocates by their number."""
    document = document_of(train(random_rows(np.random.default_rng(16), 100), trees=1))
    document["learner"] |= {"feature_names": []}
    document["learner"]["learner_model_param"]["num_feature"] = "2147483647"
    path = tmp_path / "model.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ArtifactError, match="has 2147483647 features, expected 1 to 65536"):
        xgboost_file.Model(path)


def test_what_scores_do_not_depend_on_does_not_reach_xgboost(tmp_path: Path) -> None:
    """XGBoost writes a tree to the place that its id names, and reads along parents."""
    rows = random_rows(np.random.default_rng(17), 100)
    booster = train(rows, trees=2)
    expected = xgboost_file.Model(saved(booster, tmp_path)).run({"matrix": rows})["score"]
    document = document_of(booster)
    for tree in trees_of(document):
        tree |= {"id": 1 << 30, "parents": [1 << 30], "sum_hessian": [], "categories": [9]}
    document["learner"]["gradient_booster"]["model"]["gbtree_model_param"] = {"num_trees": "9" * 9}
    path = tmp_path / "model.json"
    path.write_text(json.dumps(document))
    np.testing.assert_array_equal(xgboost_file.Model(path).run({"matrix": rows})["score"], expected)


@pytest.mark.parametrize("kind", ["json", "ubj"])
def test_a_file_that_is_cut_off_or_goes_on_is_refused(kind: str, tmp_path: Path) -> None:
    """XGBoost ends the process with some of them, and reads others without end."""
    path = saved(train(random_rows(np.random.default_rng(14), 300), trees=2), tmp_path, kind)
    whole = path.read_bytes()
    for content in (*(whole[:length] for length in range(30, len(whole), 61)), whole[:-1], whole + b"}"):
        path.write_bytes(content)
        with pytest.raises(ArtifactError, match="damaged"):
            xgboost_file.Model(path)


@settings(max_examples=200)
@given(content=st.binary(max_size=40).map(lambda rest: b"{U\x07learner" + rest))
def test_ubjson_of_any_bytes_is_read_or_refused(content: bytes) -> None:
    try:
        read_ubjson(content)
    except ValueError as error:
        assert str(error)  # noqa: PT017


def test_ubjson_nested_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="nested"):
        read_ubjson(b"[" * 100_000)
