"""LightGBM's files: the ONNX model scores as LightGBM does, and what cannot is refused by name."""

import re
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest
from numpy.typing import NDArray

from rankline.serving.export.parity import SCORE_TOLERANCE
from rankline.serving.importers import lightgbm as lightgbm_file
from rankline.serving.importers.input_binding import Encoded, match
from rankline.workflows.core.errors import ArtifactError, ExportError
from rankline.workflows.schema.targets import Head
from tests.oracles.trees import NAMES, both_scores, random_rows, signal_of, tried_rows

OBJECTIVES: dict[str, dict[str, Any]] = {
    "regression": {},
    "regression_l1": {},
    "huber": {},
    "fair": {},
    "quantile": {"alpha": 0.7},
    "mape": {},
    "poisson": {},
    "gamma": {},
    "tweedie": {},
    "binary": {"sigmoid": 1.7},
    "multiclass": {"num_class": 3},
    "multiclassova": {"num_class": 3, "sigmoid": 0.6},
    "cross_entropy": {},
    "cross_entropy_lambda": {},
    "lambdarank": {},
    "rank_xendcg": {},
}

MULTICLASS = ("multiclass", "multiclassova")


def labels(rows: NDArray[np.float32], objective: str) -> NDArray[np.float64]:
    signal = signal_of(rows)
    if objective.startswith("multiclass"):
        return np.digitize(signal, [1, 2]).astype(float)
    if objective in ("binary", "lambdarank", "rank_xendcg"):
        return (signal > 1.5).astype(float)
    return np.clip(signal / 4, 0, 1) if objective.startswith("cross") else signal


def train(
    rows: NDArray[np.float32],
    objective: Any = "regression",
    trees: int = 10,
    names: Any = NAMES,
    categories: Any = "auto",
    **options: Any,
) -> lightgbm.Booster:
    known = labels(rows, objective if isinstance(objective, str) else "regression")
    is_rank = objective in ("lambdarank", "rank_xendcg")
    data = lightgbm.Dataset(
        rows,
        known,
        group=[len(rows) // 10] * 10 if is_rank else None,
        feature_name="auto" if names is None else list(names),
        categorical_feature=categories,
    )
    usual = {"objective": objective, "num_leaves": 8, "min_data_in_leaf": 5, "verbosity": -1, "num_threads": 1}
    return lightgbm.train(usual | options, data, trees)


def saved(booster: lightgbm.Booster, directory: Path) -> Path:
    booster.save_model(directory / "model.txt")
    return directory / "model.txt"


def thresholds(booster: lightgbm.Booster) -> list[tuple[int, float]]:
    found, waiting = [], [tree["tree_structure"] for tree in booster.dump_model()["tree_info"]]
    for node in waiting:
        if "threshold" in node:
            found.append((node["split_feature"], node["threshold"]))
            waiting += [node["left_child"], node["right_child"]]
    return sorted(set(found))


def check(booster: lightgbm.Booster, rows: NDArray[np.float32], rng: np.random.Generator, directory: Path) -> None:
    model = lightgbm_file.Model(saved(booster, directory))
    tried = tried_rows(rng, rows, thresholds(booster))
    expected, made = both_scores(model, tried, directory, NAMES)
    np.testing.assert_array_equal(expected.ravel(), booster.predict(tried).astype(np.float32).ravel())
    np.testing.assert_allclose(made, expected, rtol=SCORE_TOLERANCE, atol=1e-6)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_each_objective_scores_as_lightgbm_does(objective: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    rows = random_rows(rng, 600)
    check(train(rows, objective, **OBJECTIVES[objective]), rows, rng, tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        {"boosting": "rf", "bagging_fraction": 0.6, "bagging_freq": 1},
        {"boosting": "dart", "drop_rate": 0.5},
        {"boosting": "goss"},
        {"reg_sqrt": True},
        {"objective": lambda scores, data: (scores - data.get_label(), np.ones_like(scores))},
        {"objective": "multiclass", "num_class": 3, "boosting": "rf", "bagging_fraction": 0.6, "bagging_freq": 1},
        {"min_data_in_leaf": 10_000},  # one leaf a tree
        {"use_missing": False},
        {"extra_trees": True, "num_leaves": 31},
    ],
    ids=lambda options: next(iter(options)),
)
def test_each_way_of_boosting_scores_as_lightgbm_does(options: dict[str, Any], tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    rows = random_rows(rng, 600)
    check(train(rows, **options), rows, rng, tmp_path)


def test_hundreds_of_small_leaves_beside_a_large_one_are_not_lost(tmp_path: Path) -> None:
    """A sum in float32 would be: 100,000 and 0.003 is 100,000."""
    rng = np.random.default_rng(3)
    rows = random_rows(rng, 300)
    booster = train(rows, trees=500, learning_rate=0.001)
    path = saved(booster, tmp_path)
    path.write_text(
        with_first_tree(
            path.read_text(),
            r"^leaf_value=(.*)",
            lambda m: "leaf_value=" + " ".join(str(1e5 + float(value)) for value in m[1].split()),
        )
    )
    expected, made = both_scores(lightgbm_file.Model(path), rows, tmp_path)
    np.testing.assert_allclose(made, expected, rtol=1.2e-7)  # one step of float32


def test_a_file_is_told_by_what_it_holds(tmp_path: Path) -> None:
    path = saved(train(random_rows(np.random.default_rng(7), 100), trees=1), tmp_path)
    assert lightgbm_file.takes(path)
    for name, content in {"a.txt": b"tree\n", "b.txt": b"a tree\nversion=v4\n", "c.txt": b""}.items():
        (tmp_path / name).write_bytes(content)
        assert not lightgbm_file.takes(tmp_path / name)
    assert not lightgbm_file.takes(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"categories": [2], "min_data_per_group": 1}, "splits at categories.*without categorical_feature"),
        ({"linear_tree": True}, "linear trees.*without linear_tree"),
        ({"zero_as_missing": True}, "zeros for missing.*without zero_as_missing"),
    ],
    ids=lambda case: next(iter(case)) if isinstance(case, dict) else "",
)
def test_what_onnx_cannot_say_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    rows = np.nan_to_num(random_rows(np.random.default_rng(8), 600))
    with pytest.raises(ArtifactError, match=message):
        lightgbm_file.Model(saved(train(rows, **options), tmp_path))


