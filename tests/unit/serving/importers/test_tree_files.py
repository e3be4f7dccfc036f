"""XGBoost's and LightGBM's files: the ONNX model scores as the framework does, and what cannot be served is refused."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest
import xgboost
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rankline.serving.importers import lightgbm as lightgbm_file
from rankline.serving.importers import xgboost as xgboost_file
from rankline.serving.importers.input_binding import Encoded, match
from rankline.serving.importers.xgboost import read_ubjson
from rankline.workflows.core.errors import ArtifactError, ExportError, MissingExtraError
from rankline.workflows.schema.targets import Head
from tests.oracles.trees import (
    LIGHTGBM,
    NAMES,
    XGBOOST,
    Framework,
    both_scores,
    random_rows,
    save_xgboost,
    signal_of,
    trees_in,
    xgboost_document,
)

FRAMEWORKS = {"xgboost": XGBOOST, "lightgbm": LIGHTGBM}
EACH = pytest.mark.parametrize("framework", FRAMEWORKS.values(), ids=FRAMEWORKS)


@pytest.mark.parametrize(
    ("name", "objective"),
    [(name, objective) for name, framework in FRAMEWORKS.items() for objective in framework.objectives],
)
def test_objectives_score_as_their_framework_does(name: str, objective: str, tmp_path: Path) -> None:
    framework, rng = FRAMEWORKS[name], np.random.default_rng(1)
    rows = random_rows(rng, 600)
    try:
        booster = framework.train(rows, objective)
    except xgboost.core.XGBoostError as error:
        if objective == "reg:expectileerror" and "Unknown objective" in str(error):
            pytest.skip("XGBoost 3.2, the last for Python 3.11, is without it")
        raise
    framework.check(booster, rows, rng, tmp_path)


SOFTPROB = {"objective": "multi:softprob"}
RANDOM_FOREST = {"boosting": "rf", "bagging_fraction": 0.6, "bagging_freq": 1}
BOOSTING: list[tuple[Framework, dict[str, Any]]] = [
    (XGBOOST, {"booster": "dart", "rate_drop": 0.5, **SOFTPROB}),
    (XGBOOST, {"num_parallel_tree": 3, "subsample": 0.5, **SOFTPROB}),
    (XGBOOST, {"base_score": 0.3, **SOFTPROB}),
    (XGBOOST, {"base_score": 0.3, "objective": "binary:logistic"}),
    (XGBOOST, {"tree_method": "exact"}),
    (XGBOOST, {"tree_method": "approx", "grow_policy": "lossguide", "max_leaves": 9}),
    (XGBOOST, {"gamma": 1e9}),  # one leaf a tree
    (XGBOOST, {"trees": 500, "eta": 0.05, "objective": "count:poisson"}),
    (LIGHTGBM, RANDOM_FOREST),
    (LIGHTGBM, {**RANDOM_FOREST, "objective": "multiclass"}),
    (LIGHTGBM, {"boosting": "dart", "drop_rate": 0.5}),
    (LIGHTGBM, {"boosting": "goss"}),
    (LIGHTGBM, {"reg_sqrt": True}),
    (LIGHTGBM, {"objective": lambda scores, data: (scores - data.get_label(), np.ones_like(scores))}),
    (LIGHTGBM, {"min_data_in_leaf": 10_000}),  # one leaf a tree
    (LIGHTGBM, {"use_missing": False}),
    (LIGHTGBM, {"extra_trees": True, "num_leaves": 31}),
]


@pytest.mark.parametrize(("framework", "options"), BOOSTING, ids=[str([*options]) for _, options in BOOSTING])
def test_ways_of_boosting_score_as_their_framework_does(
    framework: Framework, options: dict[str, Any], tmp_path: Path
) -> None:
    rng = np.random.default_rng(2)
    rows = random_rows(rng, 600)
    framework.check(framework.train(rows, **options), rows, rng, tmp_path)


@EACH
@settings(max_examples=8)
@given(seed=st.integers(0, 2**32 - 1), depth=st.integers(1, 6), trees=st.integers(1, 30))
@example(seed=800, depth=3, trees=18)  # LightGBM parts numbers from missing ones at infinity
def test_random_forests_score_as_their_framework_does(
    framework: Framework, seed: int, depth: int, trees: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng = np.random.default_rng(seed)
    rows = random_rows(rng, int(rng.integers(30, 300)))
    size = {"max_depth": depth} if framework is XGBOOST else {"num_leaves": 2**depth, "min_data_in_leaf": 2}
    booster = framework.train(rows, trees=trees, **size)
    framework.check(booster, rows, rng, tmp_path_factory.mktemp("forest"))


def with_first_tree(text: str, pattern: str, by: Any) -> str:
    """LightGBM's text with a changed field of the first tree, and the size of that tree with it."""
    changed = re.sub(pattern, by, text, count=1, flags=re.MULTILINE)
    assert changed != text
    grown = len(changed) - len(text)
    return re.sub(r"tree_sizes=(\d+)", lambda m: f"tree_sizes={int(m[1]) + grown}", changed, count=1)


