"""Hashing that depends on the row's position is replaced before it makes data; workflows in a loader."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.nvt.compat import nvt, ops, quiet_nvtabular
from rankline.workflows.nvt.fitted import OnlineWorkflow
from rankline.workflows.nvt.operators import Categorify, HashedCategorify, StableHashBucket, StableHashedCross
from rankline.workflows.nvt.operators.hashing import with_stable_hashes
from tests.oracles.nvtabular import fitted, transformed

ROWS = pd.DataFrame({"word": list("abcdef"), "key": [1, 2, 3, 4, 5, 6]})
SAME = pd.DataFrame({"word": ["new"] * 50, "key": [99] * 50})

NVTABULARS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "HashBucket": (lambda: ["word"] >> ops.HashBucket(100), lambda: ["word"] >> StableHashBucket(100)),
    "HashBucket by column": (
        lambda: ["word", "key"] >> ops.HashBucket({"word": 100, "key": 7}),
        lambda: ["word", "key"] >> StableHashBucket({"word": 100, "key": 7}),
    ),
    "HashedCross": (
        lambda: [["word", "key"]] >> ops.HashedCross(100),
        lambda: [["word", "key"]] >> StableHashedCross(100),
    ),
    "Categorify": (
        lambda: ["word", "key"] >> ops.Categorify(num_buckets=50, max_size=53),
        lambda: ["word", "key"] >> HashedCategorify(num_buckets=50, max_size=53),
    ),
    "our Categorify": (
        lambda: ["key"] >> Categorify(num_buckets=50, max_size=53) >> ops.Rename(postfix="_id"),
        lambda: ["key"] >> HashedCategorify(num_buckets=50, max_size=53) >> ops.Rename(postfix="_id"),
    ),
}


@pytest.mark.parametrize(("graph", "stable"), NVTABULARS.values(), ids=NVTABULARS)
def test_loader_gives_a_value_the_bucket_that_serving_gives_it(
    tmp_path: Path, graph: Callable[[], Any], stable: Callable[[], Any]
) -> None:
    workflow = fitted(graph, ROWS, tmp_path / "given")
    own = transformed(workflow, SAME)
    made = OnlineWorkflow(workflow)(pa.Table.from_pandas(SAME)).to_pydict()
    expected = OnlineWorkflow(fitted(stable, ROWS, tmp_path / "stable"))(pa.Table.from_pandas(SAME)).to_pydict()
    assert made == expected
    assert all(len(set(ids)) == 1 for ids in made.values())
    assert transformed(workflow, SAME) == own != made  # which is left to its owner


def test_graph_is_replaced_before_it_is_fitted_too() -> None:
    with quiet_nvtabular():
        workflow = with_stable_hashes(nvt.Workflow(["word"] >> ops.HashBucket(100)))
        made = workflow.fit_transform(nvt.Dataset(SAME)).compute()
    assert made["word"].nunique() == 1


def test_workflow_without_hashes_stays_the_same() -> None:
    workflow = nvt.Workflow(["word"] >> ops.Categorify())
    assert with_stable_hashes(workflow) is workflow


def test_hashed_combinations_are_refused() -> None:
    with quiet_nvtabular():
        workflow = nvt.Workflow([["word", "key"]] >> ops.Categorify(encode_type="combo", num_buckets=5, max_size=8))
    with pytest.raises(ConfigError, match=r"groups of columns \[\['word', 'key'\]\].*Leave out num_buckets"):
        with_stable_hashes(workflow)


ONLINE_ROWS = pd.DataFrame({"user": [3, 1, 3], "price": [1.0, 2.0, 4.0], "label": [0, 1, 1]})


def fitted_to_rows(graph: nvt.WorkflowNode) -> nvt.Workflow:
    with quiet_nvtabular():
        return nvt.Workflow(graph).fit(nvt.Dataset(ONLINE_ROWS))


def test_online_workflow_makes_its_columns_and_keeps_others() -> None:
    workflow = fitted_to_rows(["price"] >> ops.FillMissing() >> ops.LogOp())
    online = OnlineWorkflow(workflow, keep=["price", "label"])
    assert online.columns == ("price", "label")
    table = pa.Table.from_pandas(ONLINE_ROWS)
    made = online(table)
    assert made.column_names == ["price", "label"]
    assert made["label"] == table["label"]
    with quiet_nvtabular():
        assert made["price"].to_pylist() == workflow.transform(ONLINE_ROWS)["price"].tolist()


@pytest.mark.parametrize("other", [lambda x: x, None, "directory", ["user"] >> ops.Categorify()])
def test_online_workflow_refuses_other_objects(other: object) -> None:
    with pytest.raises(ConfigError, match=f"map got a {type(other).__name__}, expected a fitted nvtabular.Workflow"):
        OnlineWorkflow(other)
