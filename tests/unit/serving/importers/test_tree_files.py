"""What XGBoost's and LightGBM's files have in common."""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankline.serving.importers import lightgbm, xgboost
from rankline.workflows.core.errors import MissingExtraError
from tests.oracles.trees import NAMES, both_scores, random_rows
from tests.unit.serving.importers import test_lightgbm_file as of_lightgbm
from tests.unit.serving.importers import test_xgboost_file as of_xgboost

FORMATS = pytest.mark.parametrize(
    ("module", "tests"), [(xgboost, of_xgboost), (lightgbm, of_lightgbm)], ids=["xgboost", "lightgbm"]
)


@FORMATS
@settings(max_examples=8)
@given(seed=st.integers(0, 2**32 - 1), depth=st.integers(1, 6), trees=st.integers(1, 30))
def test_random_forests_score_as_their_framework_does(
    module: ModuleType, tests: Any, seed: int, depth: int, trees: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng = np.random.default_rng(seed)
    rows = random_rows(rng, int(rng.integers(30, 300)))
    size = {"max_depth": depth} if module is xgboost else {"num_leaves": 2**depth, "min_data_in_leaf": 2}
    tests.check(tests.train(rows, trees=trees, **size), rows, rng, tmp_path_factory.mktemp("forest"))


@FORMATS
def test_columns_are_matched_by_name_whatever_their_order(module: ModuleType, tests: Any, tmp_path: Path) -> None:
    rows = random_rows(np.random.default_rng(4), 300)
    model = module.Model(tests.saved(tests.train(rows), tmp_path))
    assert model.inputs[0].features == NAMES
    order = (2, 0, 3, 1)
    expected, made = both_scores(model, rows[:, order], tmp_path, [NAMES[place] for place in order])
    straight, _ = both_scores(model, rows, tmp_path)
    np.testing.assert_array_equal(expected, straight)
    np.testing.assert_allclose(made, expected, rtol=1e-6)


@FORMATS
def test_columns_without_names_are_matched_by_position(module: ModuleType, tests: Any, tmp_path: Path) -> None:
    rows = random_rows(np.random.default_rng(5), 300)
    model = module.Model(tests.saved(tests.train(rows, names=None), tmp_path))
    assert (model.inputs[0].features, model.inputs[0].shape) == ((), (None, 4))
    expected, made = both_scores(model, rows, tmp_path, ["x", "a", "m", "b"])
    np.testing.assert_allclose(made, expected, rtol=1e-6)


@FORMATS
def test_a_missing_package_is_named_with_the_line_that_installs_it(
    module: ModuleType, tests: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("rankline.workflows.core.optional_packages.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=rf"rankline\[{module.__name__.rpartition('.')[2]}\]"):
        module.Model(tmp_path)
