"""Operators that NVTabular lacks or has wrong; that plans serve the same is tested with the lowerings."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from workflows.errors import ConfigError
from workflows.operators import (
    Bucketize,
    HashedCategorify,
    NullToEmptyList,
    PaddedListSlice,
    StableHashBucket,
    StableHashedCross,
)
from workflows.upstream import nvt, ops, quiet_nvtabular
from workflows.workflow_store import keep_vocabularies_in, load_workflow, save_workflow

ROWS = pd.DataFrame(
    {
        "word": ["a", "b", None, "é", "a", "a"],
        "number": [1.0, 2.5, np.nan, 2.0**60, 1.0, 1.0],
        "key": [1, 2, 3, 4, 1, 1],
        "words": [["a", "q"], [], ["é"], ["a"], ["b", None], ["a"]],
    }
)
HASHED: dict[str, Callable[[], Any]] = {
    "HashedCategorify": lambda: ["word", "number", "key", "words"] >> HashedCategorify(num_buckets=4, max_size=7),
    "StableHashBucket": lambda: ["word", "number", "key", "words"] >> StableHashBucket(1000),
    "StableHashedCross": lambda: [["word", "number"], ["key", "word"]] >> StableHashedCross(1000),
}


def fitted(graph: Callable[[], Any], directory: Path) -> nvt.Workflow:
    with quiet_nvtabular():
        workflow = nvt.Workflow(graph())
        keep_vocabularies_in(workflow, directory)
        return workflow.fit(nvt.Dataset(ROWS))


@pytest.mark.parametrize("graph", HASHED.values(), ids=HASHED)
def test_a_value_gets_the_same_id_in_every_row_and_batch(tmp_path: Path, graph: Callable[[], Any]) -> None:
    workflow = fitted(graph, tmp_path)
    asked = ROWS.assign(word=["a", "new", "new", "é", "b", "newer"], key=[9, 9, 1, 8, 2, 9])
    asked["words"] = [["new", "a"], [], ["new"], ["b", "newer"], ["é"], ["new"]]
    with quiet_nvtabular():
        together = workflow.transform(asked)
        backwards = workflow.transform(asked.iloc[::-1].reset_index(drop=True))
    assert_frame_equal(together, backwards.iloc[::-1].reset_index(drop=True))


def test_unseen_values_of_lists_are_dealt_out_too(tmp_path: Path) -> None:
    workflow = fitted(lambda: ["words"] >> HashedCategorify(num_buckets=4, max_size=7), tmp_path)
    with quiet_nvtabular():
        ids = workflow.transform(pd.DataFrame({"words": [["new", "a"], [], [f"new {i}" for i in range(50)]]}))["words"]
    assert [len(row) for row in ids] == [2, 0, 50]
    assert set(ids[2].tolist()) == {2, 3, 4, 5}
    assert ids[0][0] in {2, 3, 4, 5}
    assert ids[0][1] == 6  # the most frequent one, after padding, null and four buckets


def test_groups_are_refused_before_they_are_fitted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected columns to encode alone"):
        fitted(lambda: [["word", "key"]] >> HashedCategorify(num_buckets=4), tmp_path)


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (lambda: ["key"] >> Bucketize([2, 4]), [0, 1, 1, 2, 0, 0]),
        (lambda: ["key"] >> Bucketize({"key": [3]}), [0, 0, 1, 1, 0, 0]),
        (lambda: ["words"] >> NullToEmptyList() >> PaddedListSlice(2, pad_value="-"), [["a", "q"], ["-", "-"]]),
        (lambda: ["key"] >> StableHashBucket(1), [0] * 6),
    ],
)
def test_operators_survive_saving_as_data(tmp_path: Path, graph: Callable[[], Any], expected: list[Any]) -> None:
    workflow = fitted(graph, tmp_path / "fit")
    save_workflow(workflow, tmp_path / "saved")
    with quiet_nvtabular():
        transformed = load_workflow(tmp_path / "saved").transform(ROWS[workflow.input_schema.column_names].copy())
    values = [row.tolist() if isinstance(row, np.ndarray) else row for row in transformed.iloc[:, 0]]
    assert values[: len(expected)] == expected


def test_nvtabulars_own_bucketize_cannot_be_saved_as_data(tmp_path: Path) -> None:
    """What `Bucketize` is for."""
    save_workflow(fitted(lambda: ["key"] >> ops.Bucketize([2, 4]), tmp_path / "fit"), tmp_path / "saved")
    with pytest.raises(Exception, match="not data"):
        load_workflow(tmp_path / "saved")
