from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse

from rankline.workflows.compiler.compile import compile_workflow
from rankline.workflows.nvt.compat import ops
from rankline.workflows.nvt.operators import HashedCategorify, NullToEmptyList, StableHashedCross
from tests.oracles.lowering import assert_same, fitted, served, training_rows

ITEMS = pd.DataFrame(
    {
        "small": [0, 1, 2],
        "brand": ["p", None, "é"],
        "cost": [1.5, np.nan, 2.5],
        "stock": [5, 6, 7],
        "tags": [["a", "é"], [], ["b", None]],
    }
)
BY_WORD = pd.DataFrame({"name": ["a", "é", None, ""], "rank": [1.0, 2.0, 3.0, 4.0], "group": ["x", "x", "y", "z"]})
PAIRS = pd.DataFrame({"small": [0, 1, 2, 2], "other": ["a", "b", None, "é"], "bonus": [1.0, 2.0, 3.0, 4.0]})
GROUPS = pd.DataFrame({"group": ["x", "z"], "weight": [0.5, 0.25]})
MATRIX = scipy.sparse.coo_matrix(np.array([[1.0, 2, 0], [0, 0.3, 1], [0.1, 0, 3], [0, 0, 0], [1, 1, 1], [7, 0, 0.7]]))


def items() -> Any:
    return ["small"] >> ops.JoinExternal(ITEMS, on="small")


def ranks() -> Any:
    return ["word"] >> ops.JoinExternal(BY_WORD, on="word", on_ext="name", columns_ext=["name", "rank", "group"])


# Where True, pandas may hold the same numbers in float64.
GRAPHS: dict[str, tuple[Any, bool]] = {
    "numbers": (lambda: items()["cost"] >> ops.FillMissing(-1) >> ops.Normalize(), False),
    "numbers that may be missing": (lambda: items()["cost"], False),
    "integers": (lambda: items()["stock"] >> ops.FillMissing(0), True),
    "strings": (lambda: items()["brand"] >> ops.FillMissing("q") >> ops.Categorify(), False),
    "lists": (lambda: items()["tags"] >> NullToEmptyList() >> ops.Categorify() >> ops.ListSlice(1), False),
    "hashed": (lambda: items()["brand"] >> ops.FillMissing("q") >> HashedCategorify(num_buckets=2, max_size=5), False),
    "string keys": (lambda: ranks()["rank"] >> ops.FillMissing(0), False),
    "string keys, other name": (lambda: ranks()[["name"]] >> ops.FillMissing("?") >> ops.Categorify(), False),
    "two keys": (
        lambda: (["small", "other"] >> ops.JoinExternal(PAIRS, on=["small", "other"]))["bonus"] >> ops.FillMissing(0),
        False,
    ),
    "float keys": (lambda: (["whole"] >> ops.JoinExternal(ITEMS, on="whole", on_ext="small"))["cost"], False),
    "join of a join": (
        lambda: (ranks()[["group"]] >> ops.JoinExternal(GROUPS, on="group"))["weight"] >> ops.FillMissing(0),
        False,
    ),
    "cross of what was joined": (
        lambda: (
            (items()[["stock"]] >> ops.FillMissing(0)) + ["other"] >> ops.Rename(postfix="_") >> StableHashedCross(5)
        ),
        False,
    ),
    "JoinGroupby": (
        lambda: (
            ["other", ["small", "whole"]]
            >> ops.JoinGroupby(cont_cols=["float", "price"], stats=["sum", "mean", "std", "var", "min", "max"])
        ),
        False,
    ),
    "JoinGroupby, counted": (lambda: ["flag"] >> ops.JoinGroupby(cont_cols=["price"], stats=["count", "sum"]), False),
    "TargetEncoding": (
        lambda: ["other", "key", ["other", "whole"]] >> ops.TargetEncoding("price", kfold=1, p_smooth=3),
        False,
    ),
    "TargetEncoding, two targets": (
        lambda: ["word"] >> ops.TargetEncoding(["price", "float32"], kfold=1, out_dtype="float64"),
        False,
    ),
}


def test_unknown_group_was_counted_zero_times(tmp_path: Any) -> None:
    _, plan = fitted(
        tmp_path, training_rows(), lambda: ["other"] >> ops.JoinGroupby(cont_cols=["price"], stats=["count", "mean"])
    )
    answer = served(plan, pd.DataFrame({"other": ["nobody", "a"], "price": [0.0, 0.0]}))
    assert answer["other_count"].dtype == np.int32
    assert answer["other_count"].tolist()[0] == 0
    assert answer["other_count"].tolist()[1] > 0
    assert np.isnan(answer["other_price_mean"]).tolist() == [True, False]


def test_targets_are_encoded_by_the_statistics_of_all_folds(tmp_path: Any) -> None:
    def graph(folds: int) -> Any:
        return lambda: ["other"] >> ops.TargetEncoding("price", kfold=folds)

    whole, plan = fitted(tmp_path / "1", training_rows(), graph(1))
    _, folded = fitted(tmp_path / "3", training_rows(), graph(3))
    assert_same(whole, plan, training_rows()[["other", "price"]])
    rows = training_rows()[["other", "price"]]
    np.testing.assert_array_equal(served(folded, rows)["TE_other_price"], served(plan, rows)["TE_other_price"])


def test_targets_are_not_asked_for_when_they_are_not_there(tmp_path: Any) -> None:
    workflow, _ = fitted(tmp_path, training_rows(), lambda: ["other"] >> ops.TargetEncoding("price", kfold=1))
    expected = served(compile_workflow(workflow), training_rows())
    workflow.remove_inputs(["price"])
    plan = compile_workflow(workflow)
    assert [spec.name for spec in plan.inputs] == ["other"]
    np.testing.assert_array_equal(served(plan, training_rows())["TE_other_price"], expected["TE_other_price"])


TWICE = pd.DataFrame({"small": [1, 1], "x": [0.5, 1.5]})
DATES = pd.DataFrame({"small": [1], "day": pd.to_datetime(["2020-01-01"])})


REFUSED = [
    (lambda: ["small"] >> ops.JoinExternal(ITEMS, on="small", how="inner"), "how='inner'.*drops rows"),
    (lambda: ["small"] >> ops.JoinExternal(TWICE, on="small"), "JoinExternal on 'small': the keys are not unique"),
    (lambda: ["small"] >> ops.JoinExternal(DATES, on="small"), "column 'day' cannot be compiled: type timestamp"),
    (lambda: items()["stock"], "column 'stock' can have missing values. Fill them with FillMissing"),
    (lambda: items()["brand"], "column 'brand' contains strings.*Add Categorify"),
    (lambda: items()["tags"] >> ops.ListSlice(0, 1), "column 'tags' contains strings"),
    (
        lambda: [["word", "small"]] >> ops.ColumnSimilarity(MATRIX, on_device=False),
        "ColumnSimilarity .* cannot be compiled",
    ),
]