def test_lightgbm_keeps_hundreds_of_small_leaves_beside_a_large_one(tmp_path: Path) -> None:
    """A sum in float32 would lose them: 100,000 and 0.003 is 100,000."""
    rows = random_rows(np.random.default_rng(3), 300)
    path = LIGHTGBM.save(LIGHTGBM.train(rows, trees=500, learning_rate=0.001), tmp_path)

    def enlarged(leaves: re.Match[str]) -> str:
        return "leaf_value=" + " ".join(str(1e5 + float(value)) for value in leaves[1].split())

    path.write_text(with_first_tree(path.read_text(), r"^leaf_value=(.*)", enlarged))
    expected, made = both_scores(lightgbm_file.Model(path), rows, tmp_path)
    np.testing.assert_allclose(made, expected, rtol=1.2e-7)  # one step of float32


def test_lightgbm_compares_large_numbers_as_doubles(tmp_path: Path) -> None:
    """Times one second apart, of which float32 makes 128 the same."""
    rng = np.random.default_rng(15)
    rows = random_rows(rng, 10_000).astype(np.float64)
    rows[:, 1] = 1_700_000_000 + rng.integers(0, 50, len(rows))
    data = lightgbm.Dataset(rows, rows[:, 1] % 2, feature_name=list(NAMES))
    booster = lightgbm.train({"num_leaves": 63, "verbosity": -1, "num_threads": 1}, data, 3)
    LIGHTGBM.check(booster, rows, rng, tmp_path)
    expected, made = both_scores(lightgbm_file.Model(tmp_path / "model.txt"), rows, tmp_path)
    np.testing.assert_array_equal(expected[:, 0], booster.predict(rows).astype(np.float32))
    np.testing.assert_allclose(made, expected, rtol=1e-6)
    assert len(np.unique(booster.predict(rows.astype(np.float32)))) < len(np.unique(expected))


def test_xgboost_that_stopped_early_scores_by_its_best_trees(tmp_path: Path) -> None:
    """As in XGBoost's scikit-learn classes; later trees are there all the same."""
    rows = random_rows(np.random.default_rng(4), 400)
    booster = XGBOOST.train(rows, "multi:softprob", trees=9, num_parallel_tree=2)
    booster.set_attr(best_iteration="8")
    assert not any("early" in note for note in xgboost_file.Model(XGBOOST.save(booster, tmp_path)).assumed())
    booster.set_attr(best_iteration="4")
    model = xgboost_file.Model(XGBOOST.save(booster, tmp_path))
    assert any("the first 30 of 54 trees are used" in note for note in model.assumed())
    expected, made = both_scores(model, rows, tmp_path)
    theirs = booster.predict(xgboost.DMatrix(rows, feature_names=list(NAMES)), iteration_range=(0, 5))
    np.testing.assert_array_equal(expected, theirs)
    np.testing.assert_allclose(made, expected, atol=1e-6)


def test_xgboost_that_puts_out_classes_is_served_once_its_objective_is_changed(tmp_path: Path) -> None:
    booster = XGBOOST.train(rows := random_rows(np.random.default_rng(11), 300), "multi:softmax", num_class=3)
    with pytest.raises(ArtifactError, match=r"class numbers: call booster\.set_param"):
        xgboost_file.Model(XGBOOST.save(booster, tmp_path))
    booster.set_param("objective", "multi:softprob")
    expected, made = both_scores(xgboost_file.Model(XGBOOST.save(booster, tmp_path)), rows, tmp_path)
    assert expected.shape == (300, 3)
    np.testing.assert_allclose(made, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("framework", "names", "columns"),
    [(XGBOOST, NAMES, NAMES), (LIGHTGBM, NAMES, NAMES), (XGBOOST, None, ("f0", "f1", "f2", "f3"))],
    ids=["xgboost", "lightgbm", "xgboost, numbered"],
)
def test_columns_are_matched_by_name_whatever_their_order(
    framework: Framework, names: Any, columns: tuple[str, ...], tmp_path: Path
) -> None:
    rows = random_rows(np.random.default_rng(4), 300)
    model = framework.importer.Model(framework.save(framework.train(rows, names=names), tmp_path))
    assert model.inputs[0].features == (names or ())
    order = (2, 0, 3, 1)
    expected, made = both_scores(model, rows[:, order], tmp_path, [columns[place] for place in order])
    straight, _ = both_scores(model, rows, tmp_path)
    np.testing.assert_array_equal(expected, straight)
    np.testing.assert_allclose(made, expected, rtol=1e-6)