def test_an_unknown_objective_is_refused(tmp_path: Path) -> None:
    path = saved(train(random_rows(np.random.default_rng(9), 100), trees=1), tmp_path)
    path.write_text(path.read_text().replace("objective=regression", "objective=regret"))
    with pytest.raises(ArtifactError, match="objective 'regret', expected one of custom, none, lambdarank"):
        lightgbm_file.Model(path)


def with_first_tree(text: str, pattern: str, by: Any) -> str:
    """A field of the first tree changed, and the size of that tree with it."""
    changed = re.sub(pattern, by, text, count=1, flags=re.MULTILINE)
    assert changed != text
    grown = len(changed) - len(text)
    return re.sub(r"tree_sizes=(\d+)", lambda m: f"tree_sizes={int(m[1]) + grown}", changed, count=1)


@pytest.mark.parametrize(
    ("pattern", "by", "message"),
    [
        (r"^left_child=\S+", "left_child=77", "leads to node 77"),
        (r"^right_child=\S+", "right_child=0", "two parents"),
        (r"^split_feature=\S+", "split_feature=4", "compares feature 4, and there are 4"),
        (r"^threshold=\S+", "threshold=nan", "not a number"),
        (r"^threshold=\S+", "threshold=four", "'four'"),
        (r"^left_child=\S+", "left_child=1 2", "left_child has 8 values, expected 7"),
        (r"^(right_child=.*) \S+$", r"\1 9", "leads to node 9, and there are 7 splits, 8 leaves"),
        (r"^decision_type=\S+", "decision_type=257", "decision_type 257"),
        (r"^leaf_value=\S+", "leaf_value=inf", "not a number"),
        (r"^num_leaves=.*\n", "", "no 'num_leaves'"),
        (r"^num_leaves=8$", "num_leaves=0", "has 0 leaves"),
    ],
)
def test_a_damaged_tree_is_refused_before_lightgbm_walks_it(
    pattern: str, by: str, message: str, tmp_path: Path
) -> None:
    """LightGBM would read and write elsewhere."""
    path = saved(train(random_rows(np.random.default_rng(10), 300), trees=2), tmp_path)
    path.write_text(with_first_tree(path.read_text(), pattern, by))
    with pytest.raises(ArtifactError, match=f"damaged LightGBM model: .*{message}"):
        lightgbm_file.Model(path)


def test_a_file_that_is_cut_off_or_changed_is_refused(tmp_path: Path) -> None:
    path = saved(train(random_rows(np.random.default_rng(11), 300), trees=3), tmp_path)
    whole = path.read_bytes()
    end = whole.index(b"end of trees")
    for length in range(40, end, 97):
        path.write_bytes(whole[:length])
        with pytest.raises(ArtifactError, match="damaged"):
            lightgbm_file.Model(path)
    for content in (whole.replace(b"Tree=1\n", b"Tree=1\nmore=1\n"), whole.replace(b"Tree=0", b"Tree=\xff", 1)):
        path.write_bytes(content)
        with pytest.raises(ArtifactError, match="damaged"):
            lightgbm_file.Model(path)


def test_what_scores_do_not_depend_on_does_not_reach_lightgbm(tmp_path: Path) -> None:
    rows = random_rows(np.random.default_rng(12), 100)
    path = saved(train(rows, trees=1), tmp_path)
    expected = lightgbm_file.Model(path).run({"matrix": rows})["score"]
    path.write_text(with_first_tree(path.read_text(), r"^leaf_count=.*", "leaf_count=9 nonsense"))
    np.testing.assert_array_equal(lightgbm_file.Model(path).run({"matrix": rows})["score"], expected)


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        *(
            (f"{name} num_class:{count}", f"has 3 classes, but its objective has {count}")
            for name in MULTICLASS
            for count in (1, 4, 10**9)
        ),
        *((f"multiclassova num_class:3 sigmoid:{value}", "numbers above 0") for value in ("0", "nan", "inf", "two")),
        ("multiclass num_class:three", "numbers above 0"),
    ],
)
def test_an_objective_that_contradicts_the_file_is_refused(objective: str, message: str, tmp_path: Path) -> None:
    """LightGBM writes as many scores as the objective says."""
    path = saved(train(random_rows(np.random.default_rng(14), 100), "multiclass", trees=1, num_class=3), tmp_path)
    path.write_text(re.sub("^objective=.*", f"objective={objective}", path.read_text(), flags=re.MULTILINE))
    with pytest.raises(ArtifactError, match=message):
        lightgbm_file.Model(path)


def test_a_head_of_another_width_is_refused(tmp_path: Path) -> None:
    rows = random_rows(np.random.default_rng(13), 300)
    model = lightgbm_file.Model(saved(train(rows, "multiclass", num_class=3), tmp_path))
    feeds = match(model.inputs, [Encoded(name=name, dtype="float32") for name in NAMES], {})
    with pytest.raises(ExportError, match="gives 3 scores"):
        model.write(feeds, (Head("score"),), tmp_path / "model.onnx")