@EACH
def test_column_named_matrix_is_a_column_like_any_other(framework: Framework, tmp_path: Path) -> None:
    rows = random_rows(np.random.default_rng(16), 100)
    columns = [Encoded(name=name, dtype="float32") for name in ("matrix", *NAMES)]
    for names, those in ((NAMES, columns), (None, columns[:4])):
        model = framework.importer.Model(framework.save(framework.train(rows, names=names, trees=1), tmp_path))
        (feed,) = match(model.inputs, those, {})
        assert feed.columns == (names or ("matrix", "a", "b", "c"))


@EACH
def test_columns_without_names_are_matched_by_position(framework: Framework, tmp_path: Path) -> None:
    rows = random_rows(np.random.default_rng(5), 300)
    model = framework.importer.Model(framework.save(framework.train(rows, names=None), tmp_path))
    assert (model.inputs[0].features, model.inputs[0].shape) == ((), (None, 4))
    expected, made = both_scores(model, rows, tmp_path, ["x", "a", "m", "b"])
    np.testing.assert_allclose(made, expected, rtol=1e-6)


def test_xgboost_value_that_was_missing_in_training_is_missing_in_requests(tmp_path: Path) -> None:
    rows = random_rows(np.random.default_rng(6), 300)
    marked = np.where(np.isnan(rows), np.float32(-999), rows)
    regressor = xgboost.XGBRegressor(missing=-999, n_estimators=5, n_jobs=1).fit(marked, signal_of(rows))
    regressor.save_model(tmp_path / "model.json")
    model = xgboost_file.Model(tmp_path / "model.json")
    (note,) = model.assumed()
    assert "--missing VALUE" in note
    wrong, _ = both_scores(model, marked, tmp_path)
    model.take_as_missing(-999.0)
    assert model.assumed() == ()
    expected, made = both_scores(model, marked, tmp_path)
    np.testing.assert_array_equal(expected[:, 0], regressor.predict(marked))
    np.testing.assert_allclose(made, expected, rtol=1e-6)
    assert (wrong != expected).any()


@EACH
def test_format_is_recognised_by_content(framework: Framework, tmp_path: Path) -> None:
    can_load = framework.importer.can_load
    booster = framework.train(random_rows(np.random.default_rng(7), 100), trees=1)
    assert can_load(framework.save(booster, tmp_path).rename(tmp_path / "no suffix"))
    assert not can_load(tmp_path)
    for content in (
        b"",
        b"{}",
        b'{"a": {"learner": {}}}',
        b"{L\0\0\0\0\0\0\0\7version[",
        b"PK\3\4",
        b"tree\n",
        b"a tree\n",
    ):
        (tmp_path / "other").write_bytes(content)
        assert not can_load(tmp_path / "other"), content
    if framework is XGBOOST:
        indented = json.dumps(dict(reversed(xgboost_document(booster).items())), indent=2)
        (tmp_path / "indented").write_text(indented)
        assert can_load(tmp_path / "indented")
        assert xgboost_file.Model(tmp_path / "indented").inputs[0].features == NAMES


UNSERVED: list[tuple[Framework, dict[str, Any], str]] = [
    (XGBOOST, {"booster": "gblinear"}, "gblinear"),
    (XGBOOST, {"categories": True}, "without enable_categorical"),
    (XGBOOST, {"objective": "binary:hinge"}, "train with binary:logistic"),
    (XGBOOST, {"objective": "reg:quantileerror", "quantile_alpha": [0.2, 0.8]}, "2 targets"),
    (XGBOOST, {**SOFTPROB, "multi_strategy": "multi_output_tree"}, "one_output_per_tree"),
    (LIGHTGBM, {"categories": [2], "min_data_per_group": 1}, "without categorical_feature"),
    (LIGHTGBM, {"linear_tree": True}, "without linear_tree"),
    (LIGHTGBM, {"zero_as_missing": True}, "without zero_as_missing"),
]


@pytest.mark.parametrize(("framework", "options", "remedy"), UNSERVED, ids=[remedy for *_, remedy in UNSERVED])
def test_unserved_kinds_of_models_are_refused(
    framework: Framework, options: dict[str, Any], remedy: str, tmp_path: Path
) -> None:
    rows = np.nan_to_num(random_rows(np.random.default_rng(8), 600))
    if options == {"booster": "gblinear"}:
        booster = xgboost.train({**options, "verbosity": 0}, xgboost.DMatrix(rows, signal_of(rows)), 2)
    else:
        booster = framework.train(rows, **options)
    with pytest.raises(ArtifactError, match=remedy):
        framework.importer.Model(framework.save(booster, tmp_path))


def test_head_of_another_width_is_refused(tmp_path: Path) -> None:
    booster = LIGHTGBM.train(random_rows(np.random.default_rng(13), 300), "multiclass")
    model = lightgbm_file.Model(LIGHTGBM.save(booster, tmp_path))
    feeds = match(model.inputs, [Encoded(name=name, dtype="float32") for name in NAMES], {})
    with pytest.raises(ExportError, match="returns 3 scores"):
        model.write(feeds, (Head("score"),), tmp_path / "model.onnx")


@EACH
def test_missing_package_is_named_with_its_extra(
    framework: Framework, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("rankline.workflows.core.optional_packages.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=rf"rankline\[{framework.importer.__name__.rpartition('.')[2]}\]"):
        framework.importer.Model(tmp_path)


# --- Damage, which is found before the framework would read or write elsewhere; more of it in tests/harness/hostile


@pytest.fixture(scope="module")
def one_tree() -> xgboost.Booster:
    return XGBOOST.train(random_rows(np.random.default_rng(12), 300), trees=1)


@pytest.fixture(scope="module")
def two_trees() -> str:
    booster: lightgbm.Booster = LIGHTGBM.train(random_rows(np.random.default_rng(10), 300), trees=2)
    return str(booster.model_to_string())


MODEL = ("gradient_booster", "model")
TREE = (*MODEL, "trees", 0)
NUMBERS = "learner_model_param"


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        ((*TREE, "left_children", 0), 999, "refers to node 999"),
        ((*TREE, "right_children", 0), 0, "two parents"),
        ((*TREE, "split_indices", 0), 4, "uses feature 4, but the model has 4"),
        ((*TREE, "split_conditions", 0), float("nan"), "not a number"),
        ((*TREE, "split_conditions", 0), "a", "'a'"),
        ((*TREE,), {}, "no 'tree_param'"),
        ((*MODEL, "tree_info", 0), 3, "a tree belongs to class 3, but the model has 1 classes"),
        ((*MODEL, "tree_info"), [], "no trees"),
        ((NUMBERS, "num_feature"), "5", "names 4 features, expected 5"),
        ((NUMBERS, "base_score"), "0x10", "'0x10'"),
        (("gradient_booster",), [], "list"),
    ],
)
def test_xgboost_damage_is_refused(
    where: tuple[Any, ...], value: Any, message: str, one_tree: xgboost.Booster, tmp_path: Path
) -> None:
    document = xgboost_document(one_tree)
    part = document["learner"]
    for name in where[:-1]:
        part = part[name]
    part[where[-1]] = value
    path = tmp_path / "model.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ArtifactError, match=f"damaged XGBoost model: .*({message})"):
        xgboost_file.Model(path)


def test_xgboost_file_of_many_features_without_names_is_refused(one_tree: xgboost.Booster, tmp_path: Path) -> None:
    """XGBoost allocates by their number."""
    document = xgboost_document(one_tree)
    document["learner"] |= {"feature_names": []}
    document["learner"]["learner_model_param"]["num_feature"] = "2147483647"
    path = tmp_path / "model.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ArtifactError, match="has 2147483647 features, expected 1 to 65536"):
        xgboost_file.Model(path)


@pytest.mark.parametrize(
    ("pattern", "by", "message"),
    [
        (r"^left_child=\S+", "left_child=77", "refers to node 77"),
        (r"^right_child=\S+", "right_child=0", "two parents"),
        (r"^split_feature=\S+", "split_feature=4", "uses feature 4, but the model has 4"),
        (r"^threshold=\S+", "threshold=nan", "not a number"),
        (r"^threshold=\S+", "threshold=four", "'four'"),
        (r"^(right_child=.*) \S+$", r"\1 9", "refers to node 9, but there are 7 splits and 8 leaves"),
        (r"^num_leaves=.*\n", "", "no 'num_leaves'"),
        (r"^num_leaves=8$", "num_leaves=0", "has 0 leaves"),
    ],
)
def test_lightgbm_damage_is_refused(pattern: str, by: str, message: str, two_trees: str, tmp_path: Path) -> None:
    path = tmp_path / "model.txt"
    path.write_text(with_first_tree(two_trees, pattern, by))
    with pytest.raises(ArtifactError, match=f"damaged LightGBM model: .*{message}"):
        lightgbm_file.Model(path)


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ("regret num_class:3", "'regret', expected one of custom, none, lambdarank"),
        ("multiclass num_class:1", "has 3 classes, but its objective sets num_class to 1"),
        ("multiclassova num_class:1000000000", "has 3 classes, but its objective sets num_class to 1000000000"),
        ("multiclassova num_class:3 sigmoid:0", "must be positive numbers"),
        ("multiclassova num_class:3 sigmoid:nan", "must be positive numbers"),
        ("multiclass num_class:three", "must be positive numbers"),
    ],
)
def test_lightgbm_objective_that_contradicts_the_file_is_refused(objective: str, message: str, tmp_path: Path) -> None:
    """LightGBM writes as many scores as the objective says."""
    booster = LIGHTGBM.train(random_rows(np.random.default_rng(14), 100), "multiclass", trees=1)
    path = LIGHTGBM.save(booster, tmp_path)
    path.write_text(re.sub("^objective=.*", f"objective={objective}", path.read_text(), flags=re.MULTILINE))
    with pytest.raises(ArtifactError, match=message):
        lightgbm_file.Model(path)


@pytest.mark.parametrize("kind", ["json", "ubj", "txt"])
def test_truncated_file_is_refused(kind: str, one_tree: xgboost.Booster, two_trees: str, tmp_path: Path) -> None:
    """XGBoost ends the process with some of them, and reads others without end."""
    if kind == "txt":
        whole = two_trees.encode()
        contents = [whole[:length] for length in range(40, whole.index(b"end of trees"), 97)]
        contents += [whole.replace(b"Tree=1\n", b"Tree=1\nmore=1\n"), whole.replace(b"Tree=0", b"Tree=\xff", 1)]
        load: Callable[[Path], Any] = lightgbm_file.Model
    else:
        whole = save_xgboost(one_tree, tmp_path, kind).read_bytes()
        contents = [*(whole[:length] for length in range(30, len(whole), 61)), whole[:-1], whole + b"}"]
        load = xgboost_file.Model
    for content in contents:
        (tmp_path / "model").write_bytes(content)
        with pytest.raises(ArtifactError, match="damaged"):
            load(tmp_path / "model")


def test_fields_that_scores_do_not_depend_on_do_not_reach_xgboost(tmp_path: Path) -> None:
    """XGBoost writes a tree to the place that its id names, and reads along parents."""
    rows = random_rows(np.random.default_rng(17), 100)
    booster = XGBOOST.train(rows, trees=2)
    expected, _ = both_scores(xgboost_file.Model(XGBOOST.save(booster, tmp_path)), rows, tmp_path)
    document = xgboost_document(booster)
    for tree in trees_in(document):
        tree |= {"id": 1 << 30, "parents": [1 << 30], "sum_hessian": [], "categories": [9]}
    document["learner"]["gradient_booster"]["model"]["gbtree_model_param"] = {"num_trees": "9" * 9}
    path = tmp_path / "model.json"
    path.write_text(json.dumps(document))
    np.testing.assert_array_equal(both_scores(xgboost_file.Model(path), rows, tmp_path)[0], expected)


def test_fields_that_scores_do_not_depend_on_do_not_reach_lightgbm(tmp_path: Path) -> None:
    rows = random_rows(np.random.default_rng(12), 100)
    path = LIGHTGBM.save(LIGHTGBM.train(rows, trees=1), tmp_path)
    expected, _ = both_scores(lightgbm_file.Model(path), rows, tmp_path)
    path.write_text(with_first_tree(path.read_text(), r"^leaf_count=.*", "leaf_count=9 nonsense"))
    np.testing.assert_array_equal(both_scores(lightgbm_file.Model(path), rows, tmp_path)[0], expected)


def test_ubjson_is_read_as_the_same_document_as_json() -> None:
    booster = XGBOOST.train(random_rows(np.random.default_rng(9), 100), booster="dart")
    document, read = xgboost_document(booster), read_ubjson(bytes(booster.save_raw("ubj")))
    assert read["version"] == document["version"]
    for tree, other in zip(trees_in(read), trees_in(document), strict=True):
        for name in ("left_children", "right_children", "split_indices", "default_left", "tree_param"):
            assert tree[name] == other[name]
        np.testing.assert_array_equal(np.float32(tree["split_conditions"]), np.float32(other["split_conditions"]))


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
